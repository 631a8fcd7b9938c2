-- SPDX-License-Identifier: MIT
-- decide: the first part of strict: keys without slices. Follows lean.lua and common.lua; a batch that needs no more
-- ends here.
-- Takes, refunds and looks of one policy and shard, each decided here; a denial writes nothing.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1... fields, distinct; the last: numbers, interval timeout nonce clock (0 but in tests) flags, 12 doubles, then
--       entries: key op cost count (op 0 take, 1 give, 2 look)
-- reply head; a key: T free; an entry: admitted free (what was there after it)
local n = #ARGV - 1
local asked = ARGV[n + 1]
local given, flags = unpk('<dd', asked, 81)
local s = open(KEYS[1], KEYS[2], KEYS[3], asked, clock(given), '')
if s.stop then return reply(head(s, s.stop, 0, 0), 16) end
local m = (#asked - 96) / 32
local fields = {[0] = '!'}
for i = 1, n do fields[i] = ARGV[i] end
local values = read(s, fields, n)
local gathering = s.now < s.recover
local o, w, wi = head(s, 0, 0, 0), {}, 0
local answers = 16 + 2 * n

-- Entries by key, in order: {op, cost, count, index}, ...
local entries = {}
do
  local at = 97
  for j = 1, m do
    local i, op, cost, count
    i, op, cost, count, at = unpk('<dddd', asked, at)
    local list = entries[i]
    if list then
      local k = #list
      list[k + 1], list[k + 2], list[k + 3], list[k + 4] = op, cost, count, j
    else entries[i] = {op, cost, count, j} end
  end
end

-- Works off the entries of key i: t its level, p what is reserved of it. Returns the level, and whether it was changed.
local function decide(i, t, p)
  local list, changed, burst = entries[i] or {}, false, s.burst
  for k = 1, #list, 4 do
    local op, cost, a, j = list[k], list[k + 1], list[k + 2], list[k + 3]
    if op == 0 and cost > 0 then
      a = gathering and 0 or min(a, max(0, floor(min(t, t - p) / cost + 1e-9)))
      if a > 0 then t, changed = t - a * cost, true end
    elseif op == 1 and cost > 0 then t, changed = min(burst, t + cost), true end
    o[answers + 2 * j - 1], o[answers + 2 * j] = a, min(t, t - p)
  end
  o[15 + 2 * i], o[16 + 2 * i] = t, min(t, t - p)
  return t, changed
end

local function finish()
  o[16] = s.bad
  store(s, w, wi)
  save_if(s, wi > 0)
  return reply(o, answers + 2 * m)
end

local later = {}
for i = 1, n do
  local value = values[i]
  if value and #value ~= 16 then later[#later + 1] = i
  else
    local t, changed = decide(i, plain(s, value, 0), 0)
    if changed then
      w[wi + 1], w[wi + 2] = fields[i], pack('<dd', t, s.now)
      wi = wi + 2
    end
  end
end
if #later == 0 then return finish() end
