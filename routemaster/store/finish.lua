#!lua flags=allow-oom
-- An auxiliary job is done: pending -> deleted, or back to scheduled when it asks to be retried.
-- KEYS  1 namespace
-- ARGV  1 slot, 2 delay ms or '' when it is done
--@ use take
local key = pending_key('aux', ARGV[1])
local job = redis.call('LPOP', key)
local delay = ARGV[2]
-- A subscription that ended after the last step of a purge could not enqueue the job: it was pending.
if job and delay == '' and cmsgpack.unpack(job)[1] == 'purge' and redis.call('EXISTS', ns .. 'purge') == 1 then
  delay = 0
end
if job then
  if delay == '' then retire_job('aux', job) else file_job('aux', job, now + delay) end
end
wake_workers()
