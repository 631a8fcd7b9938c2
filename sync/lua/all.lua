-- SPDX-License-Identifier: MIT
-- all: takes of several policies of one group, all charged or none. Follows common.lua and slices.lua.
-- KEYS  three a shard: its two generations and its nodes
-- ARGV  1 clock ('' but in tests)  2 flags, one a shard, packed  3 members: shard cost, packed
--       4... the shards' numbers, then the members' fields
-- reply head (the first shard's); admitted 0 or 1; a member: T free denied
local raw = clock(tonumber(ARGV[1]))
local units, n = #KEYS / 3, #ARGV[3] / 16
local shards, keys, members = {}, {}, {}

for u = 1, units do
  local s = open(KEYS[3 * u - 2], KEYS[3 * u - 1], KEYS[3 * u], ARGV[3 + u], raw, '')
  s.outage = unpk('<d', ARGV[2], 8 * u - 7) % 4 >= 2
  shards[u] = s
  if s.stop then return reply(head(s, s.stop, 0, 0), 16) end
end

-- Makes a key the one at hand.
local function present(k)
  local s = k.s
  bring(s, k.value, 0, 1e300)
  if s.now >= ksw and #kv > BASE_LEN and s.now >= s.recover then rebuild(s, s.now, 0) end
end

-- The same key may be named twice: one state.
for i = 1, n do
  local u, cost = unpk('<dd', ARGV[3], 16 * i - 15)
  local field = ARGV[3 + units + i]
  local name = u .. ' ' .. field
  local k, s = keys[name], shards[u]
  if not k then
    k = {s = s, field = field, took = 0, value = read(s, {[0] = '!', field}, 1)[1] or nil}
    keys[name] = k
    present(k)
    k.T, k.P = kT, kP
  end
  members[i] = {k = k, cost = cost}
end

local granted = true
for i = 1, n do
  local m = members[i]
  local k = m.k
  local free = min(k.T, k.T - k.P) - k.took
  if m.cost > 0 and (free < m.cost - 1e-9 or k.s.now < k.s.recover) then m.denied, granted = true, false
  else k.took = k.took + m.cost end
end

if granted then
  for _, k in pairs(keys) do
    if k.took > 0 then
      present(k)
      spend(k.took)
      k.T = kT
      store(k.s, {k.field, value_of(k.s, '')}, 2)
      k.s.wrote = true
    end
  end
end
for u = 1, units do save_if(shards[u], shards[u].wrote) end

local o = head(shards[1], 0, 0, 0)
o[17] = granted and 1 or 0
for i = 1, n do
  local k = members[i].k
  o[15 + 3 * i], o[16 + 3 * i], o[17 + 3 * i] = k.T, min(k.T, k.T - k.P), members[i].denied and 1 or 0
end
return reply(o, 17 + 3 * n)
