#!lua flags=allow-oom
-- An auxiliary job is done: pending -> deleted, or back to scheduled when it asks to be retried.
-- KEYS  1 namespace
-- ARGV  1 slot, 2 delay ms or '' when it is done
--@ use take
local key = pending_key('aux', ARGV[1])
local job = redis.call('LPOP', key)
if job then
  if ARGV[2] == '' then retire_job('aux', job) else file_job('aux', job, now + ARGV[2]) end
end
wake_workers()
