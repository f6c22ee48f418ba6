--@ use clock
-- Histograms, all in one string, so that one command adds whatever a call has observed.
--   histograms  string  big-endian numbers of 64 bits, 32 for each histogram: the sum of what was observed,
--                       then how many were at most 1, 2, 4, 8, … units, each counted once, at its least bound
-- Places and units never change: those of another meaning need another key.
local LATENCY_MS, ATTEMPT_MS, FLUSH_EVENTS, FLUSH_US = 0, 1, 2, 3
local HISTOGRAM_SLOTS = 32
local observed = {}

local function observe(histogram, value)
  local first = histogram * HISTOGRAM_SLOTS
  local _, power = math.frexp(math.max(value, 1) - 1) -- the least one with value <= 2^power
  local slot = first + 1 + math.min(power, HISTOGRAM_SLOTS - 2)
  observed[slot] = (observed[slot] or 0) + 1
  observed[first] = (observed[first] or 0) + math.max(value, 0)
end

local function write_observations()
  local adds = {}
  for slot, by in pairs(observed) do
    local n = #adds
    adds[n + 1], adds[n + 2], adds[n + 3], adds[n + 4] = 'INCRBY', 'i64', '#' .. slot, by
  end
  if #adds > 0 then redis.call('BITFIELD', ns .. 'histograms', unpack(adds)) end
end
