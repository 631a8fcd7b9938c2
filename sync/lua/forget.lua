-- SPDX-License-Identifier: MIT
-- forget: drops keys, whatever state they have: the next report or take finds a full bucket.
-- KEYS  the shard's two generations and its nodes
-- ARGV  fields
-- reply an integer: how many of them existed
local n = 0
for i = 1, #ARGV do
  local a, b = redis.call('HDEL', KEYS[1], ARGV[i]), redis.call('HDEL', KEYS[2], ARGV[i])
  if a + b > 0 then n = n + 1 end
end
return n
