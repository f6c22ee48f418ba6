#!lua flags=allow-oom
-- What a web process routes by, and the epoch that it is true of: all of it, or, where the process's
-- last epoch is recent, only what has changed since.
-- KEYS  1 namespace
-- ARGV  1 the epoch that the process has, or ''; 2 the epoch to start with where there is none
-- Returns {epoch, 'all' or 'changes', clients, topics, subscribers}: pairs of a name and its record,
-- which is '' for what is gone.  Cost: O(registry), or O(changes).
--@ use registry
local known, first = ARGV[1], ARGV[2]

redis.call('SETNX', ns .. 'epoch', first)
local epoch = redis.call('GET', ns .. 'epoch')

local function read_client(id)
  return redis.call('HGET', ns .. 'clients', id) or ''
end

local function read_topic(name)
  if redis.call('SISMEMBER', ns .. 'topics', name) == 0 then return '' end
  return {redis.call('HGET', ns .. 'topic:' .. name, 'publisher') or ''}
end

local function read_subscriber(id)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'client', 'max_events', 'timeout',
    'incarnation', 'set', 'parallelism', 'format', 'match')
  if not s[1] then return '' end
  return {s[1], s[2], s[3], s[4], s[5], s[6], s[7] or '', s[8] or '', redis.call('SMEMBERS', ns .. 'topics:' .. id)}
end

local READ = {client = read_client, topic = read_topic, subscriber = read_subscriber}

local function since(list)
  local seen, found = {client = {}, topic = {}, subscriber = {}}, {client = {}, topic = {}, subscriber = {}}
  for _, entry in ipairs(list) do
    local change = cmsgpack.unpack(entry)
    if change[1] == known then return found end
    local kind, name = change[2], change[3]
    if not seen[kind][name] then
      seen[kind][name] = true
      found[kind][#found[kind] + 1] = {name, READ[kind](name)}
    end
  end
  return nil
end

local function everything()
  local found = {client = {}, topic = {}, subscriber = {}}
  local clients = redis.call('HGETALL', ns .. 'clients')
  for i = 1, #clients, 2 do found.client[#found.client + 1] = {clients[i], clients[i + 1]} end
  for _, name in ipairs(redis.call('SMEMBERS', ns .. 'topics')) do
    found.topic[#found.topic + 1] = {name, read_topic(name)}
  end
  for _, id in ipairs(redis.call('SMEMBERS', ns .. 'subscribers')) do
    found.subscriber[#found.subscriber + 1] = {id, read_subscriber(id)}
  end
  return found
end

local found = known == epoch and since({cmsgpack.pack({known})})
  or known ~= '' and since(redis.call('LRANGE', ns .. 'registry:changes', 0, CHANGES - 1))
local how = found and 'changes' or 'all'
found = found or everything()
return {epoch, how, found.client, found.topic, found.subscriber}
