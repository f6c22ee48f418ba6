#!lua flags=allow-oom
-- Delete a token, or a client with all of its tokens; with the last token the client goes. A client
-- that goes takes its subscriptions along, and its topics become unclaimed.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client or '', 3 digest of a token or ''
-- Returns 1, or 0 when there is no such thing.  Cost: O(topics + subscribers).
--@ use clients
--@ use unsubscribe
local epoch, client, digest = ARGV[1], ARGV[2], ARGV[3]

local record = read_client(client)
if not record then
  client = redis.call('HGET', ns .. 'tokens', digest)
  if not client then return 0 end
  record = read_client(client)
  keep_tokens(record, function(token) return token.digest ~= digest and has_not_ended(token) end)
  if #record.tokens > 0 then
    write_client(client, record)
    changed(epoch, 'client', client)
    return 1
  end
end
keep_tokens(record, function() return false end)
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
