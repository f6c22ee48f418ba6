#!lua
-- Make a client with its first token, if neither is there yet.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client, 3 record (JSON), 4 digest of the token
-- Returns 1, or 0 when the token or the client is there already.
--@ use clients
local epoch, client, record, digest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if not add_client(client, record, digest) then return 0 end
changed(epoch, 'client', client)
return 1
