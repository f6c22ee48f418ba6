--@ use jobs
-- Batches and lanes.
--   batch:<bid>              list  lane, created at, attempts, generation, sequence ('' until it is
--                                  sealed), number of events, then runs of events: the log seq of the
--                                  first (8 bytes), how many (4 bytes), and the events as they are
--                                  delivered, separated by ",\n". Seqs within a run are consecutive,
--                                  so a drop, a refill and a trace can name every event.
--   batches:current:<lane>   set   the batch that takes new events
--   batches:ready:<lane>     list  sealed batches, oldest first; the head stays until it is settled
--   batches:replay:<lane>    list  the same for replayed ones, served when nothing is ready
--   lane:<lane>              hash  fence, batch, slot, lease, source: the batch in the air;
--                                  sequence: the last given;
--                                  not_before, why: it rests until then; held: only what is replayed
--                                  is served; waiting: for an older set to empty
--   batches:dead:<subscriber>#<incarnation>  zset  batches that were given up, by when
--   batches:dead:why:<subscriber>#<incarnation>  hash  batch -> JSON {attempts, why, code}
--   draining:<subscriber>#<incarnation>  hash  set -> batches left in it, and <set>:lanes, for sets
--                                  that a newer one waits for
-- A lane is named <subscriber>#<incarnation>.<set>.<n>.
local HEADER = 6
local SEPARATOR = ',\n'
local MAIN = 'main'

local function subscriber_of(lane) return string.match(lane, '^(.*)#') end
local function incarnation_of(lane) return string.match(lane, '#([^.]*)%.') end
local function set_of(lane) return string.match(lane, '%.(%d+)%.%d+$') end
local function subscription_of(lane) return string.match(lane, '^(.*#[^.]*)%.') end

local function dead_key(subscription) return ns .. 'batches:dead:' .. subscription end
local function why_key(subscription) return ns .. 'batches:dead:why:' .. subscription end

local function draining_key(subscriber, incarnation)
  return ns .. 'draining:' .. subscriber .. '#' .. incarnation
end

local function lanes_of(subscriber, incarnation, set, parallelism)
  local lanes = {}
  for n = 0, tonumber(parallelism) - 1 do
    lanes[#lanes + 1] = subscriber .. '#' .. incarnation .. '.' .. set .. '.' .. n
  end
  return lanes
end

-- The lanes of a subscription: those that take new events, and those of sets that are not empty yet.
local function all_lanes(id, incarnation, set, parallelism)
  local lanes = lanes_of(id, incarnation, set, parallelism)
  local draining = redis.call('HGETALL', draining_key(id, incarnation))
  for i = 1, #draining, 2 do
    local old = string.match(draining[i], '^(%d+):lanes$')
    if old then
      for _, lane in ipairs(lanes_of(id, incarnation, old, draining[i + 1])) do lanes[#lanes + 1] = lane end
    end
  end
  return lanes
end

local function events_in(bid)
  return tonumber(redis.call('LINDEX', ns .. 'batch:' .. bid, 5) or 0)
end

-- When the oldest batch of a lane was begun; nil when it has none.
local function oldest_in(lane)
  local bid = redis.call('LINDEX', ns .. 'batches:ready:' .. lane, 0)
    or redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
  return bid and tonumber(redis.call('LINDEX', ns .. 'batch:' .. bid, 1) or nil)
end

local function seal(lane, bid)
  redis.call('SREM', ns .. 'batches:current:' .. lane, bid)
  redis.call('LSET', ns .. 'batch:' .. bid, 4, redis.call('HINCRBY', ns .. 'lane:' .. lane, 'sequence', 1))
  redis.call('RPUSH', ns .. 'batches:ready:' .. lane, bid)
end

-- When the lane next has something to send: a time, or nil for never. `rest` is its not_before.
local function due_at(lane, timeout, max, held, rest)
  local at
  if held then
    at = redis.call('LLEN', ns .. 'batches:replay:' .. lane) > 0 and now or nil
  elseif redis.call('LLEN', ns .. 'batches:ready:' .. lane) > 0 then
    at = now
  else
    local current = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    if current then
      at = redis.call('LINDEX', ns .. 'batch:' .. current, 1) + timeout
      if events_in(current) >= max then at = now end
    end
    if (not at or at > now) and redis.call('LLEN', ns .. 'batches:replay:' .. lane) > 0 then at = now end
  end
  if at and rest > at then return rest end
  return at
end

-- File a lane's job, which is in the index, for when the lane is next due; or retire it.
local function refile(job, lane, timeout, max, held, rest)
  local at = due_at(lane, timeout, max, held, rest)
  if at then file_job(MAIN, job, at) else retire_job(MAIN, job) end
end

-- Something that was sealed waits in the lane: its job runs as soon as the lane may.
local function rouse(lane)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'waiting', 'not_before')
  if l[1] then return end
  local job, rest = deliver_job(lane), tonumber(l[2] or 0)
  enqueue(MAIN, job, math.max(now, rest))
  if rest <= now then hasten(MAIN, job) end
end

-- The older set is empty: the lanes that waited for it start.
local function release_set(subscriber, set)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. subscriber,
    'incarnation', 'set', 'parallelism', 'timeout', 'max_events')
  if not s[1] then return end
  local parallelism = s[3]
  if set ~= s[2] then parallelism = redis.call('HGET', draining_key(subscriber, s[1]), set .. ':lanes') end
  for _, lane in ipairs(lanes_of(subscriber, s[1], set, parallelism)) do
    redis.call('HDEL', ns .. 'lane:' .. lane, 'waiting')
    local at = due_at(lane, tonumber(s[4]), tonumber(s[5]), false, 0)
    if at then enqueue(MAIN, deliver_job(lane), at) end
  end
end

-- A batch of a set that a newer one waits for is gone, whatever took it.
local function drain(lane)
  local subscriber, set = subscriber_of(lane), set_of(lane)
  local key = draining_key(subscriber, incarnation_of(lane))
  if redis.call('HINCRBY', key, set, -1) > 0 then return end
  local lanes = redis.call('HGET', key, set .. ':lanes')
  for _, old in ipairs(lanes_of(subscriber, incarnation_of(lane), set, lanes)) do
    redis.call('DEL', ns .. 'lane:' .. old)
  end
  redis.call('HDEL', key, set, set .. ':lanes')
  local next_set = redis.call('HGET', ns .. 'subscriber:' .. subscriber, 'set')
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if tonumber(field) and tonumber(field) < tonumber(next_set) then next_set = field end
  end
  release_set(subscriber, next_set)
end

-- A batch is no longer queued: what counts it, and who waits for its set. The caller has taken it out of
-- its list.
local function leave_lane(lane, events)
  local subscriber = subscriber_of(lane)
  redis.call('HINCRBY', ns .. 'batches:gauges:event', subscriber, -events)
  redis.call('HINCRBY', ns .. 'batches:gauges:batch', subscriber, -1)
  if redis.call('HEXISTS', draining_key(subscriber, incarnation_of(lane)), set_of(lane)) == 1 then drain(lane) end
end

local function delete_batch(bid)
  redis.call('DEL', ns .. 'batch:' .. bid)
  redis.call('ZREM', ns .. 'batches:index', bid)
end

-- Delete a batch and what counts it; the caller has taken it out of its list. Returns its events, and when
-- it was begun.
local function forget_batch(lane, bid)
  local head = redis.call('LRANGE', ns .. 'batch:' .. bid, 1, 5)
  local events = tonumber(head[5] or 0)
  delete_batch(bid)
  leave_lane(lane, events)
  return events, tonumber(head[1])
end

-- Give a batch up: it leaves its lane for the dead letters, where it can be looked at and sent again.
local function bury(lane, bid, detail)
  local subscription, events = subscription_of(lane), events_in(bid)
  redis.call('ZADD', dead_key(subscription), now, bid)
  redis.call('HSET', why_key(subscription), bid, detail)
  redis.call('HINCRBY', ns .. 'batches:gauges:dead', subscriber_of(lane), events)
  redis.call('HINCRBY', ns .. 'counters', 'dead:' .. subscriber_of(lane), events)
  leave_lane(lane, events)
end

-- Take a batch out of the dead letters. Returns its events, or nil when it is not there.
local function exhume(subscription, bid)
  if redis.call('ZREM', dead_key(subscription), bid) == 0 then return nil end
  redis.call('HDEL', why_key(subscription), bid)
  local events = events_in(bid)
  redis.call('HINCRBY', ns .. 'batches:gauges:dead', subscriber_of(subscription), -events)
  return events
end
