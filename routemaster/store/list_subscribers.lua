#!lua flags=no-writes
-- All subscriptions, with what is queued for each, how old the oldest of it is, and how it does.
-- KEYS  1 namespace
-- Returns {{id, fields of its hash (name, value, …), topics, counts {sent, failed, dropped, queued, dead},
-- oldest or '', retry at or '', why or ''}, …}.  Cost: O(subscribers × lanes).
--@ use batches
-- When its oldest queued batch was begun; until when the lane that rests longest does, and why.
local function look_at_lanes(id, incarnation, set, parallelism)
  local oldest, retry_at, why
  for _, lane in ipairs(all_lanes(id, incarnation, set, parallelism)) do
    local at = oldest_in(lane)
    if at and (not oldest or at < oldest) then oldest = at end
    local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'not_before', 'why')
    local rest = tonumber(l[1] or 0)
    if rest > now and (not retry_at or rest > retry_at) then retry_at, why = rest, l[2] end
  end
  return oldest or '', retry_at or '', why or ''
end

local found = {}
for _, id in ipairs(redis.call('SMEMBERS', ns .. 'subscribers')) do
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'incarnation', 'set', 'parallelism')
  local counts = redis.call('HMGET', ns .. 'counters', 'delivered:' .. id, 'failed:' .. id, 'dropped:' .. id)
  counts[4] = redis.call('HGET', ns .. 'batches:gauges:event', id)
  counts[5] = redis.call('HGET', ns .. 'batches:gauges:dead', id)
  for i = 1, 5 do counts[i] = counts[i] or '0' end
  found[#found + 1] = {id, redis.call('HGETALL', ns .. 'subscriber:' .. id),
    redis.call('SMEMBERS', ns .. 'topics:' .. id), counts, look_at_lanes(id, s[1], s[2], s[3])}
end
return found
