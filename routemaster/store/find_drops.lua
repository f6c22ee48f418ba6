#!lua flags=no-writes
-- For which subscribers autodrop has dropped an event, by some of its records.
-- KEYS  1 namespace
-- ARGV  1 generation and 2 seq of the event, 3 first and 4 last record to look at
-- Returns {records looked at, subscriber, …}.  Cost: O(records).
--@ use batches
local generation, seq = ARGV[1], tonumber(ARGV[2])

local function holds(runs)
  for i = 1, #runs, 2 do
    if seq >= runs[i] and seq < runs[i] + runs[i + 1] then return true end
  end
  return false
end

local records = redis.call('LRANGE', ns .. 'drops', ARGV[3], ARGV[4])
local found = {#records}
for _, record in ipairs(records) do
  -- Between which seqs it is can be told without reading all of it.
  local first = tonumber(string.match(record, '^%["[^"]*","[^"]*",%d+,%[(%d+)'))
  local last, n = string.match(string.sub(record, -48), '(%d+),(%d+)%]%]$')
  if first and last and seq >= first and seq < last + n then
    local lane, of, _, runs = unpack(cjson.decode(record))
    if of == generation and holds(runs) then found[#found + 1] = subscriber_of(lane) end
  end
end
return found
