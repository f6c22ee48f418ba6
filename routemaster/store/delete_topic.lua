#!lua flags=allow-oom
-- Delete a topic: its subscribers are unsubscribed from it, what is queued stays.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 topic, 3 client that must own it or '' for root
-- Returns 'done', 'denied' or 'unknown'.  Cost: O(its subscribers).
--@ use registry
local epoch, topic, client = ARGV[1], ARGV[2], ARGV[3]

if redis.call('SISMEMBER', ns .. 'topics', topic) == 0 then return 'unknown' end
if client ~= '' and redis.call('HGET', ns .. 'topic:' .. topic, 'publisher') ~= client then return 'denied' end
for _, id in ipairs(redis.call('SMEMBERS', ns .. 'subscribers:' .. topic)) do
  redis.call('SREM', ns .. 'topics:' .. id, topic)
  changed(epoch, 'subscriber', id)
end
redis.call('DEL', ns .. 'topic:' .. topic, ns .. 'subscribers:' .. topic)
redis.call('SREM', ns .. 'topics', topic)
changed(epoch, 'topic', topic)
return 'done'
