#!lua flags=allow-oom
-- Delete dead letters for good, longest dead first.
-- KEYS  1 namespace
-- ARGV  1 subscriber, 2 time of the first call or '' for now, 3 most batches
-- Returns {how many, the time}; nil when there is no such subscription.  Cost: O(batches).
--@ use batches
local id, before, most = ARGV[1], tonumber(ARGV[2]) or now, tonumber(ARGV[3])

local incarnation = redis.call('HGET', ns .. 'subscriber:' .. id, 'incarnation')
if not incarnation then return nil end
local subscription = id .. '#' .. incarnation
local bids = redis.call('ZRANGEBYSCORE', dead_key(subscription), '-inf', before, 'LIMIT', 0, most)
for _, bid in ipairs(bids) do
  redis.call('HINCRBY', ns .. 'counters', 'purged:' .. id, exhume(subscription, bid))
  delete_batch(bid)
end
return {#bids, before}
