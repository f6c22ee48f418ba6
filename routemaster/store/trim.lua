#!lua flags=allow-oom
-- Take the oldest blocks off a log, by age and size, recording what went as a gap.
-- KEYS  1 namespace
-- ARGV  1 log, 2 most age ms, 3 most bytes, 4 most blocks in one call
-- Returns how many blocks went.
--@ use log
return trim_log(ARGV[1], now - ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
