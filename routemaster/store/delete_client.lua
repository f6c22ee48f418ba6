#!lua flags=allow-oom
-- Delete a token, or a client with all of its tokens; with the last token the client goes. A client
-- that goes takes its subscriptions along, and its topics become unclaimed.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client or '', 3 digest of a token or ''
-- Returns 1, or 0 when there is no such thing.  Cost: O(topics + subscribers).
--@ use unsubscribe
local epoch, client, digest = ARGV[1], ARGV[2], ARGV[3]

local whole = redis.call('HEXISTS', ns .. 'clients', client) == 1
if not whole then client = redis.call('HGET', ns .. 'tokens', digest) end
if not client then return 0 end
local record = cjson.decode(redis.call('HGET', ns .. 'clients', client))
if not whole and #record.tokens > 1 then
  local left = {}
  for _, token in ipairs(record.tokens) do
    if token ~= digest then left[#left + 1] = token end
  end
  record.tokens = left
  redis.call('HSET', ns .. 'clients', client, cjson.encode(record))
  redis.call('HDEL', ns .. 'tokens', digest)
  changed(epoch, 'client', client)
  return 1
end
for _, token in ipairs(record.tokens) do redis.call('HDEL', ns .. 'tokens', token) end
redis.call('HDEL', ns .. 'clients', client)
for _, id in ipairs(redis.call('SMEMBERS', ns .. 'subscribers')) do
  if redis.call('HGET', ns .. 'subscriber:' .. id, 'client') == client then
    unsubscribe(id)
    changed(epoch, 'subscriber', id)
  end
end
for _, topic in ipairs(redis.call('SMEMBERS', ns .. 'topics')) do
  if redis.call('HGET', ns .. 'topic:' .. topic, 'publisher') == client then
    redis.call('HDEL', ns .. 'topic:' .. topic, 'publisher')
    changed(epoch, 'topic', topic)
  end
end
changed(epoch, 'client', client)
wake_workers()
return 1
