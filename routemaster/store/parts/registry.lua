--@ use clock
-- The registry: who there is and what they subscribe to.
--   clients, tokens    hashes, see clients
--   topics             set;  topic:<name>          hash  publisher, counter, last_event
--   subscribers        set;  subscriber:<id>       hash  client, callback, uuid, timeout, max_events,
--                            health_points, last_attempted_at, incarnation, set, parallelism; where
--                            they are set: name, paused, format ('channel'), match (JSON [pattern, …]),
--                            headers (JSON), secrets (JSON [[secret, until when or 0], …], the newest
--                            first), max_attempts, max_rate, rate_at (when it may next be sent to) and
--                            rate_line (when the last of its lanes in line for that looks again)
--   topics:<id>, subscribers:<topic>  sets: the two directions of a subscription
--   epoch              string  new with every change: what a routing snapshot is compared by
--   registry:changes   list    newest first: msgpack [epoch it led to, kind, name]
local CHANGES = 1000

local function changed(epoch, kind, name)
  redis.call('SET', ns .. 'epoch', epoch)
  redis.call('LPUSH', ns .. 'registry:changes', cmsgpack.pack({epoch, kind, name}))
  redis.call('LTRIM', ns .. 'registry:changes', 0, CHANGES - 1)
end
