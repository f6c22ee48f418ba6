#!lua flags=no-writes
-- The dead letters of a subscription, longest dead first.
-- KEYS  1 namespace
-- ARGV  1 subscriber, 2 most batches
-- Returns {} or {{batch, died at, JSON detail, created at, run, …}, …}; nil when there is no such
-- subscription.  Cost: O(batches and their bytes, to 4 MiB).
--@ use batches
local id, most = ARGV[1], tonumber(ARGV[2])
local MOST_BYTES = 4 * 1048576

local incarnation = redis.call('HGET', ns .. 'subscriber:' .. id, 'incarnation')
if not incarnation then return nil end
local subscription = id .. '#' .. incarnation
local found, bytes = {}, 0
local bids = redis.call('ZRANGE', dead_key(subscription), 0, most - 1, 'WITHSCORES')
for i = 1, #bids, 2 do
  local batch = redis.call('LRANGE', ns .. 'batch:' .. bids[i], 0, -1)
  local row = {bids[i], bids[i + 1], redis.call('HGET', why_key(subscription), bids[i]), batch[2]}
  for n = HEADER + 1, #batch do
    row[#row + 1] = batch[n]
    bytes = bytes + #batch[n]
  end
  found[#found + 1] = row
  if bytes > MOST_BYTES then break end
end
return found
