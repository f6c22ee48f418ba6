#!lua flags=allow-oom
-- A batch was delivered: delete it, file the lane's job if anything remains, and give the slot its
-- next job in the same breath. A lane that is still busy goes to the end of the line, so that with
-- more lanes than slots each gets its turns; alone, it gets its own next batch.
-- Invariant: only the holder of the fence changes anything; a repeated ack gets the same answer.
-- KEYS  1 namespace
-- ARGV  1 slot, 2 lane, 3 batch, 4 fence, 5 next fence or '', 6 lease ms, 7 generation candidate,
--       8 delivery record (JSON), 9 most bytes of the deliveries log
-- Returns {'done' or 'old', ms until the next look or -1, taken or nil}.  Cost: O(events of a batch).
--@ use settle
local slot, lane, bid, fence, next_fence = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, candidate, record, max_bytes = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])

local settled = holds(lane, bid, fence)
if settled then
  local id = subscriber_of(lane)
  local source = redis.call('HGET', ns .. 'lane:' .. lane, 'source')
  redis.call('LREM', ns .. 'batches:' .. source .. ':' .. lane, 1, bid)
  land(lane, slot, fence)
  change_health(id, 1)
  local subscriber = read_subscriber(id)
  local held = redis.call('HGET', ns .. 'lane:' .. lane, 'held')
  refile(deliver_job(lane), lane, tonumber(subscriber.timeout), subscriber.max, held, 0)
  redis.call('HINCRBY', ns .. 'counters', 'delivered:' .. id, forget_batch(lane, bid))
  record_delivery(candidate, record, max_bytes)
end
local taken = take_next(slot, next_fence, lease)
local look = taken and 0 or next_look(MAIN)
wake_workers()
return {settled and 'done' or 'old', look, taken}
