--@ use batches
--@ use uid
-- Splitting batches that are not sealed: a lower max holds for them too. What is split off is full, so it
-- is sealed; events keep their order, and the last of them stay current.
local RUN_HEAD = 12 -- bytes: the seq of a run's first event, and how many there are
local PUSHED = 5000 -- Lua's unpack is limited

-- Takes events off runs, from the oldest on: a function from how many to the runs of these.
local function taker_of(runs)
  local n, gone, at = 1, 0, RUN_HEAD + 1 -- the run, how many of its events are gone, where the rest begins
  return function(wanted)
    local items = {}
    while wanted > 0 do
      local run = runs[n]
      local first, events = struct.unpack('>I8I4', run)
      local some = math.min(wanted, events - gone)
      if some == events then
        items[#items + 1] = run
      else
        local from, stop = at, nil
        for _ = 1, some do
          stop = string.find(run, SEPARATOR, at, true) or #run + 1
          at = stop + #SEPARATOR
        end
        items[#items + 1] = struct.pack('>I8I4', first + gone, some) .. string.sub(run, from, stop - 1)
      end
      wanted, gone = wanted - some, gone + some
      if gone == events then n, gone, at = n + 1, 0, RUN_HEAD + 1 end
    end
    return items
  end
end

-- Split one lane's current batch. The oldest events keep its id: ids of one time sort by age. Returns the
-- last id that was given.
local function split_batch(lane, bid, max, uid, most)
  local key = ns .. 'batch:' .. bid
  local head = redis.call('LRANGE', key, 0, HEADER - 1)
  local take_events = taker_of(redis.call('LRANGE', key, HEADER, -1))
  local left, made = tonumber(head[HEADER]), 0
  redis.call('DEL', key)

  local function write(events)
    local items = take_events(events)
    head[HEADER] = events
    redis.call('RPUSH', ns .. 'batch:' .. bid, unpack(head))
    for i = 1, #items, PUSHED do
      redis.call('RPUSH', ns .. 'batch:' .. bid, unpack(items, i, math.min(i + PUSHED - 1, #items)))
    end
    redis.call('ZADD', ns .. 'batches:index', head[2], bid)
    left = left - events
  end

  while left > max and made < most do
    write(max)
    seal(lane, bid)
    uid, made = uid_after(uid), made + 1
    bid = uid
  end
  write(left)
  redis.call('SADD', ns .. 'batches:current:' .. lane, bid)
  redis.call('HINCRBY', ns .. 'batches:gauges:batch', subscriber_of(lane), made)
  return uid, made
end

-- Split what is current in the lanes into batches of at most `max`, `most` new ones at most; their ids
-- come after `uid`. Returns whether that was all.
local function split_current(lanes, max, uid, most)
  for _, lane in ipairs(lanes) do
    local bid = redis.call('SRANDMEMBER', ns .. 'batches:current:' .. lane)
    if bid and events_in(bid) > max then
      local made
      uid, made = split_batch(lane, bid, max, uid, most)
      most = most - made
      if most == 0 then return false end
    end
  end
  return true
end
