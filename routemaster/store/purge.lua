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

-- A subscriber that is gone for good leaves no gauge behind; one that came back under its name keeps its own.
local function forget_gauges(id)
  if redis.call('EXISTS', ns .. 'subscriber:' .. id) == 1 then return end
  for _, gauge in ipairs({'event', 'batch'}) do
    local key = ns .. 'batches:gauges:' .. gauge
    if redis.call('HGET', key, id) == '0' then redis.call('HDEL', key, id) end
  end
end

local lane = redis.call('LINDEX', ns .. 'purge', 0)
while lane and most > 0 do
  local bid = take_one(lane)
  if bid then
    local events = forget_batch(lane, bid)
    redis.call('HINCRBY', ns .. 'counters', 'purged:' .. subscriber_of(lane), events)
  else
    redis.call('LPOP', ns .. 'purge')
    forget_gauges(subscriber_of(lane))
    lane = redis.call('LINDEX', ns .. 'purge', 0)
  end
  most = most - 1
end
return lane and 1 or 0
