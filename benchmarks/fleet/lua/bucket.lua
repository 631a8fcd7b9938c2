-- A token bucket in one hash. KEYS[1]: the bucket. ARGV: tokens a microsecond, burst, cost, and the caller's time in
-- microseconds; without it, the server's. Answers 1 or 0, and the tokens left as text: a number would lose its
-- fraction.
local rate, burst, cost, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(state[1]) or burst, tonumber(state[2]) or now
if now > at then -- a clock that is behind refills nothing, and does not set the stamp back
    tokens = math.min(burst, tokens + (now - at) * rate)
    at = now
end
if tokens < cost then
    return {0, string.format('%.17g', tokens)}
end
local left = string.format('%.17g', tokens - cost)
redis.call('HSET', KEYS[1], 'tokens', left, 'at', string.format('%.0f', at))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens + cost) / rate / 1000) + 1)
return {1, left}
