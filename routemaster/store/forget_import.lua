#!lua flags=allow-oom
-- Forget what was taken over: from here on a store of the original would be taken over anew.
-- KEYS  1 namespace
-- Returns how many batches were noted.
--@ use clock
local batches = redis.call('HLEN', ns .. 'import:batches')
for _, of in ipairs({'clients', 'topics', 'subscribers', 'batches'}) do redis.call('UNLINK', ns .. 'import:' .. of) end
return batches
