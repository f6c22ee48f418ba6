#!lua flags=allow-oom
-- Use one count of a Digest nonce: each is good for one request, at whichever web process.
--   nonce:<nonce>  string  a bit for each count that was used; gone with the nonce
-- KEYS  1 namespace
-- ARGV  1 nonce, 2 count, 3 ms that the nonce can last
-- Returns 1, or 0 when it was used before.
--@ use clock
local key = ns .. 'nonce:' .. ARGV[1]
local was_used = redis.call('SETBIT', key, ARGV[2], 1)
redis.call('PEXPIRE', key, ARGV[3])
return 1 - was_used
