#!lua
-- Make a client with its first token, if neither is there yet.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client, 3 record (JSON), 4 digest of the token
-- Returns 1, or 0 when the token or the client is there already.
--@ use registry
local epoch, client, record, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HEXISTS', ns .. 'tokens', digest) == 1 or redis.call('HEXISTS', ns .. 'clients', client) == 1 then
  return 0
end
redis.call('HSET', ns .. 'clients', client, record)
redis.call('HSET', ns .. 'tokens', digest, client)
changed(epoch, 'client', client)
return 1
