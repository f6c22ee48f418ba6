#!lua flags=no-writes
-- All topics, with who publishes and how many events there have been.
-- KEYS  1 namespace
-- Returns {{name, publisher or '', counter}, …}.  Cost: O(topics).
--@ use clock
local found = {}
for _, name in ipairs(redis.call('SMEMBERS', ns .. 'topics')) do
  local t = redis.call('HMGET', ns .. 'topic:' .. name, 'publisher', 'counter')
  found[#found + 1] = {name, t[1] or '', t[2] or '0'}
end
return found
