#!lua flags=no-writes
-- Some subscriptions, with what is queued for each, how old the oldest of it is, and how it does: as many of
-- those named as fit in one call, so that thousands of them do not keep the store from others.
-- KEYS  1 namespace
-- ARGV  1 most lanes to look at, then subscribers
-- Returns for each of the first ones, at least one: {} when there is no such subscriber any more, or {id,
-- fields of its hash (name, value, …), topics, counts {sent, failed, dropped, queued, dead}, oldest or '',
-- retry at or '', why or ''}.  Cost: O(subscribers and their topics + their lanes).
--@ use batches
local most = tonumber(ARGV[1])

-- When its oldest queued batch was begun; until when the lane that rests longest does, and why; and how many
-- lanes that took to find out.
local function look_at_lanes(id, incarnation, set, parallelism)
  local oldest, retry_at, why
  local lanes = all_lanes(id, incarnation, set, parallelism)
  for _, lane in ipairs(lanes) do
    local at = oldest_in(lane)
    if at and (not oldest or at < oldest) then oldest = at end
    local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'not_before', 'why')
    local rest = tonumber(l[1] or 0)
    if rest > now and (not retry_at or rest > retry_at) then retry_at, why = rest, l[2] end
  end
  return #lanes, oldest or '', retry_at or '', why or ''
end

local function look_at(id)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'incarnation', 'set', 'parallelism')
  if not s[1] then return {}, 1 end
  local counts = redis.call('HMGET', ns .. 'counters', 'delivered:' .. id, 'failed:' .. id, 'dropped:' .. id)
  counts[4] = redis.call('HGET', ns .. 'batches:gauges:event', id)
  counts[5] = redis.call('HGET', ns .. 'batches:gauges:dead', id)
  for i = 1, 5 do counts[i] = counts[i] or '0' end
  local topics = redis.call('SMEMBERS', ns .. 'topics:' .. id)
  local lanes, oldest, retry_at, why = look_at_lanes(id, s[1], s[2], s[3])
  return {id, redis.call('HGETALL', ns .. 'subscriber:' .. id), topics, counts, oldest, retry_at, why},
    lanes + #topics / 20
end

local rows = {}
for i = 2, #ARGV do
  local work
  rows[#rows + 1], work = look_at(ARGV[i])
  most = most - work
  if most <= 0 then break end
end
return rows
