#!lua flags=allow-oom
-- A worker says that it lives, and looks for what a lost wake-up may have left.
-- KEYS  1 namespace
-- ARGV  1 worker, then queues
-- Returns for each queue ms until the next look or -1.
--@ use take
redis.call('HSET', ns .. 'workers', ARGV[1], now)
local looks = {}
for i = 2, #ARGV do looks[#looks + 1] = next_look(ARGV[i]) end
return looks
