#!lua flags=allow-oom
-- Delete batches of lanes whose subscription has ended, some at a time.
-- KEYS  1 namespace
-- ARGV  1 most batches to delete
-- Returns 1 when there is more to do, else 0.
--@ use batches
local most = tonumber(ARGV[1])

local function take_one(lane)
  return redis.call('LPOP', ns .. 'batches:ready:' .. lane) or redis.call('LPOP', ns .. 'batches:replay:' .. lane)
    or redis.call('SPOP', ns .. 'batches:current:' .. lane)
end

local lane = redis.call('LINDEX', ns .. 'purge', 0)
while lane and most > 0 do
  local bid = take_one(lane)
  if bid then
    local events = forget_batch(lane, bid)
    redis.call('HINCRBY', ns .. 'counters', 'purged:' .. subscriber_of(lane), events)
  else
    redis.call('LPOP', ns .. 'purge')
    lane = redis.call('LINDEX', ns .. 'purge', 0)
  end
  most = most - 1
end
return lane and 1 or 0
