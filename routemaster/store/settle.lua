#!lua flags=allow-oom
-- Deliveries have ended: settle each, then give each slot its next job in the same breath.
-- Delivered: the batch is deleted and the lane's job filed again if anything remains, at the end of
-- the line, so that with more lanes than slots each gets its turns. Failed: the batch stays at the
-- head of its lane, and the lane rests for a while; after the last attempt that its subscriber allows it
-- goes to the dead letters.
-- Invariant: only the holder of a fence changes anything, and the order of a lane never changes; a
-- call that is sent again changes nothing and gets the same jobs.
-- KEYS  1 namespace
-- ARGV  1 lease ms, 2 generation candidate, 3 most bytes of the deliveries log, then for each
--       delivery: slot, lane, batch, fence, next fence or '' (the worker is leaving), delay ms or ''
--       when it was delivered, why it failed, how many ms the attempt took, its record for the log (JSON)
-- Returns {ms until the next look or -1, {'done' or 'old', …}, taken, …}.
-- Cost: O(deliveries + bytes of what is taken).
--@ use take
--@ use log
--@ use histograms
local lease, candidate, max_bytes = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local FIRST, WIDTH = 4, 9

local function change_health(id, subscriber, by)
  local changed = math.max(0, math.min(100, subscriber.health + by))
  if changed ~= subscriber.health then
    subscriber.health = changed
    redis.call('HSET', ns .. 'subscriber:' .. id, 'health_points', changed)
  end
end

local function delivered(lane, bid, id, subscriber, l)
  change_health(id, subscriber, 1)
  go_on(lane, bid, subscriber, l[3], l[4])
  local events, created_at = forget_batch(lane, bid)
  redis.call('HINCRBY', ns .. 'counters', 'delivered:' .. id, events)
  observe(LATENCY_MS, now - created_at)
end

local function failed(lane, bid, id, subscriber, l, delay, why, record)
  change_health(id, subscriber, -2)
  redis.call('HINCRBY', ns .. 'counters', 'failed:' .. id, 1)
  local attempts = tonumber(redis.call('LINDEX', ns .. 'batch:' .. bid, 2))
  if subscriber.max_attempts and attempts >= subscriber.max_attempts then
    local detail = {attempts = attempts, why = why, code = cjson.decode(record).code or 0}
    return give_up(lane, bid, subscriber, l[3], l[4], detail)
  end
  land(lane)
  rest_until(lane, now + delay, why)
  file_job(MAIN, deliver_job(lane), now + delay)
end

-- Returns 'done', or 'old' when somebody else has the lane by now or its subscription is gone.
local function settle(slot, lane, bid, fence, delay, why, record)
  local id = subscriber_of(lane)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'fence', 'batch', 'source', 'held')
  local subscriber = read_subscriber(id)
  if l[1] ~= fence or l[2] ~= bid or not subscriber then return 'old' end
  redis.call('DEL', pending_key(MAIN, slot))
  indexed[slot] = true
  if delay == '' then
    delivered(lane, bid, id, subscriber, l)
  else
    failed(lane, bid, id, subscriber, l, tonumber(delay), why, record)
  end
  return 'done'
end

local outcomes, records = {}, {}
for i = FIRST, #ARGV, WIDTH do
  local outcome = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 5], ARGV[i + 6],
    ARGV[i + 8])
  outcomes[#outcomes + 1] = outcome
  if outcome == 'done' then
    records[#records + 1] = ARGV[i + 8]
    observe(ATTEMPT_MS, tonumber(ARGV[i + 7]))
  end
end
write_observations()
if #records > 0 then
  append_block('deliveries', generation_of('deliveries', candidate), #records, now, '{}', '[]',
    table.concat(records, SEPARATOR), max_bytes)
end

-- A slot whose fence was old may have its next job already (this call is sent again), or have been
-- given to a process that was started in this one's place: that one's job stays where it is.
local function take_if_free(q, slot, fence)
  local held, job = held_with(q, slot, fence)
  if held or job then return held end
  return take(q, slot, fence, lease)
end

promote(MAIN, #outcomes)
local answer = {0, outcomes}
for n, outcome in ipairs(outcomes) do
  local at = FIRST + (n - 1) * WIDTH
  local slot, fence = ARGV[at], ARGV[at + 4]
  local take_one = outcome == 'done' and take or take_if_free
  local taken = fence ~= '' and take_one(MAIN, slot, fence, lease)
  if taken then answer[#answer + 1] = taken end
end
answer[1] = next_look(MAIN)
-- What was filed above may be taken by now.
if wake_in[MAIN] then wake_in[MAIN] = answer[1] >= 0 and answer[1] or nil end
wake_workers()
return answer
