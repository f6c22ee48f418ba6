#!lua flags=allow-oom
-- Forget tokens whose grace is over. Nobody could use them any more: web processes look at the time themselves.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 most tokens in one call
-- Returns how many went.  Cost: O(tokens).
--@ use clients
local epoch, most = ARGV[1], tonumber(ARGV[2])

local ended = redis.call('ZRANGEBYSCORE', ns .. 'tokens:ending', '-inf', now, 'LIMIT', 0, most)
for _, digest in ipairs(ended) do
  local client = redis.call('HGET', ns .. 'tokens', digest)
  local record = client and read_client(client)
  if record then
    keep_tokens(record, has_not_ended)
    write_client(client, record)
    changed(epoch, 'client', client)
  else
    redis.call('ZREM', ns .. 'tokens:ending', digest)
  end
end
return #ended
