#!lua flags=no-writes
-- Look for an event in some blocks of the log, by its UID.
-- KEYS  1 namespace
-- ARGV  1 UID, 2 the seq to begin at, 3 ms: blocks that were received after it are not looked at,
--       4 most blocks and 5 most bytes to read
-- Returns {'found', bytes read, first seq of the block, generation, received at, side columns, where the event
-- stands in the block (from 0), the event}, or {'on', bytes read, the seq to go on at}, or {'end', bytes read}.
-- Cost: O(blocks and their bytes).
--@ use clock
local uid, from, before = ARGV[1], ARGV[2], tonumber(ARGV[3])
local most_blocks, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local key = ns .. 'log:events'

-- Where in a text the event of this UID is, without its line end; and how many lines are before it. An event's
-- data may hold the same words: after its own id no other brace comes than its last.
local function line_of(text)
  local needle, search_from = '"id":"' .. uid .. '"', 1
  while true do
    local at, stop = string.find(text, needle, search_from, true)
    if not at then return nil end
    local finish = string.find(text, ',\n', stop, true) or #text + 1
    if string.find(string.sub(text, stop + 1, finish - 1), '^[^{}]*}$') then
      local start, lines = 1, 0
      while true do
        local line_end = string.find(text, '\n', start, true)
        if not line_end or line_end > at then break end
        start, lines = line_end + 1, lines + 1
      end
      return string.sub(text, start, finish - 1), lines
    end
    search_from = stop + 1
  end
end

local read = 0
for _ = 1, most_blocks do
  local entry = redis.call('XRANGE', key, from, '+', 'COUNT', 1)[1]
  if not entry then return {'end', read} end
  local block = {}
  for i = 1, #entry[2], 2 do block[entry[2][i]] = entry[2][i + 1] end
  if tonumber(block.r) > before then return {'end', read} end
  read = read + #block.e
  local line, index = line_of(block.e)
  if line then return {'found', read, block.f, block.g, block.r, block.s, index, line} end
  from = string.format('%.0f', tonumber(string.match(entry[1], '^%d+')) + 1)
  if read >= most_bytes then break end
end
return {'on', read, from}
