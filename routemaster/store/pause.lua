#!lua flags=allow-oom
-- Pause a subscription, or let it go on: then every lane that has something gets its job again. What is in
-- the air is not called back. Routing does not change, so the epoch stays.
-- KEYS  1 namespace
-- ARGV  1 subscriber, 2 '1' to pause or '' to go on
-- Returns 1, or 0 when there is no such subscription.  Cost: O(lanes).
--@ use batches
local id, paused = ARGV[1], ARGV[2]
local key = ns .. 'subscriber:' .. id

local s = redis.call('HMGET', key, 'incarnation', 'set', 'parallelism', 'timeout', 'max_events')
if not s[1] then return 0 end
if paused == '1' then
  redis.call('HSET', key, 'paused', '1')
  return 1
end
redis.call('HDEL', key, 'paused')
for _, lane in ipairs(all_lanes(id, s[1], s[2], s[3])) do
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'waiting', 'not_before', 'held')
  local at = not l[1] and due_at(lane, tonumber(s[4]), tonumber(s[5]), l[3], tonumber(l[2] or 0))
  if at then enqueue(MAIN, deliver_job(lane), at) end
end
wake_workers()
return 1
