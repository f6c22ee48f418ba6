#!lua flags=allow-oom
-- Take jobs back from slots whose worker is dead, and lanes whose lease has ended wherever their
-- worker is: pending -> instant, or -> scheduled from the third attempt on, so that a batch that
-- kills its worker backs off too; after the last attempt that its subscriber allows it is given up.
-- Forgets slots that hold nothing.
-- KEYS  1 namespace
-- ARGV  1 queue, 2 ms of silence after which a worker is dead, 3 least and 4 most backoff ms
-- Returns the slots that were taken from.  Cost: O(slots that were busy lately).
--@ use take
local q, silence = ARGV[1], tonumber(ARGV[2])
local least, most = tonumber(ARGV[3]), tonumber(ARGV[4])

local function is_dead(slot)
  local seen = redis.call('HGET', ns .. 'workers', string.match(slot, '^(.*)%.'))
  return not seen or now - seen > silence
end

local function take_lane_back(job, lane, slot, dead)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'slot', 'lease', 'batch')
  if l[1] == slot and not dead and tonumber(l[2]) > now then return false end
  redis.call('DEL', pending_key(q, slot))
  if l[1] ~= slot then return true end -- somebody else has the lane and its job by now
  if give_up_if_spent(lane) then return true end
  land(lane)
  local attempts = tonumber(redis.call('LINDEX', ns .. 'batch:' .. l[3], 2) or 0)
  local at = now
  if attempts >= 3 then
    at = now + math.min(most, least * 2 ^ math.min(attempts - 1, 40))
    rest_until(lane, at, 'scrubbed')
  end
  file_job(q, job, at)
  return true
end

local taken = {}
for _, slot in ipairs(redis.call('SMEMBERS', ns .. 'jobs:pending:index:' .. q)) do
  local job = redis.call('LINDEX', pending_key(q, slot), 0)
  if not job then
    redis.call('SREM', ns .. 'jobs:pending:index:' .. q, slot)
  else
    local name, args = unpack(cmsgpack.unpack(job))
    local dead = is_dead(slot)
    if name == 'deliver' then
      if take_lane_back(job, args[1], slot, dead) then taken[#taken + 1] = slot end
    elseif dead then
      redis.call('DEL', pending_key(q, slot))
      file_job(q, job, now)
      taken[#taken + 1] = slot
    end
  end
end
wake_workers()
return taken
