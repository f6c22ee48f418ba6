#!lua
-- One flush: everything that one web process accepted while its last flush was in the air.
-- Nothing is written before everything is checked: a stale epoch, a topic that another client owns
-- or a reused idempotency key answer without a trace, and the process sends the rest again.
-- The ledger keeps a process's last flushes: one that is in is answered as it was (a reply was lost);
-- one that is older than the last and not in was given up by its process, and never comes in behind
-- newer events. Otherwise: claim topics, append the block to the log, fill batches, file jobs, count.
-- The events come as one text and go as slices of it: no work per event but for batch boundaries.
--   flush:<process>  string  msgpack [[number, repeated], …], the last stored ones, newest last
-- KEYS  1 namespace
-- ARGV  1 epoch, 2 process, 3 flush number, 4 received at, 5 generation candidate,
--       6 first 15 characters of new batch ids, 7 number of the first,
--       8 topics (msgpack [[name, client, events, index of the last], …]),
--       9 side columns (JSON [[events, publisher, kind, topic, environment, traceparent], …]),
--      10 idempotency keys (msgpack [[index, field, fingerprint and uid], …], or ''); those of events
--         that are not in this flush (a wide request is cut) are only checked for conflicts,
--      11 window ms and 12 most keys of idempotency, 13 most bytes of the log, 14 ms to keep the ledger,
--      15 number of events, 16 where each starts in the text, and its end (4 bytes each, little-endian),
--      17 the events as they are delivered, separated by ",\n",
--      18, 19 the same two of the events in the channel format, or '' where no lane wants that,
--      20 earlier flushes of the process that are to be counted (msgpack [events, µs that it took, …], or
--         ''): told together now and then, because to count each by itself costs a tenth of a small one,
--      then for each group its lanes (msgpack [[lane, subscriber, max, timeout, format], …]: format 1 as
--      they are delivered, 2 in the channel format) and the runs of events that go to them (msgpack [from, to, …], `to` not included; or '' for all)
-- Returns {'ok', {index, uid, …} of repeated events} or {'stale'} or {'late'} or
--      {'denied', topic, owner, …} or {'conflict', index, …}.  Cost: O(groups × lanes + bytes × lanes).
--@ use batches
--@ use log
--@ use histograms
local epoch, process, number, received_at, candidate = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local bid_prefix, bid_number = ARGV[6], tonumber(ARGV[7])
local topics, side, keys = cmsgpack.unpack(ARGV[8]), ARGV[9], ARGV[10]
local window, most_keys, max_log_bytes, keep = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local count = tonumber(ARGV[15])
local forms = {{starts = ARGV[16], text = ARGV[17]}, {starts = ARGV[18], text = ARGV[19]}}
local told = ARGV[20]
local FIRST_GROUP = 21
local CHUNK = 5000 -- Lua's unpack is limited, so long lists go in chunks; even, so that pairs stay together
local LEDGER = 4

-- Events from..to (counted from 0, `to` not included), in one of the formats.
local function slice(form, from, to)
  local first = struct.unpack('<I4', form.starts, 4 * from + 1)
  local stop = struct.unpack('<I4', form.starts, 4 * to + 1)
  return string.sub(form.text, first + 1, stop - #SEPARATOR)
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
      local here = row[1] < count
      if known and string.sub(known, 1, 8) ~= string.sub(row[3], 1, 8) then
        conflicts[#conflicts + 1] = row[1]
      elseif known and here then
        repeated[#repeated + 1] = row[1]
        repeated[#repeated + 1] = string.sub(known, 9)
      elseif here then
        fresh[#fresh + 1] = row[2]
        fresh[#fresh + 1] = row[3]
      end
    end
  end
  return fresh, repeated, conflicts
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

-- A format's text without the events that are absent.
local function keep_present(form, absent)
  if form.text == '' then return form end
  local kept, packed, at = {}, {}, 0
  for i = 0, count - 1 do
    if not absent[i] then
      kept[#kept + 1] = slice(form, i, i + 1)
      packed[#packed + 1] = struct.pack('<I4', at)
      at = at + #kept[#kept] + #SEPARATOR
    end
  end
  packed[#packed + 1] = struct.pack('<I4', at)
  return {starts = table.concat(packed), text = table.concat(kept, SEPARATOR)}
end

-- Make the flush anew without its repeated events. Returns where each old index is now.
local function leave_out(repeated)
  local absent, rank, left = {}, {}, 0
  for i = 1, #repeated, 2 do absent[repeated[i]] = true end
  for i = 0, count - 1 do
    rank[i] = left
    if not absent[i] then left = left + 1 end
  end
  rank[count] = left
  local rows, index, counts, last = {}, 0, {}, {}
  for _, row in ipairs(cjson.decode(side)) do
    local topic = row[4]
    local there = rank[index + row[1]] - rank[index]
    index = index + row[1]
    counts[topic] = (counts[topic] or 0) + there
    if there > 0 then
      last[topic] = rank[index] - 1
      row[1] = there
      rows[#rows + 1] = row
    end
  end
  side = #rows > 0 and cjson.encode(rows) or '[]'
  for _, topic in ipairs(topics) do topic[3], topic[4] = counts[topic[1]], last[topic[1]] end
  for n, form in ipairs(forms) do forms[n] = keep_present(form, absent) end
  count = left
  return rank
end

-- 1. Check.
-- The ledger first: a flush that is in is answered so, whatever has changed since.
local ledger = redis.call('GET', ns .. 'flush:' .. process)
ledger = ledger and cmsgpack.unpack(ledger) or {}
for _, done in ipairs(ledger) do
  if done[1] == number then
    -- A write: WAIT behind it, on a connection that wrote nothing yet, would be answered at once.
    redis.call('PEXPIRE', ns .. 'flush:' .. process, keep)
    return {'ok', done[2]}
  end
end
if #ledger > 0 and number < ledger[#ledger][1] then return {'late'} end
if redis.call('GET', ns .. 'epoch') ~= epoch then return {'stale'} end
local denied = owners_other_than(topics)
if #denied > 1 then return denied end
local fresh, repeated, rank = {}, {}, nil
if keys ~= '' then
  local conflicts
  fresh, repeated, conflicts = look_up_keys(cmsgpack.unpack(keys))
  if #conflicts > 1 then return conflicts end
  if #repeated > 0 then rank = leave_out(repeated) end
end

-- 2. Write.
local counts = {}
for _, topic in ipairs(topics) do
  local name, client, n, last = unpack(topic, 1, 4)
  local key = ns .. 'topic:' .. name
  if redis.call('HSETNX', key, 'publisher', client) == 1 then redis.call('SADD', ns .. 'topics', name) end
  if n > 0 then
    redis.call('HINCRBY', key, 'counter', n)
    redis.call('HSET', key, 'last_event', slice(forms[1], last, last + 1))
    redis.call('HINCRBY', ns .. 'counters', 'accepted:' .. name, n)
    counts[name] = n
  end
end
if #fresh > 0 then
  turn_buckets()
  for i = 1, #fresh, CHUNK do
    redis.call('HSET', ns .. 'ids:current', unpack(fresh, i, math.min(i + CHUNK - 1, #fresh)))
  end
end

local generation, first_seq
local pieces = {} -- the same slice often goes to many lanes

-- A run of events as a batch holds it.
local function piece(format, from, to)
  local name = (format * 67108864 + from) * 33554432 + to
  local known = pieces[name]
  if not known then
    known = struct.pack('>I8I4', first_seq + from, to - from) .. slice(forms[format], from, to)
    pieces[name] = known
  end
  return known
end

local function new_bid()
  local n, digits = bid_number, {}
  bid_number = bid_number + 1
  for i = 5, 1, -1 do
    local digit = n % 64
    digits[i] = string.sub(DIGITS, digit + 1, digit + 1)
    n = (n - digit) / 64
  end
  return bid_prefix .. table.concat(digits)
end

-- Put runs into the lane's current batch, opening and sealing batches as they fill.
local function fill(lane, subscriber, max, timeout, format, runs)
  local bid = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
  local held, sealed = 0, false
  if bid then
    local head = redis.call('LRANGE', ns .. 'batch:' .. bid, 3, 5)
    held = tonumber(head[3])
    if held >= max or head[1] ~= generation then
      seal(lane, bid)
      bid, sealed = nil, true
    end
  end
  local run, at, opened, total = 1, runs[1], 0, 0
  while at do
    local items = {}
    if not bid then
      held = 0
      items = {lane, now, 0, generation, '', 0}
    end
    while at and held < max and #items < CHUNK do
      local to = math.min(runs[run + 1], at + max - held)
      items[#items + 1] = piece(format, at, to)
      held, total, at = held + to - at, total + to - at, to
      if at == runs[run + 1] then
        run = run + 2
        at = runs[run]
      end
    end
    if bid then
      redis.call('RPUSH', ns .. 'batch:' .. bid, unpack(items))
      redis.call('LSET', ns .. 'batch:' .. bid, 5, held)
    else
      bid, opened = new_bid(), opened + 1
      items[6] = held
      redis.call('RPUSH', ns .. 'batch:' .. bid, unpack(items))
      redis.call('SADD', ns .. 'batches:current:' .. lane, bid)
      redis.call('ZADD', ns .. 'batches:index', now, bid)
    end
    if held >= max then
      seal(lane, bid)
      bid, sealed = nil, true
    end
  end
  if opened > 0 then redis.call('HINCRBY', ns .. 'batches:gauges:batch', subscriber, opened) end
  redis.call('HINCRBY', ns .. 'batches:gauges:event', subscriber, total)
  redis.call('HINCRBY', ns .. 'counters', 'routed:' .. subscriber, total)
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

-- The runs of a group, as they are after repeated events were left out.
local function runs_of(packed)
  if packed == '' then return {0, count} end
  local runs = cmsgpack.unpack(packed)
  if not rank then return runs end
  local left = {}
  for i = 1, #runs, 2 do
    local from, to = rank[runs[i]], rank[runs[i + 1]]
    if to > from then
      left[#left + 1] = from
      left[#left + 1] = to
    end
  end
  return left
end

if count > 0 then
  generation = generation_of('events', candidate)
  first_seq = append_block('events', generation, count, received_at, cjson.encode(counts), side,
    forms[1].text, max_log_bytes)
  for g = FIRST_GROUP, #ARGV, 2 do
    local runs = runs_of(ARGV[g + 1])
    if #runs > 0 then
      for _, lane in ipairs(cmsgpack.unpack(ARGV[g])) do
        fill(lane[1], lane[2], lane[3], lane[4], lane[5], runs)
      end
    end
  end
end
if told ~= '' then
  local flushes = cmsgpack.unpack(told)
  for i = 1, #flushes, 2 do
    observe(FLUSH_EVENTS, flushes[i])
    observe(FLUSH_US, flushes[i + 1])
  end
  write_observations()
end
ledger[#ledger + 1] = {number, repeated}
if #ledger > LEDGER then table.remove(ledger, 1) end
redis.call('SET', ns .. 'flush:' .. process, cmsgpack.pack(ledger), 'PX', keep)
wake_workers()
return {'ok', repeated}
