#!lua flags=allow-oom
-- A worker says that it lives, and looks for what a lost wake-up may have left.
-- KEYS  1 namespace
-- ARGV  1 worker, 2 queue
-- Returns ms until the next look or -1.
--@ use take
redis.call('HSET', ns .. 'workers', ARGV[1], now)
return next_look(ARGV[2])
