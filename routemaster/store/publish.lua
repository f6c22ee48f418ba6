#!lua
-- One flush: everything that one web process accepted while its last flush was in the air.
-- Nothing is written before everything is checked: a stale epoch, a topic that another client owns
-- or a reused idempotency key answer without a trace, and the process sends the rest again.
-- A flush number that is not higher than the process's last one is answered as it was: a reply was
-- lost. Otherwise: claim topics, append the block to the log, fill batches, file jobs, count.
-- KEYS  1 namespace
-- ARGV  1 epoch, 2 process, 3 flush number, 4 received at, 5 generation candidate,
--       6 first 15 characters of new batch ids, 7 number of the first,
--       8 topics (msgpack [[name, client, events, index of the last], …]),
--       9 side columns (JSON [[events, publisher, kind, topic, environment, traceparent], …]),
--      10 idempotency keys (msgpack [[index, field, fingerprint and uid], …], or ''),
--      11 window ms and 12 most keys of idempotency, 13 most bytes of the log, 14 ms to keep the answer,
--      15 groups, then for each its lanes (msgpack [[lane, subscriber, max, timeout], …]) and the
--      indexes of their events (msgpack, or '' for all), then the events as they are delivered
-- Returns {'ok', {index, uid, …} of repeated events} or {'stale'} or {'denied', topic, owner, …}
--      or {'conflict', index, …}.  Cost: O(events × lanes).
--@ use batches
--@ use log
local epoch, process, number, received_at, candidate = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local bid_prefix, bid_number = ARGV[6], tonumber(ARGV[7])
local topics, side, keys = cmsgpack.unpack(ARGV[8]), ARGV[9], ARGV[10]
local window, most_keys, max_log_bytes, keep = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local groups = tonumber(ARGV[15])
local first_event = 15 + 2 * groups
local CHUNK = 5000

-- Lua's unpack is limited, so long lists go in chunks.
local function push(key, items, from, to)
  for i = from, to, CHUNK do
    redis.call('RPUSH', key, unpack(items, i, math.min(i + CHUNK - 1, to)))
  end
end

local function owners_other_than(claims)
  local denied = {'denied'}
  for _, topic in ipairs(claims) do
    local owner = redis.call('HGET', ns .. 'topic:' .. topic[1], 'publisher')
    if owner and owner ~= topic[2] then
      denied[#denied + 1] = topic[1]
      denied[#denied + 1] = owner
    end
  end
  return denied
end

-- Keys live in two buckets: when the current one is old or full it becomes the previous one, so a
-- key is known for at least the window, or for as long as `most_keys` newer ones have not come.
local function turn_buckets()
  local started = tonumber(redis.call('GET', ns .. 'ids:started') or 0)
  local full = redis.call('HLEN', ns .. 'ids:current') >= most_keys
  if now - started < window and not full then return end
  if full and now - started < window then redis.call('HINCRBY', ns .. 'counters', 'ids_cut_short', 1) end
  if redis.call('EXISTS', ns .. 'ids:current') == 1 then
    redis.call('RENAME', ns .. 'ids:current', ns .. 'ids:previous')
    redis.call('PEXPIRE', ns .. 'ids:previous', 2 * window)
  else
    redis.call('DEL', ns .. 'ids:previous')
  end
  redis.call('SET', ns .. 'ids:started', now)
end

-- Splits keys into new ones, repeated ones ({index, uid, …}) and conflicts ({'conflict', index, …}).
local function look_up_keys(rows)
  local fields, repeated, conflicts, fresh = {}, {}, {'conflict'}, {}
  for i, row in ipairs(rows) do fields[i] = row[2] end
  for from = 1, #rows, CHUNK do
    local to = math.min(from + CHUNK - 1, #rows)
    local current = redis.call('HMGET', ns .. 'ids:current', unpack(fields, from, to))
    local previous = redis.call('HMGET', ns .. 'ids:previous', unpack(fields, from, to))
    for i = from, to do
      local row, known = rows[i], current[i - from + 1] or previous[i - from + 1]
      if not known then
        fresh[#fresh + 1] = row[2]
        fresh[#fresh + 1] = row[3]
      elseif string.sub(known, 1, 8) == string.sub(row[3], 1, 8) then
        repeated[#repeated + 1] = row[1]
        repeated[#repeated + 1] = string.sub(known, 9)
      else
        conflicts[#conflicts + 1] = row[1]
      end
    end
  end
  return fresh, repeated, conflicts
end

-- Without the repeated events: the side columns and the topics' counts are made anew.
local function leave_out(repeated, events)
  local absent = {}
  for i = 1, #repeated, 2 do absent[repeated[i] + 1] = true end
  local rows, index, counts, last = {}, 0, {}, {}
  for _, row in ipairs(cjson.decode(side)) do
    local kept = 0
    for _ = 1, row[1] do
      index = index + 1
      if not absent[index] then
        kept = kept + 1
        last[row[4]] = index - 1
      end
    end
    counts[row[4]] = (counts[row[4]] or 0) + kept
    if kept > 0 then
      row[1] = kept
      rows[#rows + 1] = row
    end
  end
  side = #rows > 0 and cjson.encode(rows) or '[]'
  for _, topic in ipairs(topics) do topic[3], topic[4] = counts[topic[1]], last[topic[1]] end
  for i in pairs(absent) do events[i] = false end
end

-- 1. Check.
-- The ledger first: a flush that is in is answered so, whatever has changed since.
local ledger = redis.call('GET', ns .. 'flush:' .. process)
if ledger then
  local done = cmsgpack.unpack(ledger)
  if number <= done[1] then return {'ok', done[2]} end
end
if redis.call('GET', ns .. 'epoch') ~= epoch then return {'stale'} end
local denied = owners_other_than(topics)
if #denied > 1 then return denied end
local events = {}
for i = first_event + 1, #ARGV do events[i - first_event] = ARGV[i] end
local fresh, repeated = {}, {}
if keys ~= '' then
  local conflicts
  turn_buckets()
  fresh, repeated, conflicts = look_up_keys(cmsgpack.unpack(keys))
  if #conflicts > 1 then return conflicts end
end
local kept = events
if #repeated > 0 then
  leave_out(repeated, events)
  kept = {}
  for _, event in ipairs(events) do
    if event then kept[#kept + 1] = event end
  end
end

-- 2. Write.
local counts = {}
for _, topic in ipairs(topics) do
  local name, client, n, last = unpack(topic, 1, 4)
  local key = ns .. 'topic:' .. name
  if redis.call('HSETNX', key, 'publisher', client) == 1 then redis.call('SADD', ns .. 'topics', name) end
  if n > 0 then
    redis.call('HINCRBY', key, 'counter', n)
    redis.call('HSET', key, 'last_event', events[last + 1])
    redis.call('HINCRBY', ns .. 'counters', 'accepted:' .. name, n)
    counts[name] = n
  end
end
for i = 1, #fresh, CHUNK do -- CHUNK is even: a field and its value stay together
  redis.call('HSET', ns .. 'ids:current', unpack(fresh, i, math.min(i + CHUNK - 1, #fresh)))
end

local items = {}
if #kept > 0 then
  local generation = generation_of('events', candidate)
  local seq = append_block('events', generation, #kept, received_at, cjson.encode(counts), side,
    table.concat(kept, '\n'), max_log_bytes)
  for i = 1, #events do
    if events[i] then
      items[i] = struct.pack('>I8', seq) .. events[i]
      seq = seq + 1
    else
      items[i] = false
    end
  end

  local function new_bid()
    local n = bid_number
    bid_number = bid_number + 1
    local text = ''
    for _ = 1, 5 do
      local digit = n % 64
      text = string.sub(DIGITS, digit + 1, digit + 1) .. text
      n = (n - digit) / 64
    end
    return bid_prefix .. text
  end

  -- Put items into the lane's current batch, opening and sealing batches as they fill.
  local function fill(lane, subscriber, max, timeout, list)
    local bid = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    local room = 0
    if bid then
      local key = ns .. 'batch:' .. bid
      room = max - (redis.call('LLEN', key) - HEADER)
      if room <= 0 or redis.call('LINDEX', key, 3) ~= generation then
        seal(lane, bid)
        bid, room = nil, 0
      end
    end
    local at, opened, sealed = 1, 0, false
    while at <= #list do
      if not bid then
        bid, room, opened = new_bid(), max, opened + 1
        redis.call('RPUSH', ns .. 'batch:' .. bid, lane, now, 0, generation, '')
        redis.call('SADD', ns .. 'batches:current:' .. lane, bid)
        redis.call('ZADD', ns .. 'batches:index', now, bid)
      end
      local to = math.min(#list, at + room - 1)
      push(ns .. 'batch:' .. bid, list, at, to)
      room = room - (to - at + 1)
      at = to + 1
      if room == 0 then
        seal(lane, bid)
        bid, sealed = nil, true
      end
    end
    if opened > 0 then redis.call('HINCRBY', ns .. 'batches:gauges:batch', subscriber, opened) end
    redis.call('HINCRBY', ns .. 'batches:gauges:event', subscriber, #list)
    redis.call('HINCRBY', ns .. 'counters', 'routed:' .. subscriber, #list)
    if opened > 0 or sealed then
      local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'waiting', 'not_before')
      if not l[1] then
        local job = deliver_job(lane)
        local rest = tonumber(l[2] or 0)
        enqueue(MAIN, job, math.max(rest, sealed and now or now + timeout))
        if sealed and rest <= now then hasten(MAIN, job) end
      end
    end
  end

  for g = 1, groups do
    local lanes, indexes = cmsgpack.unpack(ARGV[14 + 2 * g]), ARGV[15 + 2 * g]
    local list = items
    if indexes ~= '' or #repeated > 0 then
      list = {}
      if indexes == '' then
        for i = 1, #items do if items[i] then list[#list + 1] = items[i] end end
      else
        for _, i in ipairs(cmsgpack.unpack(indexes)) do
          if items[i + 1] then list[#list + 1] = items[i + 1] end
        end
      end
    end
    if #list > 0 then
      for _, lane in ipairs(lanes) do fill(lane[1], lane[2], lane[3], lane[4], list) end
    end
  end
end
redis.call('SET', ns .. 'flush:' .. process, cmsgpack.pack({number, repeated}), 'PX', keep)
wake_workers()
return {'ok', repeated}
