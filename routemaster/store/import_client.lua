#!lua
-- Find who stands for a client of the original, or make it, once: who was deleted here stays deleted.
--   import:clients  hash  digest of the name that somebody had there (a token) -> client
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client if it is new, 3 record (JSON), 4 digest of the client's name there, 5 digest of its
--       token: the same, or another one for somebody who has no token there and gets one that nobody knows
-- Returns {'new' or 'known', client}, or {'deleted'}.
--@ use clients
local epoch, client, record, name, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local known = redis.call('HGET', ns .. 'tokens', name) or redis.call('HGET', ns .. 'import:clients', name)
if known then
  if redis.call('HEXISTS', ns .. 'clients', known) == 0 then return {'deleted'} end
  redis.call('HSET', ns .. 'import:clients', name, known)
  return {'known', known}
end
if not add_client(client, record, digest) then return redis.error_reply('a client of this id is there') end
redis.call('HSET', ns .. 'import:clients', name, client)
changed(epoch, 'client', client)
return {'new', client}
