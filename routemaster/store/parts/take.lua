--@ use batches
-- Taking a job for a slot: what acquire and settle end with.
--   jobs:pending:<q>:<slot>  list  the one job that the slot works on
--   jobs:pending:index:<q>   set   slots that may have one; cleaned by scrub
-- What is taken is answered as {slot, name, …}: for a delivery the lane, batch, attempt, generation,
-- sequence, source, created at, events, callback, uuid, timeout, health points, format, headers and
-- signing secrets ('' where there are none), and the runs.
local STALE_JOBS = 100
local MOST_BYTES = 4 * 1048576 -- of one call; who gets nothing for it asks again
local LATE = 50 -- ms
local taken_bytes = 0
local indexed = {} -- slots that are known to be in the index: only scrub takes them out

local function pending_key(q, slot) return ns .. 'jobs:pending:' .. q .. ':' .. slot end

local function hand_over(q, job, slot)
  redis.call('RPUSH', pending_key(q, slot), job)
  if not indexed[slot] then redis.call('SADD', ns .. 'jobs:pending:index:' .. q, slot) end
end

-- Answers a batch that is in the air; one more attempt is counted unless it was shown before.
local function show_batch(slot, lane, bid, source, subscriber, is_again)
  local key = ns .. 'batch:' .. bid
  local batch = redis.call('LRANGE', key, 0, -1)
  if not is_again then
    batch[3] = batch[3] + 1
    redis.call('LSET', key, 2, batch[3])
  end
  local shown = {slot, 'deliver', lane, bid, batch[3], batch[4], batch[5], source, batch[2], batch[6],
    subscriber.callback, subscriber.uuid, subscriber.timeout, subscriber.health,
    subscriber.format, subscriber.headers, subscriber.secrets}
  for i = HEADER + 1, #batch do
    shown[#shown + 1] = batch[i]
    taken_bytes = taken_bytes + #batch[i]
  end
  return shown
end

local subscribers = {} -- those that were read in this call

local function read_subscriber(id)
  if subscribers[id] then return subscribers[id] end
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id,
    'incarnation', 'timeout', 'max_events', 'paused', 'callback', 'uuid', 'health_points',
    'format', 'headers', 'secrets', 'max_attempts', 'max_rate', 'rate_at', 'rate_line')
  if not s[1] then return nil end
  subscribers[id] = {incarnation = s[1], timeout = tonumber(s[2]), max = tonumber(s[3]), paused = s[4] == '1',
    callback = s[5], uuid = s[6], health = tonumber(s[7]), format = s[8] or '', headers = s[9] or '',
    secrets = s[10] or '', max_attempts = s[11] and tonumber(s[11]), rate = s[12] and tonumber(s[12]),
    rate_at = tonumber(s[13] or 0), rate_line = tonumber(s[14] or 0)}
  return subscribers[id]
end

-- When a lane of a subscriber with a rate may look again; 0 when it may go now. Its lanes stand in line, one
-- behind the other: if all looked again at the same moment, the first by name would always be the one to go.
-- Who has no place in line goes only where nobody else is told to come for this turn.
local function rate_rest(id, subscriber, has_place)
  local step, line = 1000 / subscriber.rate, subscriber.rate_line
  local others = not has_place and line > subscriber.rate_at - step / 2 and line > now - LATE
  if subscriber.rate_at <= now and not others then return 0 end
  subscriber.rate_line = math.max(line + step, subscriber.rate_at)
  redis.call('HSET', ns .. 'subscriber:' .. id, 'rate_line', string.format('%.3f', subscriber.rate_line))
  return math.ceil(subscriber.rate_line)
end

-- A delivery starts. What a rate loses by waking late it may make up for, but no more than that.
local function note_attempt(id, subscriber)
  if subscriber.rate then
    subscriber.rate_at = math.max(subscriber.rate_at, now - LATE) + 1000 / subscriber.rate
    redis.call('HSET', ns .. 'subscriber:' .. id, 'last_attempted_at', now,
      'rate_at', string.format('%.3f', subscriber.rate_at))
  else
    redis.call('HSET', ns .. 'subscriber:' .. id, 'last_attempted_at', now)
  end
end

-- The lane's batch is no longer in the air; other fields of the lane may go with it.
local function land(lane, ...)
  redis.call('HDEL', ns .. 'lane:' .. lane, 'fence', 'batch', 'slot', 'lease', 'source', ...)
end

local function rest_until(lane, at, why)
  redis.call('HSET', ns .. 'lane:' .. lane, 'not_before', at, 'why', why)
end

-- The batch in the air is done with: file the lane's job for what is next.
local function go_on(lane, bid, subscriber, source, held)
  redis.call('LREM', ns .. 'batches:' .. source .. ':' .. lane, 1, bid)
  land(lane, 'not_before', 'why')
  refile(deliver_job(lane), lane, subscriber.timeout, subscriber.max, held, 0)
end

-- The batch in the air goes to the dead letters.
local function give_up(lane, bid, subscriber, source, held, detail)
  go_on(lane, bid, subscriber, source, held)
  bury(lane, bid, cjson.encode(detail))
end

-- The same where nobody can say how its last attempt went, and there may be no other one.
local function give_up_if_spent(lane)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'batch', 'source', 'held')
  local subscriber = read_subscriber(subscriber_of(lane))
  local attempts = tonumber(redis.call('LINDEX', ns .. 'batch:' .. l[1], 2) or 0)
  if not subscriber or not subscriber.max_attempts or attempts < subscriber.max_attempts then return false end
  give_up(lane, l[1], subscriber, l[2], l[3], {attempts = attempts, why = 'scrubbed', code = 0})
  return true
end

-- The batch that is next in the lane, sealed; or nil.
local function next_batch(lane, subscriber, held)
  if not held then
    local bid = redis.call('LINDEX', ns .. 'batches:ready:' .. lane, 0)
    if bid then return bid, 'ready' end
    local current = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    if current then
      local key = ns .. 'batch:' .. current
      if redis.call('LINDEX', key, 1) + subscriber.timeout <= now
        or events_in(current) >= subscriber.max then
        seal(lane, current)
        return current, 'ready'
      end
    end
  end
  local bid = redis.call('LINDEX', ns .. 'batches:replay:' .. lane, 0)
  if bid then return bid, 'replay' end
end

-- Start a delivery for this lane's job, or put the job where it belongs and answer nil.
local function start_delivery(job, lane, slot, fence, lease)
  local id = subscriber_of(lane)
  local subscriber = read_subscriber(id)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'waiting', 'not_before', 'held', 'why')
  if not subscriber or subscriber.incarnation ~= incarnation_of(lane) or subscriber.paused or l[1] then
    retire_job(MAIN, job)
    return nil
  end
  local rest = tonumber(l[2] or 0)
  if rest > now then
    file_job(MAIN, job, rest)
    return nil
  end
  -- Only who has something to send takes a place in line; and it takes more in until it is its turn.
  local at = subscriber.rate and due_at(lane, subscriber.timeout, subscriber.max, l[3], 0)
  rest = at and at <= now and rate_rest(id, subscriber, l[4] == 'rate') or 0
  if rest > 0 then
    rest_until(lane, rest, 'rate')
    file_job(MAIN, job, rest)
    return nil
  end
  local bid, source = next_batch(lane, subscriber, l[3])
  if not bid then
    refile(job, lane, subscriber.timeout, subscriber.max, l[3], 0)
    return nil
  end
  redis.call('HSET', ns .. 'lane:' .. lane,
    'fence', fence, 'batch', bid, 'slot', slot, 'lease', now + lease, 'source', source)
  note_attempt(id, subscriber)
  hand_over(MAIN, job, slot)
  return show_batch(slot, lane, bid, source, subscriber)
end

local function take(q, slot, fence, lease)
  if taken_bytes > MOST_BYTES then return nil end
  for _ = 1, STALE_JOBS do
    local job = redis.call('LPOP', ns .. 'jobs:instant:' .. q)
    if not job then return nil end
    local name, args = unpack(cmsgpack.unpack(job))
    if name == 'deliver' then
      local taken = start_delivery(job, args[1], slot, fence, lease)
      if taken then return taken end
    else
      hand_over(q, job, slot)
      return {slot, name}
    end
  end
  wake(q, 0)
  return nil
end

-- What the slot holds already, if that was taken with this same fence: the answer was lost. With
-- another fence: nil, its job, and the lane where the slot has that.
local function held_with(q, slot, fence)
  local job = redis.call('LINDEX', pending_key(q, slot), 0)
  if not job then return nil end
  local name, args = unpack(cmsgpack.unpack(job))
  if name ~= 'deliver' then return nil, job end
  local l = redis.call('HMGET', ns .. 'lane:' .. args[1], 'fence', 'batch', 'source', 'slot')
  if l[4] ~= slot then return nil, job end
  local subscriber = read_subscriber(subscriber_of(args[1]))
  if subscriber and l[1] == fence then return show_batch(slot, args[1], l[2], l[3], subscriber, true) end
  return nil, job, args[1]
end

-- A job taken with another fence (the slot's process was started anew) goes back to the head.
local function take_again(q, slot, fence, lease)
  local held, job, lane = held_with(q, slot, fence)
  if held then return held end
  if job then
    redis.call('DEL', pending_key(q, slot))
    if not lane or not give_up_if_spent(lane) then
      if lane then land(lane) end
      redis.call('LPUSH', ns .. 'jobs:instant:' .. q, job)
    end
  end
  return take(q, slot, fence, lease)
end

-- In how many milliseconds the next scheduled job is due; -1 when there is none.
local function next_look(q)
  if redis.call('LLEN', ns .. 'jobs:instant:' .. q) > 0 then return 0 end
  local first = redis.call('ZRANGE', ns .. 'jobs:scheduled:' .. q, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end
