#!lua flags=no-writes
-- Where an event is queued now, for some subscribers: as many of those named as fit in one call.
-- KEYS  1 namespace
-- ARGV  1 generation and 2 seq of the event, 3 CRC-32 of its URL, 4 since when it may have died, 5 most bytes to
--       read, then subscribers
-- Returns a row for each of the first ones, at least one: {'queued', 'in the air', 'dead' or '', batch}.
-- Cost: O(subscribers × log of their batches), and as many dead letters as are looked at.
--@ use batches
local generation, seq, hash, since = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local bytes = tonumber(ARGV[5])
local FIRST = 6
local MOST_OUT_OF_ORDER, MOST_DEAD = 64, 100

local function run_at(key, index)
  local run = redis.call('LINDEX', key, index)
  if not run then return nil end
  bytes = bytes - #run
  return struct.unpack('>I8I4', run)
end

local function holds(bid)
  local key = ns .. 'batch:' .. bid
  if redis.call('LINDEX', key, 3) ~= generation then return false end
  local least, most = HEADER, redis.call('LLEN', key) - 1
  while least <= most do
    local middle = math.floor((least + most) / 2)
    local first, n = run_at(key, middle)
    if seq < first then
      most = middle - 1
    elseif seq >= first + n then
      least = middle + 1
    else
      return true
    end
  end
  return false
end

-- The first batch of a list, from one place to another, that does not begin before `least_seq`: dead letters
-- that were queued again stand behind newer ones. Returns its place, itself, and the seq it begins with.
local function in_order(key, from, to, least_seq)
  for place = from, math.min(to, from + MOST_OUT_OF_ORDER) do
    local bid = redis.call('LINDEX', key, place)
    local first = bid and run_at(ns .. 'batch:' .. bid, HEADER)
    if first and first >= least_seq then return place, bid, first end
  end
end

local function search(key)
  local least, most = 0, redis.call('LLEN', key) - 1
  local _, _, least_seq = in_order(key, least, most, 0)
  if not least_seq then return nil end
  while least <= most do
    local middle = math.floor((least + most) / 2)
    local place, bid, first = in_order(key, middle, most, least_seq)
    if not place or first > seq then
      most = middle - 1
    elseif holds(bid) then
      return bid
    else
      least, least_seq = place + 1, first
    end
  end
end

local function search_lane(lane)
  local bid = search(ns .. 'batches:ready:' .. lane)
  if bid then return bid end
  bid = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
  if bid and holds(bid) then return bid end
  return search(ns .. 'batches:replay:' .. lane)
end

local function search_dead(subscription)
  local key = dead_key(subscription)
  for _, bid in ipairs(redis.call('ZRANGEBYSCORE', key, since, '+inf', 'LIMIT', 0, MOST_DEAD)) do
    if bytes > 0 and holds(bid) then return bid end
  end
end

-- An entity's events are in one lane of each set.
local function lanes_for_entity(id, incarnation, set, parallelism)
  local lanes = {id .. '#' .. incarnation .. '.' .. set .. '.' .. string.format('%.0f', hash % parallelism)}
  local draining = redis.call('HGETALL', draining_key(id, incarnation))
  for i = 1, #draining, 2 do
    local old = string.match(draining[i], '^(%d+):lanes$')
    if old then
      local n = string.format('%.0f', hash % tonumber(draining[i + 1]))
      lanes[#lanes + 1] = id .. '#' .. incarnation .. '.' .. old .. '.' .. n
    end
  end
  return lanes
end

local function locate(id)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'incarnation', 'set', 'parallelism')
  if not s[1] then return {'', ''} end
  for _, lane in ipairs(lanes_for_entity(id, s[1], s[2], tonumber(s[3]))) do
    local bid = search_lane(lane)
    if bid then
      local in_air = redis.call('HGET', ns .. 'lane:' .. lane, 'batch')
      return {in_air == bid and 'in the air' or 'queued', bid}
    end
  end
  local bid = search_dead(id .. '#' .. s[1])
  return bid and {'dead', bid} or {'', ''}
end

local rows = {}
for i = FIRST, #ARGV do
  rows[#rows + 1] = locate(ARGV[i])
  if bytes <= 0 then break end
end
return rows
