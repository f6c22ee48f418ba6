#!lua flags=no-writes
-- All subscriptions, with what is queued for each and how old the oldest of it is.
-- KEYS  1 namespace
-- Returns {{id, client, uuid, callback, max_events, timeout, health_points, last_attempted_at or '',
-- parallelism, paused or '', sent, queued, oldest or '', topics}, …}.  Cost: O(subscribers × lanes).
--@ use batches
local function oldest_in(id, incarnation, set, parallelism)
  local oldest
  for _, lane in ipairs(all_lanes(id, incarnation, set, parallelism)) do
    local bid = redis.call('LINDEX', ns .. 'batches:ready:' .. lane, 0)
      or redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    local created = bid and tonumber(redis.call('LINDEX', ns .. 'batch:' .. bid, 1) or nil)
    if created and (not oldest or created < oldest) then oldest = created end
  end
  return oldest
end

local found = {}
for _, id in ipairs(redis.call('SMEMBERS', ns .. 'subscribers')) do
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'client', 'uuid', 'callback', 'max_events',
    'timeout', 'health_points', 'last_attempted_at', 'parallelism', 'paused', 'incarnation', 'set')
  local sent = redis.call('HGET', ns .. 'counters', 'delivered:' .. id)
  local queued = redis.call('HGET', ns .. 'batches:gauges:event', id)
  found[#found + 1] = {id, s[1], s[2], s[3], s[4], s[5], s[6], s[7] or '', s[8], s[9] or '', sent or '0',
    queued or '0', oldest_in(id, s[10], s[11], s[8]) or '', redis.call('SMEMBERS', ns .. 'topics:' .. id)}
end
return found
