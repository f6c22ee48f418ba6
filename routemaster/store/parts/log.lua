--@ use clock
--@ use uid
-- Logs: append-only streams of blocks, with dense sequence numbers.
--   log:<log>              stream  entry <seq of its last record>-0: g generation, f first seq,
--                                  n records, r received at, b bytes appended so far, c counts per
--                                  topic (JSON), s side columns (JSON), e the records, each but the last
--                                  followed by ",\n": an array without its brackets
--   log:<log>:seq          string  the last seq given
--   log:<log>:bytes        string  bytes appended so far;  log:<log>:trimmed  bytes taken off again
--   log:<log>:generations  list    "<generation> <its first seq> <run id of the store>"
--   log:<log>:gaps         list    JSON [generation, from, to, why, {topic: records}]
-- A generation is the life of a log between two starts of the store: after a crash that lost its
-- tail numbers are given again, and (generation, seq) still names one record.

-- Whether a text is above another by its bytes; Lua's own `>` goes by the machine's locale.
local function is_above(text, other)
  for i = 1, #text do
    local byte, others = string.byte(text, i), string.byte(other, i)
    if byte ~= others then return not others or byte > others end
  end
  return false
end

local function generation_of(log, candidate)
  local info = redis.call('INFO', 'server')
  local _, stop = string.find(info, 'run_id:', 1, true)
  local run = string.sub(info, stop + 1, stop + 40)
  local key = ns .. 'log:' .. log .. ':generations'
  local last = redis.call('LINDEX', key, -1)
  if last and string.sub(last, -40) == run then return string.sub(last, 1, 20) end
  if last and not is_above(candidate, string.sub(last, 1, 20)) then candidate = uid_after(string.sub(last, 1, 20)) end
  local first = (redis.call('GET', ns .. 'log:' .. log .. ':seq') or 0) + 1
  redis.call('RPUSH', key, candidate .. ' ' .. string.format('%.0f', first) .. ' ' .. run)
  return candidate
end

-- Remember what left the log unarchived; a gap that goes on is made longer (with the latest reason), not
-- another one, so that there are at most as many as generations.
local function record_gap(log, generation, from, to, why, counts)
  local key = ns .. 'log:' .. log .. ':gaps'
  local last = redis.call('LINDEX', key, -1)
  local gap = last and cjson.decode(last)
  if gap and gap[1] == generation and gap[3] + 1 == from then
    gap[3], gap[4] = to, why
    for topic, n in pairs(counts) do gap[5][topic] = (gap[5][topic] or 0) + n end
    redis.call('LSET', key, -1, cjson.encode(gap))
  else
    redis.call('RPUSH', key, cjson.encode({generation, from, to, why, counts}))
  end
end

-- Take at most `most` of the oldest blocks off: those received before `before`, and those that are
-- more than `max_bytes` in all. Returns how many went.
local function trim_log(log, before, max_bytes, most)
  local key = ns .. 'log:' .. log
  local size = (redis.call('GET', key .. ':bytes') or 0) - (redis.call('GET', key .. ':trimmed') or 0)
  local gone, upto, trimmed = 0, nil, nil
  for _, entry in ipairs(redis.call('XRANGE', key, '-', '+', 'COUNT', most)) do
    local block = {}
    for i = 1, #entry[2], 2 do block[entry[2][i]] = entry[2][i + 1] end
    local why = tonumber(block.r) < before and 'age' or size > max_bytes and 'cap' or nil
    if not why then break end
    size = size - (block.b - (trimmed or redis.call('GET', key .. ':trimmed') or 0))
    trimmed = block.b
    record_gap(log, block.g, tonumber(block.f), block.f + block.n - 1, why, cjson.decode(block.c))
    gone, upto = gone + 1, entry[1]
  end
  if upto then
    redis.call('XTRIM', key, 'MINID', '=', string.match(upto, '^%d+') .. '-1')
    redis.call('SET', key .. ':trimmed', trimmed)
  end
  return gone
end

-- Append one block and give its records their numbers. Returns the first.
local function append_block(log, generation, records, received_at, counts, side, lines, max_bytes)
  local key = ns .. 'log:' .. log
  local last = redis.call('INCRBY', key .. ':seq', records)
  local bytes = redis.call('INCRBY', key .. ':bytes', #lines + #side + #counts + 100)
  local id = string.format('%.0f', last)
  local first = string.format('%.0f', last - records + 1)
  redis.call('XADD', key, id .. '-0', 'g', generation, 'f', first, 'n', records, 'r', received_at,
    'b', string.format('%.0f', bytes), 'c', counts, 's', side, 'e', lines)
  if bytes - (redis.call('GET', key .. ':trimmed') or 0) > max_bytes then trim_log(log, 0, max_bytes, 4) end
  return last - records + 1
end
