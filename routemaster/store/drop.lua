#!lua flags=allow-oom
-- Autodrop: delete the oldest batches, dead ones too, some at a time, never one in the air, and record what
-- went.
--   drops  list  JSON [lane, generation, events, [first seq, how many, …]], oldest first, bounded
-- KEYS  1 namespace
-- ARGV  1 most batches to delete, 2 most records to keep
-- Returns {batches, events}.  Cost: O(batches looked at): those to delete, and those in the air.
--@ use batches
local most, keep = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Which events a batch holds: first seq and how many, run by run; neighbours are joined.
local function runs_in(key)
  local runs = {}
  for _, item in ipairs(redis.call('LRANGE', key, HEADER, -1)) do
    local first, n = struct.unpack('>I8I4', item)
    if #runs > 0 and runs[#runs - 1] + runs[#runs] == first then
      runs[#runs] = runs[#runs] + n
    else
      runs[#runs + 1] = first
      runs[#runs + 1] = n
    end
  end
  return runs
end

local dropped, events = 0, 0
-- Batches in the air may be the oldest ones; they must not hide the others.
local in_air = redis.call('SCARD', ns .. 'jobs:pending:index:' .. MAIN)
for _, bid in ipairs(redis.call('ZRANGE', ns .. 'batches:index', 0, most + in_air - 1)) do
  if dropped == most then break end
  local key = ns .. 'batch:' .. bid
  local lane = redis.call('LINDEX', key, 0)
  if not lane then
    redis.call('ZREM', ns .. 'batches:index', bid)
  elseif redis.call('HGET', ns .. 'lane:' .. lane, 'batch') ~= bid then
    local generation, runs = redis.call('LINDEX', key, 3), runs_in(key)
    local n = exhume(subscription_of(lane), bid)
    if n then
      delete_batch(bid)
    else
      redis.call('SREM', ns .. 'batches:current:' .. lane, bid)
      redis.call('LREM', ns .. 'batches:ready:' .. lane, 1, bid)
      redis.call('LREM', ns .. 'batches:replay:' .. lane, 1, bid)
      n = forget_batch(lane, bid)
    end
    redis.call('RPUSH', ns .. 'drops', cjson.encode({lane, generation, n, runs}))
    redis.call('HINCRBY', ns .. 'counters', 'dropped:' .. subscriber_of(lane), n)
    dropped, events = dropped + 1, events + n
  end
end
redis.call('LTRIM', ns .. 'drops', -keep, -1)
wake_workers()
return {dropped, events}
