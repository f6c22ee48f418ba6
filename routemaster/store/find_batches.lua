#!lua flags=no-writes
-- What has become of batches.
-- KEYS  1 namespace
-- ARGV  batches
-- Returns for each 'queued', 'in the air', 'dead', or '' when it is gone, or its subscription is.
-- Cost: O(batches).
--@ use batches
local states = {}
for i, bid in ipairs(ARGV) do
  local lane = redis.call('LINDEX', ns .. 'batch:' .. bid, 0)
  local id = lane and subscriber_of(lane)
  if not lane or redis.call('HGET', ns .. 'subscriber:' .. id, 'incarnation') ~= incarnation_of(lane) then
    states[i] = ''
  elseif redis.call('ZSCORE', dead_key(subscription_of(lane)), bid) then
    states[i] = 'dead'
  else
    states[i] = redis.call('HGET', ns .. 'lane:' .. lane, 'batch') == bid and 'in the air' or 'queued'
  end
end
return states
