#!lua flags=allow-oom
-- Give a client a new token; those it has end after a grace, or at once.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client, 3 the new token (JSON), 4 its digest, 5 ms of grace
-- Returns 'done', 'unknown' (no such client) or 'taken' (the token).  Cost: O(tokens of the client).
--@ use clients
local epoch, client, token, digest, grace = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local record = read_client(client)
if not record then return 'unknown' end
if redis.call('HEXISTS', ns .. 'tokens', digest) == 1 then return 'taken' end
local left = MOST_TOKENS - 1
keep_tokens(record, function(old)
  left = left - 1
  return grace > 0 and left >= 0 and has_not_ended(old)
end)
for _, old in ipairs(record.tokens) do
  if old.ends_at == 0 or old.ends_at > now + grace then old.ends_at = now + grace end
  redis.call('ZADD', ns .. 'tokens:ending', old.ends_at, old.digest)
end
table.insert(record.tokens, 1, cjson.decode(token))
redis.call('HSET', ns .. 'tokens', digest, client)
write_client(client, record)
changed(epoch, 'client', client)
return 'done'
