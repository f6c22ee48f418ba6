#!lua
-- Make a subscription, or change one that is there: its list of topics is replaced, its lanes and
-- what is queued in them stay. An unknown topic is created unclaimed. A change of parallelism seals
-- what is current and sends new events to a new set of lanes, which starts when the old one is empty.
-- A lower max splits what is current; where that is much, some of it a call, before anything else changes.
-- A new signing secret comes first; the one before it goes on for a while, so that receivers can change.
-- The channel dialect only adds: topics must be there, and of a subscription that is there nothing else
-- changes. A call that changes nothing keeps the epoch.
-- KEYS  1 namespace
-- ARGV  1 new epoch (the 1,000 UIDs after it are for batches), 2 subscriber, 3 client,
--       4 incarnation if it is new, 5 parallelism,
--       6 fields (msgpack [name, value, …] without those above; '' takes one away),
--       7 signing secret ('' to keep it, '-' for none), 8 ms that the one before it goes on,
--       9 'replace' or 'add', 10 digest of the token that it is asked with ('' for none), then the topics
-- Returns 'changed', 'same', 'gone' (the client), 'taken' (the id is another client's), 'unknown' (a
-- topic) or 'split' (there is more of it: call again).  Cost: O(topics + lanes), and where max is lower
-- O(bytes of what is current).
--@ use batches
--@ use registry
--@ use split
local MOST_SPLIT = 1000 -- new batches a call: about 10 ms
local epoch, id, client, incarnation, parallelism = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local fields, secret, grace, adds = cmsgpack.unpack(ARGV[6]), ARGV[7], tonumber(ARGV[8]), ARGV[9] == 'add'
local token, FIRST_TOPIC = ARGV[10], 11
local key = ns .. 'subscriber:' .. id
local dirty = false

local function set_field(name, value)
  if value == '' then
    if redis.call('HDEL', key, name) == 1 then dirty = true end
  elseif redis.call('HGET', key, name) ~= tostring(value) then
    redis.call('HSET', key, name, value)
    dirty = true
  end
end

local function set_secret()
  if secret == '-' then return set_field('secrets', '') end
  local known = cjson.decode(redis.call('HGET', key, 'secrets') or '[]')
  if known[1] and known[1][1] == secret then return end
  local secrets = {{secret, 0}}
  if known[1] and grace > 0 then secrets[2] = {known[1][1], now + grace} end
  set_field('secrets', cjson.encode(secrets))
end

local function wanted_max()
  for i = 1, #fields, 2 do
    if fields[i] == 'max_events' then return tonumber(fields[i + 1]) end
  end
end

-- A new rate holds from now on: what the one before it kept waiting looks again.
local function forget_rate()
  redis.call('HDEL', key, 'rate_at', 'rate_line')
  for _, lane in ipairs(all_lanes(id, incarnation, redis.call('HGET', key, 'set'), parallelism)) do
    if redis.call('HGET', ns .. 'lane:' .. lane, 'why') == 'rate' then
      redis.call('HDEL', ns .. 'lane:' .. lane, 'not_before', 'why')
      hasten(MAIN, deliver_job(lane))
    end
  end
end

-- Seal what is current in the set, and make the new set wait if anything is left in the old one.
local function change_set(old_set, old_parallelism)
  local left = 0
  for _, lane in ipairs(lanes_of(id, incarnation, old_set, old_parallelism)) do
    local current = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    if current then
      seal(lane, current)
      rouse(lane)
    end
    left = left + redis.call('LLEN', ns .. 'batches:ready:' .. lane)
      + redis.call('LLEN', ns .. 'batches:replay:' .. lane)
  end
  local new_set = tostring(old_set + 1)
  if left > 0 then
    redis.call('HSET', draining_key(id, incarnation), old_set, left, old_set .. ':lanes', old_parallelism)
  else
    for _, lane in ipairs(lanes_of(id, incarnation, old_set, old_parallelism)) do
      redis.call('DEL', ns .. 'lane:' .. lane)
    end
  end
  if redis.call('EXISTS', draining_key(id, incarnation)) == 1 then
    for _, lane in ipairs(lanes_of(id, incarnation, new_set, parallelism)) do
      redis.call('HSET', ns .. 'lane:' .. lane, 'waiting', 1)
    end
  end
  redis.call('HSET', key, 'set', new_set, 'parallelism', parallelism)
  dirty = true
end

-- The token too: its callback was looked up since who asks was.
if redis.call('HEXISTS', ns .. 'clients', client) == 0
  or (token ~= '' and redis.call('HEXISTS', ns .. 'tokens', token) == 0) then return 'gone' end
local known = redis.call('HMGET', key, 'incarnation', 'set', 'parallelism', 'client')
if known[4] and known[4] ~= client then return 'taken' end
if adds then
  for i = FIRST_TOPIC, #ARGV do
    if redis.call('SISMEMBER', ns .. 'topics', ARGV[i]) == 0 then return 'unknown' end
  end
end
local is_new = not known[1]
if known[1] then
  incarnation = known[1]
  if adds then
    parallelism = known[3]
  else
    local lanes = lanes_of(id, incarnation, known[2], known[3])
    if not split_current(lanes, wanted_max(), epoch, MOST_SPLIT) then return 'split' end
    if known[3] ~= parallelism then change_set(known[2], known[3]) end
  end
else
  redis.call('HSET', key, 'client', client, 'incarnation', incarnation, 'set', 1,
    'parallelism', parallelism, 'health_points', 100)
  redis.call('SADD', ns .. 'subscribers', id)
  dirty = true
end
if is_new or not adds then
  local rate = redis.call('HGET', key, 'max_rate')
  for i = 1, #fields, 2 do set_field(fields[i], fields[i + 1]) end
  if redis.call('HGET', key, 'max_rate') ~= rate then forget_rate() end
  if secret ~= '' then set_secret() end
end

local wanted = {}
for i = FIRST_TOPIC, #ARGV do wanted[ARGV[i]] = true end
for _, topic in ipairs(redis.call('SMEMBERS', ns .. 'topics:' .. id)) do
  if not wanted[topic] and not adds then
    redis.call('SREM', ns .. 'topics:' .. id, topic)
    redis.call('SREM', ns .. 'subscribers:' .. topic, id)
    dirty = true
  end
end
for topic in pairs(wanted) do
  if redis.call('SADD', ns .. 'topics', topic) == 1 then
    redis.call('HSETNX', ns .. 'topic:' .. topic, 'counter', 0)
    changed(epoch, 'topic', topic)
  end
  if redis.call('SADD', ns .. 'topics:' .. id, topic) == 1 then
    redis.call('SADD', ns .. 'subscribers:' .. topic, id)
    dirty = true
  end
end
if dirty then
  changed(epoch, 'subscriber', id)
  -- A shorter timeout or a smaller batch may make what is current due: look again.
  local set = redis.call('HGET', key, 'set')
  for _, lane in ipairs(lanes_of(id, incarnation, set, parallelism)) do hasten(MAIN, deliver_job(lane)) end
end
wake_workers()
return dirty and 'changed' or 'same'
