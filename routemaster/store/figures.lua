#!lua flags=no-writes
-- What the bus as a whole is doing, as numbers.
-- KEYS  1 namespace
-- ARGV  1 ms of silence after which a worker is dead, 2 how many queues, then the queues, then the logs
-- Returns {batches, workers alive, times that the idempotency window was cut short, histograms (as they are
-- kept), {{queue, scheduled, instant, pending}, …}, {{log, last seq, bytes, gaps}, …}}.  Cost: O(workers).
--@ use clock
local silence, queues = tonumber(ARGV[1]), tonumber(ARGV[2])
local FIRST = 3

local alive = 0
for _, seen in ipairs(redis.call('HVALS', ns .. 'workers')) do
  if now - seen < silence then alive = alive + 1 end
end

-- The index has jobs in any state, and the list of busy slots may have some that are busy no more: what is
-- neither scheduled nor ready is pending.
local jobs = {}
for i = FIRST, FIRST + queues - 1 do
  local scheduled = redis.call('ZCARD', ns .. 'jobs:scheduled:' .. ARGV[i])
  local instant = redis.call('LLEN', ns .. 'jobs:instant:' .. ARGV[i])
  local all = redis.call('SCARD', ns .. 'jobs:index:' .. ARGV[i])
  jobs[#jobs + 1] = {ARGV[i], scheduled, instant, math.max(0, all - scheduled - instant)}
end

local logs = {}
for i = FIRST + queues, #ARGV do
  local key = ns .. 'log:' .. ARGV[i]
  local bytes = (redis.call('GET', key .. ':bytes') or 0) - (redis.call('GET', key .. ':trimmed') or 0)
  logs[#logs + 1] = {ARGV[i], redis.call('GET', key .. ':seq') or '0', string.format('%.0f', bytes),
    redis.call('LLEN', key .. ':gaps')}
end

return {redis.call('ZCARD', ns .. 'batches:index'), alive,
  redis.call('HGET', ns .. 'counters', 'ids_cut_short') or '0',
  redis.call('GET', ns .. 'histograms') or '', jobs, logs}
