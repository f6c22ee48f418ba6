#!lua flags=no-writes
-- What has been done for some subscribers and what waits for them, as numbers: as many of those named as fit
-- in one call, so that thousands of them do not keep the store from others.
-- KEYS  1 namespace
-- ARGV  1 most lanes to look at, then subscribers
-- Returns a row for each of the first ones, at least one: {client ('' when there is no such subscriber any
-- more), events, batches and dead events queued, routed, delivered, failed, dropped, purged, dead, age of the
-- oldest batch in ms, health points, 1 when it is paused}.  Cost: O(subscribers + their lanes).
--@ use batches
local most = tonumber(ARGV[1])

-- How old the oldest of its batches is, and how many lanes that took to find out.
local function age_of(id, incarnation, set, parallelism)
  local oldest
  local lanes = all_lanes(id, incarnation, set, parallelism)
  for _, lane in ipairs(lanes) do
    local at = oldest_in(lane)
    if at and (not oldest or at < oldest) then oldest = at end
  end
  return oldest and math.max(0, now - oldest) or 0, #lanes
end

local function figures_of(id)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id,
    'client', 'incarnation', 'set', 'parallelism', 'health_points', 'paused')
  if not s[1] then return {''}, 1 end
  local age, lanes = age_of(id, s[2], s[3], s[4])
  local row = {s[1]}
  for _, gauge in ipairs({'event', 'batch', 'dead'}) do
    row[#row + 1] = redis.call('HGET', ns .. 'batches:gauges:' .. gauge, id) or '0'
  end
  local counts = redis.call('HMGET', ns .. 'counters', 'routed:' .. id, 'delivered:' .. id, 'failed:' .. id,
    'dropped:' .. id, 'purged:' .. id, 'dead:' .. id)
  for i = 1, 6 do row[#row + 1] = counts[i] or '0' end
  row[#row + 1] = age
  row[#row + 1] = s[5]
  row[#row + 1] = s[6] == '1' and 1 or 0
  return row, lanes
end

local rows = {}
for i = 2, #ARGV do
  local lanes
  rows[#rows + 1], lanes = figures_of(ARGV[i])
  most = most - lanes
  if most <= 0 then break end
end
return rows
