-- SPDX-License-Identifier: MIT
-- reconcile: a node's batch for one shard, applied exactly once: charges what was spent, hands out the next slices.
-- Follows common.lua and slices.lua.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 numbers  2 clock ('' but in tests)  3 node id  4 seq epoch rtt flags shorts longs
--       5 shorts: spent  6 longs: spent refunded fallback age level rate demand want max_cost
--       7 seeds: '' or one a record, 1e300 for none  8 waiting: record cost count  9... fields, shorts first, distinct
-- reply head; a short: T free; a long: T free level rate cap fallback hold rich; then how many of each waiting were
--       admitted
local id = ARGV[3]
local tail = sub(id, 1, 8)
local seq, epoch, rtt, flags, shorts, longs = unpk('<dddddd', ARGV[4])
local hello = flags % 2 == 1
local shard = open(KEYS[1], KEYS[2], KEYS[3], ARGV[1], clock(ARGV[2]), id)
if shard.stop then return reply(head(shard, shard.stop, 0, 0), 16) end
use(shard, flags % 4 >= 2)
local known, said, q0_old = nil, 0, 0 -- the node: its last seq, when, its promise
if s.node and #s.node == 24 then known, said, q0_old = unpk('<ddd', s.node) end

-- Ends the script without applying anything.
local function refuse(status)
  if s.save or s.fresh then save(s) end
  return reply(head(s, status, known or 0, 0), 16)
end

if epoch ~= 0 and epoch ~= h[EPOCH] then
  if h[RECOVER] == 0 or s.fresh then lost(s) end -- once an epoch: those who come later register in what it found
  return refuse(2)
end
if known and seq <= known then
  local old = seq == known and call('HGET', s.nodes, '\2' .. id)
  if old then return sub(old, 1, 8) .. pack('<d', 1) .. sub(old, 17) end
  return refuse(4)
elseif not hello and seq ~= (known or -1) + 1 then
  if known then lost(s) end -- its numbers have a gap: Redis went back in time
  return refuse(2)
end

local n = shorts + longs
local fields = {[0] = '!'}
for i = 1, n do fields[i] = ARGV[8 + i] end
local values = read(s, fields, n)
if epoch ~= 0 and epoch ~= h[EPOCH] then return refuse(2) end

-- Nodes: how many live, and what overdraft each was promised -------------------------------------------------------

-- Counts them anew and forgets those long gone.
local function count_nodes()
  local all, ids, gone = call('HKEYS', s.nodes), {}, {}
  for i = 1, #all do if sub(all[i], 1, 1) == '\1' then ids[#ids + 1] = all[i] end end
  h[NODES], h[PROMISED] = 0, 0
  for i = 1, #ids, CHUNK do
    local got = call('HMGET', s.nodes, unpack(ids, i, min(i + CHUNK - 1, #ids)))
    for j = 1, #got do
      local at, q, _ = -1e300, 0, nil
      if got[j] and #got[j] == 24 then _, at, q = unpk('<ddd', got[j]) end
      if at >= now - LIVE then h[NODES], h[PROMISED] = h[NODES] + 1, h[PROMISED] + q
      elseif at < now - REMEMBER then
        gone[#gone + 1] = ids[i + j - 1]
        gone[#gone + 1] = '\2' .. sub(ids[i + j - 1], 2)
      end
    end
  end
  for i = 1, #gone, CHUNK do call('HDEL', s.nodes, unpack(gone, i, min(i + CHUNK - 1, #gone))) end
  h[SWEPT] = now
end

-- This node's overdraft. What is reserved for overdrafts is taken off the pool before it is promised: when the
-- reserve grows, promises follow only after a generation, when every loan of the larger pool is repaid; it shrinks
-- once no promise is above it.
local function promise()
  if now >= h[SWEPT] + 10 then count_nodes() end
  local others = h[PROMISED]
  if known and said >= h[SWEPT] - LIVE then others = others - q0_old else h[NODES] = h[NODES] + 1 end
  local each = floor(0.75 * h[OVER] / h[NODES] + 1e-9)
  local want = each * h[NODES]
  if h[RAISED] == 0 then -- the first batch that this shard ever had
    h[RESERVE], h[RAISED], h[PROMISABLE] = want, now, h[RECOVER] == 0 and want or 0
  elseif want > h[RESERVE] then h[RESERVE], h[RAISED] = want, now
  elseif now >= h[RAISED] + h[LENGTH] then h[PROMISABLE] = h[RESERVE] end
  local q0 = max(0, min(each, floor(h[PROMISABLE] - others + 1e-9)))
  h[PROMISED] = others + q0
  if want < h[RESERVE] and h[PROMISED] <= want then h[RESERVE] = want end
  h[PROMISABLE] = min(h[PROMISABLE], h[RESERVE])
  return q0
end

local q0 = promise()
local pool = max(0, h[OVER] - h[RESERVE]) -- what slices may borrow
local gathering = now < h[RECOVER]
local seeds = ARGV[7]
local budget = max(16, n / h[NODES]) -- keys to sweep
local o = head(s, 0, seq, q0)
local oi = 16
local w, wi = {}, 0

-- Waiting requests by record: {cost, count, index of their answer}, ...
local waiting, admitted = nil, {}
if #ARGV[8] > 0 then
  waiting = {}
  local at = 1
  for j = 1, #ARGV[8] / 24 do
    local i, cost, count
    i, cost, count, at = unpk('<ddd', ARGV[8], at)
    local list = waiting[i]
    if not list then list = {}; waiting[i] = list end
    local k = #list
    list[k + 1], list[k + 2], list[k + 3] = cost, count, j
    admitted[j] = 0
  end
end

-- Admits what waits for record i out of `free`; returns the tokens. Nothing is free while state is being gathered.
local function admit(i, free)
  local list, sum = waiting and waiting[i], 0
  if not list or gathering then return 0 end
  for k = 1, #list, 3 do
    local cost, a = list[k], list[k + 1]
    if cost > 0 then
      a = min(a, max(0, floor((free - sum) / cost + 1e-9)))
      sum = sum + a * cost
    end
    admitted[list[k + 2]] = a
  end
  return sum
end

-- Slices ----------------------------------------------------------------------------------------------------------

-- Where this node's slice begins in v, or nil.
local function find_own()
  local at = find(v, tail, BASE_LEN + 1, true)
  while at and (at - BASE_LEN - 1) % SLICE_LEN ~= 0 do at = find(v, tail, at + 1, true) end
  return at
end

-- Takes this node's slice out of v and the sums. Returns what was written off of it, and its credit for fallback use.
local function take_own()
  local at = find_own()
  if not at then return 0, 0 end
  local last, p, rate, cap, d, f, e, credit = unpk(SLICE, v, at + 8)
  v = sub(v, 1, at - 1) .. sub(v, at + SLICE_LEN)
  if d < 0 then return p, credit end
  P, R, F, D, C, N = P - p - rate * (now - last), R - rate, F - f, D - d, C - cap, N - 1
  es, U = es - e, U - e * (now - last)
  if N <= 0 then P, R, F, D, C, N, es, U = 0, 0, 0, 0, 0, 0, 0, 0 end
  return 0, credit
end

-- Charges a report: spent on slices, given back, spent on the fallback share. back: the refill that was held over for
-- it. Returns what is left of the credit: a node may report twice before it has told all of an outage.
local function charge(spent, refunded, fall, back)
  local off, credit = take_own()
  if now > trec + 2 * life then credit = 0 end
  local x = spent - fall
  if off > 0 then x = max(0, x - off) end
  T, Th, rc = T - x, Th - x, rc + x
  if fall > 0 then
    x = max(0, min(fall - credit, T + B))
    credit = max(0, credit - fall)
    T, Th, rc = T - x, Th - x, rc + x
  end
  T, Th = min(B, T + refunded + r * back), min(B + max(0, U), Th + refunded + r * back)
  if Th < T then Th = T end
  if now >= sw and budget > 0 and not gathering and #v > BASE_LEN then budget = budget - 1; rebuild(true, 0) end
  return credit
end

local function put(i, own)
  w[wi + 1], w[wi + 2] = fields[i], value_of(own)
  wi = wi + 2
end

-- The fair share of a key: what it may have in hand, the target of its rate, its fallback rate, how scarce tokens
-- are, d's part.
local function share(avail, d, want, most)
  local all = D + d
  local frac = all > 0 and min(1, d / all) or 1
  local fall = max(0, min(r * frac, r - F))
  local cap, least = min(want, B / 2 * frac), min(2, want)
  if cap < least then cap = B / 2 >= least * (N + 1) and least or 0 end
  if cap <= 0 then return 0, 0, 0, 0, frac end
  if most > cap and B / 2 >= most * (N + 1) then cap = most end
  local have, x = max(0, avail), 0.25
  if all >= r then x = max(x, min(1, 1 - have / min(all * S, B / 4))) end
  local target = x * min(max(r / 2, r + min(0, avail)) * frac, d)
  return cap, target, fall, x, frac
end

-- s before which asking again is no use.
local function wait(avail, x, filled, goal, rate, target)
  local hold = 0
  if avail < 1 then
    local left = r - R
    hold = max((1 - avail) / r, min(left > 1e-9 and (1 - avail) / left or 1e18, S))
  elseif x > 0.5 and filled < goal - 1e-6 and rate >= 0.7 * target then hold = 0.1 * S end
  if goal > 0 and rate < 0.7 * target then hold = min(hold, 0.1 * S) end
  return hold
end

-- The next slice out of `avail`; sure: what of it is nobody's. Returns level, rate, cap, fallback, hold, and what is
-- left.
local function grant(avail, sure, level, d, want, most)
  local goal, target, fall, x, frac = share(avail, d, want, most)
  local rate = max(0, min(target, fall, r - R))
  if rate < 1e-5 * r then rate = 0 end
  local have, g = max(0, avail), 0
  if level < 0 then g = min(-level, have) end
  if goal > level + g then g = g + max(0, min(goal - level - g, (have - g) * max(frac, 0.5 / (N + 1)))) end
  if goal > 0 and rate < target - 1e-9 then g = g + max(0, min((target - rate) * S, sure - g + pool)) end
  g = max(0, min(g, B - C - max(0, level)))
  avail = avail - g
  local cap = max(0, level + g)
  if rate > 0 then cap = max(cap, min(goal, B - C)) end
  R = R + rate
  return level + g, rate, cap, fall, wait(avail, x, level + g, goal, rate, target), avail
end

-- While state is being gathered: what the node holds stays its own, and nothing more is given.
local function keep(level, rate, d, want)
  rate = max(0, min(rate, r - R))
  local _, _, fall = share(0, d, want, 0)
  R = R + rate
  return level, rate, max(0, level), fall, h[RECOVER] - now, 0
end

-- One long record.
local function long(i, spent, refunded, fall, age, level, rate, d, want, most)
  local value, back, seed = values[i], 0, 1e300
  if age > 0 and value and #value >= 16 then back = max(0, min(age, now - select(2, unpk('<dd', value)))) end
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(value, back, seed)
  local credit = charge(spent, refunded, fall, back)
  local inflight = rate * rtt
  local sure = T - P - level - inflight
  local took = admit(i, min(sure, T))
  T, Th, sure, rc = T - took, Th - took, sure - took, rc + took
  local new, next_rate, cap, f, hold, left
  if gathering then new, next_rate, cap, f, hold, left = keep(level, rate, d, want)
  else
    local avail = min(Th, Th - T + sure, sure + pool)
    new, next_rate, cap, f, hold, left = grant(avail, sure, level, d, want, most)
  end
  local p, own = new + inflight, ''
  if d > 0 or next_rate > 0 or p > 1e-9 or p < -1e-9 then
    local e = min(d, next_rate + max(0, new) / S)
    P, F, D, C, N, es = P + p, F + f, D + d, C + cap, N + 1, es + e
    own = tail .. pack(SLICE, now, p, next_rate, cap, d, f, e, credit)
  end
  o[oi + 1], o[oi + 2], o[oi + 3], o[oi + 4] = T, T - P, new, next_rate
  o[oi + 5], o[oi + 6], o[oi + 7], o[oi + 8] = cap, f, hold, left >= 1 and 1 or 0
  oi = oi + 8
  put(i, own)
end

-- A short record of a key that has slices, or while state is being gathered. A slice of this node's that is still
-- alive stays.
local function short_slow(i, spent)
  local seed = 1e300
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(values[i], 0, seed)
  local at = find_own()
  if at and select(5, unpk(SLICE, v, at + 8)) >= 0 then T, Th, rc = min(B, T - spent), Th - spent, rc + spent
  else charge(spent, 0, 0, 0) end
  local took = admit(i, min(T, T - P))
  T, Th = T - took, Th - took
  o[oi + 1], o[oi + 2] = T, T - P
  oi = oi + 2
  put(i, '')
end

-- Records ---------------------------------------------------------------------------------------------------------

-- Short records of keys without slices are the common case: kept short.
local text, at, absent, changed = ARGV[5], 1, s.absent, h[CHANGED]
local bottom = -(B + h[OVER])
for i = 1, shorts do
  local spent
  spent, at = unpk('<d', text, at)
  local value = values[i]
  if gathering or seeds ~= '' or (value and #value ~= 16) then short_slow(i, spent)
  else
    local t, when = absent, now
    if value then
      t, when = unpk('<dd', value)
      if t - t ~= 0 or when - when ~= 0 then t, s.bad = absent, s.bad + 1
      else
        if when < changed then t = refill(t, when)
        elseif now > when then t = t + r * (now - when) end
        if t > B then t = B end
      end
    end
    t = min(B, t - spent)
    if waiting then
      local took = admit(i, t)
      t, spent = t - took, spent + took
    end
    o[oi + 1], o[oi + 2] = t, t
    oi = oi + 2
    if spent ~= 0 then
      if t < bottom then t = floored(t) end
      w[wi + 1], w[wi + 2] = fields[i], pack('<dd', t, now)
      wi = wi + 2
    end
  end
end
text, at = ARGV[6], 1
for i = shorts + 1, n do
  local a, b, c, d, e, f, g, k, l
  a, b, c, d, e, f, g, k, l, at = unpk('<ddddddddd', text, at)
  long(i, a, b, c, d, e, f, g, k, l)
end

for j = 1, #admitted do o[oi + j] = admitted[j] end
oi = oi + #admitted
o[16] = s.bad
store(s, w, wi)
local answer = reply(o, oi)
save(s, '\1' .. id, pack('<ddd', seq, now, q0), '\2' .. id, answer)
return answer
