--@ use take
--@ use log
-- The end of a delivery: what ack and nack share.
-- Whether the slot still holds the batch. An old fence changes nothing: somebody else has it.
local function holds(lane, bid, fence)
  local l = redis.call('HMGET', ns .. 'lane:' .. lane, 'fence', 'batch')
  return l[1] == fence and l[2] == bid
end

local function land(lane, slot, fence)
  redis.call('HDEL', ns .. 'lane:' .. lane, 'fence', 'batch', 'slot', 'lease', 'source', 'not_before', 'why')
  redis.call('HSET', ns .. 'lane:' .. lane, 'settled', fence)
  redis.call('DEL', pending_key(MAIN, slot))
end

local function change_health(subscriber, by)
  local key = ns .. 'subscriber:' .. subscriber
  local health = tonumber(redis.call('HGET', key, 'health_points'))
  if not health then return end
  local changed = math.max(0, math.min(100, health + by))
  if changed ~= health then redis.call('HSET', key, 'health_points', changed) end
end

local function record_delivery(candidate, record, max_bytes)
  local generation = generation_of('deliveries', candidate)
  append_block('deliveries', generation, 1, now, '{}', '[]', record, max_bytes)
end

-- The slot's next job, unless its process is leaving (it then gives no fence).
local function take_next(slot, fence, lease)
  if fence == '' then return nil end
  promote(MAIN, 8)
  return take_again(MAIN, slot, fence, lease)
end
