-- SPDX-License-Identifier: MIT
-- decide: the first part of strict: keys without slices. Follows lean.lua and common.lua; a batch that needs no more
-- ends here.
-- Takes, refunds and looks of one policy, each decided here; a denial writes nothing.
-- KEYS  three a shard: its two generations and its nodes
-- ARGV  1... fields, distinct, those of the first shard first; of several shards then how many fields and entries each
--       has, packed; the last: numbers, interval timeout nonce clock (0 but in tests) flags, 12 doubles, then entries,
--       in the same order: key (of its shard) op cost count (op 0 take, 1 give, 2 look)
-- reply head; a key: T free; an entry: admitted free (what was there after it). Of several shards: for each of them the
--       length of its reply, packed, and its reply
raw = clock(raw)
local flags = unpk('<d', asked, 89)
-- The shard at hand; its fields; entries by key, in order: {op, cost, count, index}, ...; what is answered and written;
-- keys that are left for later.
local s, fields, values, entries, gathering, o, base, w, wi, later

local function open_unit(u, from, n, m, begin)
  s = open(KEYS[3 * u - 2], KEYS[3 * u - 1], KEYS[3 * u], asked, raw, '')
  if s.stop then return end
  fields, entries, later = {[0] = '!'}, {}, {}
  for i = 1, n do fields[i] = ARGV[from + i - 1] end
  values = read(s, fields, n)
  gathering, o, base, w, wi = s.now < s.recover, head(s, 0, 0, 0), 16 + 2 * n, {}, 0
  for j = 1, m do
    local i, op, cost, count = j, 0, same, times
    if not same then i, op, cost, count, begin = unpk('<dddd', asked, begin) end
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
    o[base + 2 * j - 1], o[base + 2 * j] = a, min(t, t - p)
  end
  o[15 + 2 * i], o[16 + 2 * i] = t, min(t, t - p)
  return t, changed
end

-- Writes the shard at hand and answers for it; m: its entries.
local function finish(m)
  o[16] = s.bad
  store(s, w, wi)
  save_if(s, wi > 0)
  return reply(o, base + 2 * m)
end

local open_units = {}
first, at = 1, 97
for u = 1, shards do
  local n, m = #ARGV - 1, (#asked - 96) / 32
  if same then m = n end
  if shards > 1 then n, m = unpk('<dd', ARGV[#ARGV - 1], 16 * u - 15) end
  if not answers[u] then
    open_unit(u, first, n, m, at)
    if s.stop then answers[u] = reply(head(s, s.stop, 0, 0), 16)
    else
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
      if #later == 0 then answers[u] = finish(m)
      else
        open_units[#open_units + 1] = {u = u, m = m, s = s, fields = fields, values = values, entries = entries, o = o,
          base = base, gathering = gathering, w = w, wi = wi, later = later}
      end
    end
  end
  first, at = first + n, at + 32 * m
end
if #open_units == 0 then return join() end
