#!lua flags=allow-oom
-- A delivery failed: the batch stays at the head of its lane, and the lane rests for a while.
-- Invariant: as for ack; the order of the lane does not change.
-- KEYS  1 namespace
-- ARGV  1 slot, 2 lane, 3 batch, 4 fence, 5 next fence or '', 6 lease ms, 7 generation candidate,
--       8 delivery record (JSON), 9 most bytes of the deliveries log, 10 delay ms, 11 why
-- Returns {'done' or 'old', ms until the next look or -1, taken or nil}.
--@ use settle
local slot, lane, bid, fence, next_fence = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, candidate, record, max_bytes = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])
local delay, why = tonumber(ARGV[10]), ARGV[11]

local settled = holds(lane, bid, fence)
if settled then
  local id = subscriber_of(lane)
  land(lane, slot, fence)
  redis.call('HSET', ns .. 'lane:' .. lane, 'not_before', now + delay, 'why', why)
  change_health(id, -2)
  file_job(MAIN, deliver_job(lane), now + delay)
  redis.call('HINCRBY', ns .. 'counters', 'failed:' .. id, 1)
  record_delivery(candidate, record, max_bytes)
end
local taken = take_next(slot, next_fence, lease)
local look = taken and 0 or next_look(MAIN)
wake_workers()
return {settled and 'done' or 'old', look, taken}
