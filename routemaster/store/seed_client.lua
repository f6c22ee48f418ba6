#!lua
-- Make a client for a token that a setting names, once: a token that was deleted stays deleted.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client, 3 record (JSON), 4 digest of the token
-- Returns 1, or 0 when the token is there already or was named before.
--@ use clients
local epoch, client, record, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('SADD', ns .. 'tokens:seeded', digest) == 0 then return 0 end
if not add_client(client, record, digest) then return 0 end
changed(epoch, 'client', client)
return 1
