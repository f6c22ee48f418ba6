--@ use registry
-- Clients and their tokens.
--   clients          hash  client -> JSON {name, role, created_at, grants (JSON in a text: an empty list would
--                          come out of here as an object; '' for none), tokens: [{digest, ends_at, …}, …]},
--                          the newest token first
--   tokens           hash  digest of a token -> client
--   tokens:ending    zset  digests of tokens that end, by when
--   tokens:seeded    set   digests of tokens that a setting once named: those deleted do not come back
local MOST_TOKENS = 20

local function read_client(client)
  local text = redis.call('HGET', ns .. 'clients', client)
  return text and cjson.decode(text)
end

-- A client may be left without a token: the newest was deleted, and the grace of the others is over. It waits
-- for a rotation; an empty list would come out of here as an object, which no process could read.
local function write_client(client, record)
  local text = cjson.encode(record)
  if #record.tokens == 0 then text = string.gsub(text, '"tokens":{}', '"tokens":[]', 1) end
  redis.call('HSET', ns .. 'clients', client, text)
end

-- Returns whether the token and the client are both new.
local function add_client(client, record, digest)
  if redis.call('HEXISTS', ns .. 'tokens', digest) == 1 then return false end
  if redis.call('HSETNX', ns .. 'clients', client, record) == 0 then return false end
  redis.call('HSET', ns .. 'tokens', digest, client)
  return true
end

-- Of a client's tokens those go that `keeps` does not want.
local function keep_tokens(record, keeps)
  local left = {}
  for _, token in ipairs(record.tokens) do
    if keeps(token) then
      left[#left + 1] = token
    else
      redis.call('HDEL', ns .. 'tokens', token.digest)
      redis.call('ZREM', ns .. 'tokens:ending', token.digest)
    end
  end
  record.tokens = left
end

local function has_not_ended(token)
  return token.ends_at == 0 or token.ends_at > now
end
