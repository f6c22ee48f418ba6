--@ use batches
--@ use registry
-- Ending a subscription. Its lanes' jobs go at once, pending ones too; its batches may be many, so
-- the lanes and the dead letters go to `purge` and an aux job deletes them in steps. A late ack finds no lane and
-- changes nothing.
local AUX = 'aux'

local function remove_lane(lane)
  local job = deliver_job(lane)
  if redis.call('SREM', ns .. 'jobs:index:' .. MAIN, job) == 1 then
    redis.call('ZREM', ns .. 'jobs:scheduled:' .. MAIN, job)
    redis.call('LREM', ns .. 'jobs:instant:' .. MAIN, 1, job)
    local slot = redis.call('HGET', ns .. 'lane:' .. lane, 'slot')
    if slot then redis.call('DEL', ns .. 'jobs:pending:' .. MAIN .. ':' .. slot) end
  end
  redis.call('DEL', ns .. 'lane:' .. lane)
  redis.call('RPUSH', ns .. 'purge', lane)
end

local function unsubscribe(id)
  local s = redis.call('HMGET', ns .. 'subscriber:' .. id, 'incarnation', 'set', 'parallelism')
  if not s[1] then return false end
  for _, topic in ipairs(redis.call('SMEMBERS', ns .. 'topics:' .. id)) do
    redis.call('SREM', ns .. 'subscribers:' .. topic, id)
  end
  for _, lane in ipairs(all_lanes(id, s[1], s[2], s[3])) do remove_lane(lane) end
  redis.call('RPUSH', ns .. 'purge', id .. '#' .. s[1])
  redis.call('DEL', ns .. 'topics:' .. id, ns .. 'subscriber:' .. id, draining_key(id, s[1]))
  redis.call('SREM', ns .. 'subscribers', id)
  enqueue(AUX, cmsgpack.pack({'purge', {}}), now)
  return true
end
