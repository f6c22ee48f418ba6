-- The namespace that all keys are built from, and the store's own clock in milliseconds.
local ns = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
