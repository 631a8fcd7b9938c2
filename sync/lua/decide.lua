-- SPDX-License-Identifier: MIT
-- decide: the first part of strict: keys without slices. Follows lean.lua and common.lua; a batch that needs no more
-- ends here.
-- Takes, refunds and looks of one policy, each decided here; a denial writes nothing.
-- KEYS  three a shard: its two generations and its nodes
-- ARGV  1... fields, distinct, those of the first shard first; of several shards then how many fields and entries each
--       has and its epoch, packed; the last: numbers, interval timeout nonce clock (0 but in tests) flags epoch (of one
--       shard; 0: not known), 13 doubles, then entries, in the same order: key (of its shard) op cost count (op 0 take,
--       1 give, 2 look, 3 seen: `cost` is what the asking node saw before state was lost, `count` ms ago); or, where each field
--       has one and all are takes alike: cost count
-- reply head; a key: T free; an entry: admitted free (what was there after it). Of several shards: for each of them the
--       length of its reply, packed, and its reply
raw = clock(raw)
local flags = unpk('<d', asked, 89)
-- The shard at hand; its fields; entries by key, in order: {op, cost, count, index}, ...; what is answered and written;
-- keys that are left for later.
local s, fields, values, entries, gathering, o, base, w, wi, later

-- Ends with the shard at hand: nothing of it was applied.
local function refuse(status)
  if s.save or s.fresh then save(s) end
  return reply(head(s, status, 0, 0), 16)
end

-- Opens a shard. Returns its answer where that is all: another format, or another epoch than the asking node knows.
local function open_unit(u, from, n, m, begin, epoch)
  s = open(KEYS[3 * u - 2], KEYS[3 * u - 1], KEYS[3 * u], asked, raw, '')
  if s.stop then return reply(head(s, s.stop, 0, 0), 16) end
  if epoch ~= 0 and epoch ~= s.epoch then
    estranged(s)
    if s.expected < UNCOUNTED then -- who asks strictly is not counted: nobody knows when all have come
      s.expected, s.settled, s.save = UNCOUNTED, s.recover - s.life + REMEMBER, true
    end
    return refuse(2)
  end
  fields, entries, later = {[0] = '!'}, {}, {}
  for i = 1, n do fields[i] = ARGV[from + i - 1] end
  values = read(s, fields, n)
  if epoch ~= 0 and epoch ~= s.epoch then return refuse(2) end
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

-- Works off the entries of key i: t its level, p what is reserved of it, c what was charged since the epoch began.
-- Returns the level, whether it was changed, and what has been charged by then.
local function decide(i, t, p, c)
  local list, changed, burst = entries[i] or {}, false, s.burst
  for k = 1, #list, 4 do
    local op, cost, a, j = list[k], list[k + 1], list[k + 2], list[k + 3]
    if op == 0 and cost > 0 then
      a = gathering and 0 or min(a, max(0, floor(min(t, t - p) / cost + 1e-9)))
      if a > 0 then t, c, changed = t - a * cost, c + a * cost, true end
    elseif op == 1 and cost > 0 then t, c, changed = min(burst, t + cost), c - cost, true
    elseif op == 3 then
      local left = recalled(s, cost, a * 1e3, 0) - c
      if left < t then t, changed = left, true end
    end
    o[base + 2 * j - 1], o[base + 2 * j] = a, min(t, t - p)
  end
  o[15 + 2 * i], o[16 + 2 * i] = t, min(t, t - p)
  return t, changed, c
end

-- Writes the shard at hand and answers for it; m: its entries.
local function finish(m)
  o[16] = s.bad
  if s.fresh and wi == 0 and not s.save then o[4] = 0 end -- an epoch that is written nowhere
  store(s, w, wi)
  save_if(s, wi > 0)
  return reply(o, base + 2 * m)
end

local open_units = {}
first, at = 1, 105
for u = 1, shards do
  local n, m, epoch = #ARGV - 1, (#asked - 104) / 32, unpk('<d', asked, 97)
  if same then m = n end
  if shards > 1 then n, m, epoch = unpk('<ddd', ARGV[#ARGV - 1], 24 * u - 23) end
  if not answers[u] then
    answers[u] = open_unit(u, first, n, m, at, epoch)
    if not answers[u] then
      for i = 1, n do
        local value = values[i]
        if s.now < s.settled or (value and #value ~= 16) then later[#later + 1] = i
        else
          local t, changed = decide(i, plain(s, value, 0), 0, 0)
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
