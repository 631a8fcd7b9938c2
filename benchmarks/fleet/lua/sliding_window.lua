-- Two windows, the one before weighted by what of it is less than a window ago. KEYS[1]: a hash of the window's index,
-- its count and the count before. ARGV: the window in microseconds, its limit, the cost. Answers 1 or 0, and what is
-- left as text.
local window, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local index = math.floor(now / window)
local state = redis.call('HMGET', KEYS[1], 'index', 'count', 'before')
local at, count, before = tonumber(state[1]) or index, tonumber(state[2]) or 0, tonumber(state[3]) or 0
if at < index then
    before = at == index - 1 and count or 0
    count = 0
end
local left = limit - count - before * (1 - now % window / window)
if left < cost then
    return {0, string.format('%.17g', left)}
end
redis.call('HSET', KEYS[1], 'index', string.format('%.0f', index), 'count', string.format('%.17g', count + cost),
    'before', string.format('%.17g', before))
redis.call('PEXPIRE', KEYS[1], math.ceil(2 * window / 1000))
return {1, string.format('%.17g', left - cost)}
