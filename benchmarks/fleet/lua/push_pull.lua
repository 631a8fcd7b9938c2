-- The bucket of all processes: one of them tells what it has spent, and gets what is left, as text; a debt is less than
-- nothing. KEYS[1]: the bucket. ARGV: tokens a microsecond, burst, spent.
local rate, burst, spent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(state[1]) or burst, tonumber(state[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
if spent > 0 then
    tokens = tokens - spent
    redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'at', string.format('%.0f', now))
    redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate / 1000) + 1)
end
return string.format('%.17g', tokens)
