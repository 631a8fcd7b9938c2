-- The generic cell rate algorithm: one number a key, the time at which the bucket would be full again. ARGV: tokens a
-- microsecond, burst, cost. Answers 1 or 0, and what is left as text.
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(tonumber(redis.call('GET', KEYS[1])) or now, now)
local left = burst - (full - now) * rate - cost
if left < 0 then
    return {0, string.format('%.17g', left + cost)}
end
full = full + cost / rate
redis.call('SET', KEYS[1], string.format('%.17g', full), 'PX', math.ceil((full - now) / 1000))
return {1, string.format('%.17g', left)}
