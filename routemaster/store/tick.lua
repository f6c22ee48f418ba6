#!lua flags=allow-oom
-- Enqueue auxiliary jobs that are not there yet.
-- KEYS  1 namespace
-- ARGV  names of jobs
--@ use jobs
for _, name in ipairs(ARGV) do enqueue('aux', cmsgpack.pack({name, {}}), now) end
wake_workers()
