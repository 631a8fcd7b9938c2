-- A counter a window. KEYS[1]: the key and its window's index. ARGV: the window in milliseconds, its limit, the cost.
-- Answers 1 or 0, and what is left as text.
local used = redis.call('INCRBY', KEYS[1], ARGV[3])
if used == tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
local left = ARGV[2] - used
return {left >= 0 and 1 or 0, tostring(math.max(0, left))}
