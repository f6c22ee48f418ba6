#!lua flags=allow-oom
-- Give waiting jobs to free slots: scheduled and due, or instant -> pending. A delivery job comes
-- with its lane's next batch, which is sealed, counts one more attempt, and is in the air from here
-- until it is settled or its lease ends.
-- A slot that asks again with the same fence gets the same answer (its reply was lost); with another
-- fence its job is taken anew (its process died and came back under the same name).
-- KEYS  1 namespace
-- ARGV  1 queue, 2 lease ms, then slot and fence for each free slot
-- Returns {ms until the next look or -1, taken, …}.  Cost: O(slots × events of a batch).
--@ use take
local q, lease = ARGV[1], tonumber(ARGV[2])

local slots = (#ARGV - 2) / 2
promote(q, slots)
local answer = {0}
for i = 1, slots do
  local slot, fence = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  local taken = take_again(q, slot, fence, lease)
  if taken then answer[#answer + 1] = taken end
end
answer[1] = next_look(q)
return answer
