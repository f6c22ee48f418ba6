#!lua
-- Take over a batch of the original, or a piece of a long one. Its events join the log, as accepted now, and the
-- lanes of its subscriber, behind what is there, with the attempts that they have had. All of that and the note
-- of how far the batch was taken are one step, so that who is killed in between takes nothing twice.
--   import:batches  hash  batch of the original -> how many of its messages were taken
-- KEYS  1 namespace
-- ARGV  1 the batch there, 2 how many of its messages were taken before and 3 are after this, 4 subscriber,
--       5 incarnation, 6 set and 7 parallelism of the lanes, 8 when it was created, 9 attempts,
--       10 'open' if it was still filling there, 11 generation candidate, 12 number of events, 13 how many of
--       each topic (JSON), 14 side columns (JSON), 15 received at (here, when their ids were made), then for each
--       lane: its number, the id of its new batch, number of events, these as they are delivered, separated by
--       ",\n", and as the lane wants them ('' if the same)
-- Returns 'done'; or, with nothing changed: 'elsewhere' (another import has taken more of it), 'moved' (the
-- lanes are others by now) or 'gone' (the subscription).  Cost: O(lanes + bytes).
--@ use batches
--@ use log
local bid, from, to, subscriber = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local incarnation, set, parallelism = ARGV[5], ARGV[6], ARGV[7]
local created_at, attempts, is_open, candidate = tonumber(ARGV[8]), ARGV[9], ARGV[10] == 'open', ARGV[11]
local count, counts, side, received_at = tonumber(ARGV[12]), ARGV[13], ARGV[14], ARGV[15]
local FIRST, WIDTH = 16, 5
local NO_LIMIT = 9007199254740992 -- of the log's bytes: the bus trims it by its own settings

if tonumber(redis.call('HGET', ns .. 'import:batches', bid) or 0) ~= from then return 'elsewhere' end
local s = redis.call('HMGET', ns .. 'subscriber:' .. subscriber,
  'incarnation', 'set', 'parallelism', 'max_events', 'timeout')
if not s[1] then return 'gone' end
if s[1] ~= incarnation or s[2] ~= set or s[3] ~= parallelism then return 'moved' end
created_at = math.min(created_at, now)

-- A batch that is still filling here is sealed first: it is older for this lane, and stays ahead.
local function put(n, new_bid, generation, first_seq, events, text)
  local lane = lanes_of(subscriber, incarnation, set, parallelism)[n + 1]
  local key = ns .. 'batch:' .. new_bid
  local current = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
  if current then seal(lane, current) end
  redis.call('RPUSH', key, lane, created_at, attempts, generation, '', events,
    struct.pack('>I8I4', first_seq, events) .. text)
  redis.call('ZADD', ns .. 'batches:index', created_at, new_bid)
  local stays = is_open and events < tonumber(s[4])
  if stays then redis.call('SADD', ns .. 'batches:current:' .. lane, new_bid) else seal(lane, new_bid) end
  redis.call('HINCRBY', ns .. 'batches:gauges:batch', subscriber, 1)
  if redis.call('LLEN', ns .. 'batches:ready:' .. lane) > 0 then
    rouse(lane)
  else
    local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'waiting', 'not_before')
    if not l[1] then enqueue(MAIN, deliver_job(lane), math.max(tonumber(l[2] or 0), created_at + tonumber(s[5]))) end
  end
end

redis.call('HSET', ns .. 'import:batches', bid, to)
if count > 0 then
  local generation = generation_of('events', candidate)
  local lines = {}
  for i = FIRST, #ARGV, WIDTH do lines[#lines + 1] = ARGV[i + 3] end
  local seq = append_block('events', generation, count, received_at, counts, side, table.concat(lines, SEPARATOR), NO_LIMIT)
  for topic, n in pairs(cjson.decode(counts)) do
    redis.call('HINCRBY', ns .. 'counters', 'accepted:' .. topic, n)
  end
  for i = FIRST, #ARGV, WIDTH do
    local events, text = tonumber(ARGV[i + 2]), ARGV[i + 4] ~= '' and ARGV[i + 4] or ARGV[i + 3]
    put(tonumber(ARGV[i]), ARGV[i + 1], generation, seq, events, text)
    seq = seq + events
  end
  redis.call('HINCRBY', ns .. 'batches:gauges:event', subscriber, count)
  redis.call('HINCRBY', ns .. 'counters', 'routed:' .. subscriber, count)
end
wake_workers()
return 'done'
