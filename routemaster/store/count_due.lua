#!lua flags=no-writes
-- How many jobs are due within a while: ready now, or scheduled until then.
-- KEYS  1 namespace
-- ARGV  1 ms, then queues
-- Returns how many.  Cost: O(log of what is scheduled).
--@ use clock
local due = 0
for i = 2, #ARGV do
  due = due + redis.call('LLEN', ns .. 'jobs:instant:' .. ARGV[i])
    + redis.call('ZCOUNT', ns .. 'jobs:scheduled:' .. ARGV[i], '-inf', now + ARGV[1])
end
return due
