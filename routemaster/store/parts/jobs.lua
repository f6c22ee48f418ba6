--@ use clock
-- Jobs: MessagePack [name, [args]], unique by their bytes in whatever state they are. Only scripts
-- build them, so the bytes are always the same.
--   jobs:index:<q>      set   every job, in any state
--   jobs:scheduled:<q>  zset  by deadline
--   jobs:instant:<q>    list  ready now, oldest first
-- Workers listen on the channel wake:<q>; its message is in how many milliseconds to look.
local wake_in = {}

local function wake(q, delay)
  if not wake_in[q] or delay < wake_in[q] then wake_in[q] = delay end
end

local function wake_workers()
  for q, delay in pairs(wake_in) do redis.call('PUBLISH', ns .. 'wake:' .. q, delay) end
end

local function deliver_job(lane)
  return cmsgpack.pack({'deliver', {lane}})
end

-- Put a job that is in the index where it waits for its time.
local function file_job(q, job, at)
  if at <= now then
    redis.call('RPUSH', ns .. 'jobs:instant:' .. q, job)
    wake(q, 0)
  else
    redis.call('ZADD', ns .. 'jobs:scheduled:' .. q, at, job)
    wake(q, at - now)
  end
end

-- A job that is there already, in any state, stays as it is.
local function enqueue(q, job, at)
  if redis.call('SADD', ns .. 'jobs:index:' .. q, job) == 1 then file_job(q, job, at) end
end

local function retire_job(q, job)
  redis.call('SREM', ns .. 'jobs:index:' .. q, job)
end

local function hasten(q, job)
  if redis.call('ZREM', ns .. 'jobs:scheduled:' .. q, job) == 1 then file_job(q, job, now) end
end

-- Scheduled jobs that are due join the line, in the order of their deadlines.
local function promote(q, most)
  local due = redis.call('ZRANGEBYSCORE', ns .. 'jobs:scheduled:' .. q, '-inf', now,
    'LIMIT', 0, math.min(most, 5000)) -- Lua's unpack is limited
  if #due > 0 then
    redis.call('ZREM', ns .. 'jobs:scheduled:' .. q, unpack(due))
    redis.call('RPUSH', ns .. 'jobs:instant:' .. q, unpack(due))
  end
end
