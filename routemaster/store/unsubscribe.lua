#!lua flags=allow-oom
-- End a subscription, or take one topic off its list (it goes on existing with none).
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 subscriber, 3 topic or ''
-- Returns 1, or 0 when there is no such thing.
--@ use unsubscribe
local epoch, id, topic = ARGV[1], ARGV[2], ARGV[3]

local found
if topic == '' then
  found = unsubscribe(id)
else
  found = redis.call('SREM', ns .. 'topics:' .. id, topic) == 1
  redis.call('SREM', ns .. 'subscribers:' .. topic, id)
end
if found then changed(epoch, 'subscriber', id) end
wake_workers()
return found and 1 or 0
