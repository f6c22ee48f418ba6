#!lua flags=allow-oom
-- Autodrop: delete the oldest batches, some at a time, never one in the air, and record what went.
--   drops  list  JSON [lane, generation, first seq, last seq, events], oldest first, bounded
-- KEYS  1 namespace
-- ARGV  1 most batches to delete, 2 most records to keep
-- Returns {batches, events}.  Cost: O(batches looked at).
--@ use batches
local most, keep = tonumber(ARGV[1]), tonumber(ARGV[2])

local dropped, events = 0, 0
for _, bid in ipairs(redis.call('ZRANGE', ns .. 'batches:index', 0, most - 1)) do
  local key = ns .. 'batch:' .. bid
  local head = redis.call('LRANGE', key, 0, HEADER)
  local lane = head[1]
  if not lane then
    redis.call('ZREM', ns .. 'batches:index', bid)
  elseif redis.call('HGET', ns .. 'lane:' .. lane, 'batch') ~= bid then
    local last = redis.call('LINDEX', key, -1)
    local first_seq, last_seq = struct.unpack('>I8', head[HEADER + 1]), struct.unpack('>I8', last)
    redis.call('SREM', ns .. 'batches:current:' .. lane, bid)
    redis.call('LREM', ns .. 'batches:ready:' .. lane, 1, bid)
    redis.call('LREM', ns .. 'batches:replay:' .. lane, 1, bid)
    local n = forget_batch(lane, bid)
    redis.call('RPUSH', ns .. 'drops', cjson.encode({lane, head[4], first_seq, last_seq, n}))
    redis.call('HINCRBY', ns .. 'counters', 'dropped:' .. subscriber_of(lane), n)
    dropped, events = dropped + 1, events + n
  end
end
redis.call('LTRIM', ns .. 'drops', -keep, -1)
wake_workers()
return {dropped, events}
