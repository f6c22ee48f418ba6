#!lua
-- Queue dead letters again, at the end of their lane, as if they were new: no attempts, and the next
-- sequence number, since a receiver has seen later ones. Of those that died later than the first call (they
-- were retried and died again) none is taken, so that calling until nothing is left comes to an end.
-- KEYS  1 namespace
-- ARGV  1 subscriber, 2 time of the first call or '' for now, 3 most batches, then the batches, or none for all
-- Returns {how many, the time}; nil when there is no such subscription.  Cost: O(batches).
--@ use batches
local id, before, most = ARGV[1], tonumber(ARGV[2]) or now, tonumber(ARGV[3])
local FIRST = 4

local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'incarnation', 'set', 'parallelism')
if not s[1] then return nil end
local subscription = id .. '#' .. s[1]

local function wanted()
  if #ARGV < FIRST then
    return redis.call('ZRANGEBYSCORE', dead_key(subscription), '-inf', before, 'LIMIT', 0, most)
  end
  local bids = {}
  for i = FIRST, #ARGV do bids[#bids + 1] = ARGV[i] end
  return bids
end

-- The lane that it was in, or the first one where that set of lanes is no more.
local function lane_for(bid)
  local old = redis.call('LINDEX', ns .. 'batch:' .. bid, 0)
  if set_of(old) == s[2] then return old end
  return lanes_of(id, s[1], s[2], 1)[1]
end

local retried = 0
for _, bid in ipairs(wanted()) do
  local events = exhume(subscription, bid)
  if events then
    local lane, key = lane_for(bid), ns .. 'batch:' .. bid
    redis.call('LSET', key, 0, lane)
    redis.call('LSET', key, 2, 0)
    seal(lane, bid)
    redis.call('HINCRBY', ns .. 'batches:gauges:event', id, events)
    redis.call('HINCRBY', ns .. 'batches:gauges:batch', id, 1)
    rouse(lane)
    retried = retried + 1
  end
end
wake_workers()
return {retried, before}
