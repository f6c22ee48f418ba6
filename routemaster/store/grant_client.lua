#!lua flags=allow-oom
-- Say what a client may publish and read. What changes nothing keeps the epoch.
-- KEYS  1 namespace
-- ARGV  1 new epoch, 2 client, 3 grants (JSON), or '' for all
-- Returns 1, or 0 when there is no such client.
--@ use clients
local epoch, client, grants = ARGV[1], ARGV[2], ARGV[3]

local record = read_client(client)
if not record then return 0 end
if record.grants ~= grants then
  record.grants = grants
  write_client(client, record)
  changed(epoch, 'client', client)
end
return 1
