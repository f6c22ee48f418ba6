#!lua flags=no-writes
-- Which of our commands the store's user may not run: nothing is run, and no key is looked at.
-- KEYS  1 namespace
-- ARGV  1 the commands (msgpack [[name, argument, …], …])
-- Returns the numbers of those that are not allowed, counted from 0.  Cost: O(commands).
local commands = cmsgpack.unpack(ARGV[1])
local lacking = {}
for i, command in ipairs(commands) do
  if not redis.acl_check_cmd(unpack(command)) then lacking[#lacking + 1] = i - 1 end
end
return lacking
