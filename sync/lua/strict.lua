-- SPDX-License-Identifier: MIT
-- strict: takes, refunds and looks of one policy and shard, each decided here. Respects the slices that hybrid nodes
-- hold: only what is nobody's is given, never an overdraft. A denial writes nothing. Follows common.lua and
-- slices.lua.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 numbers  2 clock ('' but in tests)  3 flags  4 entries: key op cost count (op 0 take, 1 give, 2 look)
--       5... fields, distinct
-- reply head; a key: T free; an entry: admitted free (what was there after it)
local shard = open(KEYS[1], KEYS[2], KEYS[3], ARGV[1], clock(ARGV[2]), '')
if shard.stop then return reply(head(shard, shard.stop, 0, 0), 16) end
use(shard, tonumber(ARGV[3]) % 4 >= 2)
local n, m = #ARGV - 4, #ARGV[4] / 32
local fields = {[0] = '!'}
for i = 1, n do fields[i] = ARGV[4 + i] end
local values = read(s, fields, n)
local gathering = now < h[RECOVER]
local o = head(s, 0, 0, 0)
local w, wi = {}, 0
local answers = 16 + 2 * n

-- Entries by key, in order: {op, cost, count, index}, ...
local entries = {}
local at = 1
for j = 1, m do
  local i, op, cost, count
  i, op, cost, count, at = unpk('<dddd', ARGV[4], at)
  local list = entries[i]
  if not list then list = {}; entries[i] = list end
  local k = #list
  list[k + 1], list[k + 2], list[k + 3], list[k + 4] = op, cost, count, j
end

-- Works off the entries of a key: t its level, p what is reserved of it. Returns the level, and whether it was
-- changed.
local function decide(list, t, p)
  local changed = false
  for k = 1, #list, 4 do
    local op, cost, a, j = list[k], list[k + 1], list[k + 2], list[k + 3]
    if op == 0 and cost > 0 then
      a = gathering and 0 or min(a, max(0, floor(min(t, t - p) / cost + 1e-9)))
      if a > 0 then t, changed = t - a * cost, true end
    elseif op == 1 then
      if cost > 0 then t, changed = min(B, t + cost), true end
    end
    o[answers + 2 * j - 1], o[answers + 2 * j] = a, min(t, t - p)
  end
  return t, changed
end

for i = 1, n do
  local value, list = values[i], entries[i] or {}
  local t, p, changed = s.absent, 0, false
  if value and #value ~= 16 then
    bring(value, 0, 1e300)
    if now >= sw and #v > BASE_LEN and not gathering then rebuild(true, 0) end
    local before = T
    t, changed = decide(list, T, P)
    p = P
    if changed then
      T, Th, rc = t, min(B + max(0, U), Th + t - before), rc + before - t
      if Th < T then Th = T end
      w[wi + 1], w[wi + 2] = fields[i], value_of('')
      wi = wi + 2
    end
  else
    if value then
      local when
      t, when = unpk('<dd', value)
      if t - t ~= 0 or when - when ~= 0 then t, s.bad = s.absent, s.bad + 1 else t = refill(t, when) end
    end
    t, changed = decide(list, t, 0)
    if changed then
      w[wi + 1], w[wi + 2] = fields[i], pack('<dd', t, now)
      wi = wi + 2
    end
  end
  o[16 + 2 * i - 1], o[16 + 2 * i] = t, min(t, t - p)
end

o[16] = s.bad
store(s, w, wi)
if s.save or (wi > 0 and (s.fresh or now >= h[REFRESH] or now > s.high + 0.1)) then save(s) end
return reply(o, answers + 2 * m)
