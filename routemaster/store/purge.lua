#!lua flags=allow-oom
-- Delete batches of subscriptions that have ended, some at a time: those of their lanes, and dead ones.
--   purge  list  lanes, and <subscriber>#<incarnation> for the dead letters
-- KEYS  1 namespace
-- ARGV  1 most batches to delete
-- Returns 1 when there is more to do, else 0.
--@ use batches
local most = tonumber(ARGV[1])

-- Deletes one batch. Returns how many events were in it, or nil when there is none left.
local function purge_lane(lane)
  local bid = redis.call('LPOP', ns .. 'batches:ready:' .. lane) or redis.call('LPOP', ns .. 'batches:replay:' .. lane)
    or redis.call('SPOP', ns .. 'batches:current:' .. lane)
  return bid and forget_batch(lane, bid)
end

local function purge_dead(subscription)
  local bid = redis.call('ZRANGE', dead_key(subscription), 0, 0)[1]
  if not bid then return nil end
  local events = exhume(subscription, bid)
  delete_batch(bid)
  return events
end

-- A subscriber that is gone for good leaves no gauge behind; one that came back under its name keeps its own.
local function forget_gauges(id)
  if redis.call('EXISTS', ns .. 'subscriber:' .. id) == 1 then return end
  for _, gauge in ipairs({'event', 'batch', 'dead'}) do
    local key = ns .. 'batches:gauges:' .. gauge
    if redis.call('HGET', key, id) == '0' then redis.call('HDEL', key, id) end
  end
end

local ended = redis.call('LINDEX', ns .. 'purge', 0)
while ended and most > 0 do
  local purge_one = subscription_of(ended) and purge_lane or purge_dead
  local events = purge_one(ended)
  if events then
    redis.call('HINCRBY', ns .. 'counters', 'purged:' .. subscriber_of(ended), events)
  else
    redis.call('LPOP', ns .. 'purge')
    forget_gauges(subscriber_of(ended))
    ended = redis.call('LINDEX', ns .. 'purge', 0)
  end
  most = most - 1
end
return ended and 1 or 0
