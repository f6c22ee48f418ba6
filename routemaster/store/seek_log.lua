#!lua flags=no-writes
-- Find where in a log the blocks begin that were received at some time or later. Times rise with the numbers,
-- but for what the clocks of several hosts differ by, so it is a binary search. It is done in parts, because
-- looking at a block means reading all of it.
-- KEYS  1 namespace
-- ARGV  1 log, 2 the time in ms, 3 and 4 between which seqs that is, both '' at first, 5 most bytes to read
-- Returns {least, most}, between which it is: found when they are the same; {} when the log is empty.
-- Cost: O(log of the blocks, and their bytes).
--@ use clock
local key, time, bytes = ns .. 'log:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])

-- First seq, last seq and time of the first block that ends at a seq or later.
local function block_at(seq)
  local entry = redis.call('XRANGE', key, seq, '+', 'COUNT', 1)[1]
  if not entry then return nil end
  local block = {}
  for i = 1, #entry[2], 2 do
    block[entry[2][i]] = entry[2][i + 1]
    bytes = bytes - #entry[2][i + 1]
  end
  return tonumber(block.f), tonumber(string.match(entry[1], '^%d+')), tonumber(block.r)
end

local least, most = tonumber(ARGV[3]), tonumber(ARGV[4])
if not least then
  least = block_at('-')
  local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  if not least then return {} end
  most = tonumber(string.match(newest[1], '^%d+')) + 1
end
while least < most and bytes > 0 do
  local middle = math.floor((least + most) / 2)
  local first, last, received_at = block_at(string.format('%.0f', middle))
  if not first then
    most = middle -- what was there has been trimmed in the meantime
  elseif received_at < time then
    least = last + 1
  else
    most = math.max(least, math.min(first, middle))
  end
end
return {least, most}
