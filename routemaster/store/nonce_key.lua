#!lua flags=allow-oom
-- What all web processes sign Digest nonces with, made by the first that asks.
--   nonces  string  random bytes
-- KEYS  1 namespace
-- ARGV  1 a candidate
-- Returns the key.
--@ use clock
redis.call('SETNX', ns .. 'nonces', ARGV[1])
return redis.call('GET', ns .. 'nonces')
