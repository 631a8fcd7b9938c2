-- SPDX-License-Identifier: MIT
-- all: takes of several policies of one group, all charged or none. Follows common.lua and slices.lua.
-- KEYS  three a shard: its two generations and its nodes
-- ARGV  1 clock ('' but in tests)  2 flags, one a shard, packed  3 members: shard cost, packed
--       4... the shards' numbers, then the members' fields
-- reply head (the first shard's); admitted 0 or 1; a member: T free denied
local raw = clock(ARGV[1])
local units, n = #KEYS / 3, #ARGV[3] / 16
local shards, keys, members = {}, {}, {}

for u = 1, units do
  local k = 3 * u - 2
  local one = open(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[3 + u], raw, '')
  one.outage = unpk('<d', ARGV[2], 8 * u - 7) % 4 >= 2
  shards[u] = one
  if one.stop then return reply(head(one, one.stop, 0, 0), 16) end
end

-- Brings a key to now; a dead slice is worth nothing to anybody.
local function fetch(key)
  use(key.shard, key.shard.outage)
  bring(key.value, 0, 1e300)
  if now >= sw and #v > BASE_LEN and now >= h[RECOVER] then rebuild(true, 0) end
end

-- The same key may be named twice: one state.
for i = 1, n do
  local u, cost = unpk('<dd', ARGV[3], 16 * i - 15)
  local field = ARGV[3 + units + i]
  local name = u .. ' ' .. field
  local key = keys[name]
  if not key then
    local one = shards[u]
    key = {shard = one, field = field, value = read(one, {[0] = '!', field}, 1)[1] or nil, took = 0}
    keys[name] = key
    fetch(key)
    key.T, key.P = T, P
  end
  members[i] = {key = key, cost = cost}
end

local granted = true
for i = 1, n do
  local m = members[i]
  local key = m.key
  local free = min(key.T, key.T - key.P) - key.took
  if m.cost > 0 and (free < m.cost - 1e-9 or key.shard.now < key.shard.h[RECOVER]) then m.denied = true; granted = false
  else key.took = key.took + m.cost end
end

if granted then
  for _, key in pairs(keys) do
    if key.took > 0 then
      fetch(key)
      T, Th, rc = T - key.took, Th - key.took, rc + key.took
      key.T = T
      store(key.shard, {key.field, value_of('')}, 2)
      key.shard.wrote = true
    end
  end
end
for u = 1, units do
  local one = shards[u]
  if one.save or (one.wrote and (one.fresh or one.now >= one.h[REFRESH] or one.now > one.high + 0.1)) then save(one) end
end

local o = head(shards[1], 0, 0, 0)
o[17] = granted and 1 or 0
for i = 1, n do
  local m = members[i]
  local key = m.key
  o[15 + 3 * i], o[16 + 3 * i], o[17 + 3 * i] = key.T, min(key.T, key.T - key.P), m.denied and 1 or 0
end
return reply(o, 17 + 3 * n)
