#!lua
-- Take over a subscription of the original, once: one that is there stays as it is, and one that has ended
-- here stays ended. A topic that is not there is created unclaimed.
--   import:subscribers  set  subscriptions that were taken over, also those that have ended here since
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 subscriber, 3 client, 4 incarnation, 5 fields (msgpack [name, value, …]), then its topics
-- Returns 'new', 'known', 'deleted' or 'gone' (the client).  Cost: O(topics).
--@ use registry
local epoch, id, client, incarnation, fields = ARGV[1], ARGV[2], ARGV[3], ARGV[4], cmsgpack.unpack(ARGV[5])
local FIRST_TOPIC = 6
local key = ns .. 'subscriber:' .. id

if redis.call('HEXISTS', ns .. 'clients', client) == 0 then return 'gone' end
local imported = redis.call('SISMEMBER', ns .. 'import:subscribers', id) == 1
if redis.call('EXISTS', key) == 1 then
  if not imported then redis.call('SADD', ns .. 'import:subscribers', id) end
  return 'known'
end
if imported then return 'deleted' end

redis.call('HSET', key, 'client', client, 'incarnation', incarnation, 'set', 1, 'parallelism', 1)
for i = 1, #fields, 2 do redis.call('HSET', key, fields[i], fields[i + 1]) end
redis.call('SADD', ns .. 'subscribers', id)
redis.call('SADD', ns .. 'import:subscribers', id)
for i = FIRST_TOPIC, #ARGV do
  local topic = ARGV[i]
  if redis.call('SADD', ns .. 'topics', topic) == 1 then
    redis.call('HSETNX', ns .. 'topic:' .. topic, 'counter', 0)
    changed(epoch, 'topic', topic)
  end
  redis.call('SADD', ns .. 'topics:' .. id, topic)
  redis.call('SADD', ns .. 'subscribers:' .. topic, id)
end
changed(epoch, 'subscriber', id)
return 'new'
