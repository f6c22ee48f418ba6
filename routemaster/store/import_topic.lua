#!lua
-- Take over a topic of the original: who publishes to it, and how many events it has had. A topic that
-- somebody else has here is left alone; one that was deleted here stays deleted. When it is taken over again,
-- what was counted there in the meantime is added.
--   import:topics  hash  what a topic is noted as -> events counted there
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 topic, 3 its publisher or '', 4 events counted there, 5 what it is noted as
-- Returns 'new', 'known', 'taken' (by somebody else) or 'deleted'.
--@ use registry
local epoch, topic, publisher, counter, note = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local key = ns .. 'topic:' .. topic

local before = redis.call('HGET', ns .. 'import:topics', note)
local is_there = redis.call('SISMEMBER', ns .. 'topics', topic) == 1
local owner = redis.call('HGET', key, 'publisher')
if before and not is_there then return 'deleted' end
if publisher ~= '' and owner and owner ~= publisher then return 'taken' end

redis.call('SADD', ns .. 'topics', topic)
redis.call('HINCRBY', key, 'counter', math.max(0, counter - (before or 0)))
redis.call('HSET', ns .. 'import:topics', note, math.max(counter, before or 0))
if publisher ~= '' and not owner then redis.call('HSET', key, 'publisher', publisher) end
if not is_there or publisher ~= '' and not owner then changed(epoch, 'topic', topic) end
return before and 'known' or 'new'
