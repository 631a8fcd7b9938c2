-- SPDX-License-Identifier: MIT
-- reconcile: a node's batch for one shard, applied exactly once: charges what was spent, hands out the next slices.
-- Follows common.lua, batch.lua (where KEYS, ARGV and the reply are described) and slices.lua.
local tail = sub(id, 1, 8)
local WHOLE = BASE .. 'c0c8ddffffff' -- a value whose last slice is this node's
local budget = max(16, n / s.nodes) -- keys to sweep
s.outage = flags % 4 >= 2

-- Where this node's slice begins in a value, or 0.
local function find_own(v)
  local at = string.find(v, tail, BASE_LEN + 1, true)
  while at and (at - BASE_LEN - 1) % SLICE_LEN ~= 0 do at = string.find(v, tail, at + 1, true) end
  return at or 0
end

-- Takes this node's slice out of the sums. Returns what was written off of it, and its credit for fallback use.
local function take_own()
  local own = find_own(kv)
  if own == 0 then return 0, 0 end
  local last, p, rate, cap, d, f, e, credit = unpk(SLICE, kv, own + 8)
  kown = own
  if d < 0 then return p, credit end
  local quiet, N = s.now - last, kN - 1
  if N <= 0 then kP, kR, kF, kD, kC, kN, kes, kU = 0, 0, 0, 0, 0, 0, 0, 0
  else
    kP, kR, kF, kD, kC, kN = kP - p - rate * quiet, kR - rate, kF - f, kD - d, kC - cap, N
    kes, kU = kes - e, kU - e * quiet
  end
  return 0, credit
end

-- Buries the dead of a key once every interval.
local function sweep()
  if s.now >= ksw and budget > 0 and not gathering then
    budget = budget - 1
    rebuild(s, s.now, 0)
  end
end

-- Charges a report: spent on slices, given back, spent on the fallback share. back: the refill that was held over for
-- it. Returns what is left of the credit: a node may report twice before it has told all of an outage.
local function charge(spent, refunded, fall, back)
  local off, credit = take_own()
  if s.now > ktrec + LIVE then credit = 0 end -- it may take a node long to find its way back
  local x = spent - fall
  if off > 0 then x = x > off and x - off or 0 end
  if fall > 0 then
    x = x + max(0, min(fall - credit, kT - x + s.burst))
    credit = max(0, credit - fall)
  end
  local more, top, T, Th = refunded + s.rate * back, s.burst, kT - x, kTh - x
  T, Th, krc = T + more, Th + more, krc + x
  if T > top then T = top end
  if kU > 0 then top = top + kU end
  if Th > top then Th = top end
  kT, kTh = T, T > Th and T or Th
  if s.now >= ksw then sweep() end
  return credit
end

-- The fair share of a key: what a node may have in hand, the target of its rate, its fallback rate, how scarce tokens
-- are, and d's part of the demand.
local function share(avail, d, want, most)
  local r, half, all = s.rate, s.burst / 2, kD + d
  local frac = all > d and d / all or 1
  local cap, least = half * frac, want < 2 and want or 2
  if want < cap then cap = want end
  if cap < least then cap = half >= least * (kN + 1) and least or 0 end
  if cap <= 0 then return 0, 0, 0, 0, frac end
  if most > cap and half >= most * (kN + 1) then cap = most end
  local x, target, fall = 0.25, r, r * frac
  if avail < 0 then
    target = r + avail * 1e-6 -- repays in about a second
    if target < r / 2 then target = r / 2 end
  end
  if all >= r then
    if avail <= 0 then x = 1
    else
      local scale = all * s.interval
      if scale > half / 2 then scale = half / 2 end
      x = 1 - avail / scale
      if x < 0.25 then x = 0.25 end
    end
  end
  target = target * frac
  if d < target then target = d end
  if fall > r - kF then fall = max(0, r - kF) end
  return cap, x * target, fall, x, frac
end

-- The time before which asking again is no use.
local function wait(avail, x, filled, goal, rate, target)
  local hold, r, S = 0, s.rate, s.interval
  if avail < 1 then
    local left = r - kR
    hold = left > 1e-15 and (1 - avail) / left or S
    if hold > S then hold = S end
    if hold < (1 - avail) / r then hold = (1 - avail) / r end
  elseif x > 0.5 and filled < goal - 1e-6 and rate >= 0.7 * target then hold = 0.1 * S end
  if goal > 0 and rate < 0.7 * target and hold > 0.1 * S then hold = 0.1 * S end
  return hold
end

-- The next slice; sure: what is nobody's. Returns level, rate, cap, fallback, hold, and what is left to give.
local function grant(sure, level, d, want, most)
  local r, pool = s.rate, s.over - s.reserve
  if pool < 0 then pool = 0 end
  local avail = kTh
  if sure < kT then avail = avail - kT + sure end
  if sure + pool < avail then avail = sure + pool end
  local goal, target, fall, x, frac = share(avail, d, want, most)
  local rate, have, g = target < fall and target or fall, avail > 0 and avail or 0, 0
  if rate > r - kR then rate = r - kR end
  if rate < 1e-5 * r then rate = 0 end
  if level < 0 then g = -level < have and -level or have end
  if goal > level + g then
    local part, even = goal - level - g, 0.5 / (kN + 1)
    if frac > even then even = frac end
    even = (have - g) * even
    if even < part then part = even end
    if part > 0 then g = g + part end
  end
  -- A share that others still hold is advanced for one interval.
  if goal > 0 and rate < target - 1e-9 then
    local more, left = (target - rate) * s.interval, sure - g + pool
    if left < more then more = left end
    if more > 0 then g = g + more end
  end
  local room = s.burst - kC
  local fits = level > 0 and room - level or room
  if g > fits then g = fits end
  if g < 0 then g = 0 end
  local cap = level + g
  if cap < 0 then cap = 0 end
  local top = goal < room and goal or room
  if rate > 0 and top > cap then cap = top end
  kR = kR + rate
  avail = avail - g
  if avail >= 1 and x <= 0.5 then return level + g, rate, cap, fall, 0, avail end
  return level + g, rate, cap, fall, wait(avail, x, level + g, goal, rate, target), avail
end

-- While state is being gathered: what the node holds stays its own, and nothing more is given.
local function keep(level, rate, d, want)
  rate = max(0, min(rate, s.rate - kR))
  local _, _, fall = share(0, d, want, 0)
  kR = kR + rate
  return level, rate, max(0, level), fall, s.recover - s.now, 0
end

local function put(i, mine)
  w[wi + 1], w[wi + 2] = fields[i], value_of(s, mine)
  wi = wi + 2
end

local oi = 16 + 2 * shorts

-- One long record.
local function long(i, spent, refunded, fall, age, level, rate, d, want, most)
  local value, back, seed = values[i], 0, 1e300
  if age > 0 and value and #value >= 16 then back = max(0, min(age, s.now - select(2, unpk('<dd', value)))) end
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(s, value, back, seed)
  local credit = charge(spent, refunded, fall, back)
  local inflight = rate * rtt
  local sure = kT - kP - level - inflight
  if waiting then
    local took = admit(i, min(sure, kT))
    spend(took)
    sure = sure - took
  end
  local new, next_rate, cap, f, hold, left
  if gathering then new, next_rate, cap, f, hold, left = keep(level, rate, d, want)
  else new, next_rate, cap, f, hold, left = grant(sure, level, d, want, most) end
  local unpaid, value = carried(s, kT), nil
  local p = new + inflight
  if unpaid > 0 then p = max(0, p) + unpaid end -- an overdraft pays for nothing that is owed besides
  if d > 0 or next_rate > 0 or p > 1e-9 or p < -1e-9 then
    local e = new > 0 and next_rate + new / s.interval or next_rate
    if d < e then e = d end
    kP, kF, kD, kC, kN, kes = kP + p, kF + f, kD + d, kC + cap, kN + 1, kes + e
    if kown == 0 or kown == BASE_LEN + 1 then -- in one piece: a value is long, and each copy of it costs
      local T = kT + unpaid
      value = pack(WHOLE, T, s.now, kTh > T and kTh or T, kP, kR, kF, kD, kC, kN, ksw, kes, kU, ktrec, krc,
        sub(kv, kown == 0 and BASE_LEN + 1 or BASE_LEN + SLICE_LEN + 1), tail, s.now, p, next_rate, cap, d, f, e,
        credit)
    else value = value_of(s, tail .. pack(SLICE, s.now, p, next_rate, cap, d, f, e, credit)) end
  else value = value_of(s, '') end
  o[oi + 1], o[oi + 2], o[oi + 3], o[oi + 4] = kT, kT + unpaid - kP, new, next_rate
  o[oi + 5], o[oi + 6], o[oi + 7], o[oi + 8] = cap, f, hold, left >= 1 and 1 or 0
  oi = oi + 8
  w[wi + 1], w[wi + 2] = fields[i], value
  wi = wi + 2
end

-- A short record of a key that has slices, or while state is being gathered. A slice of this node's that is still alive
-- stays; one that holds nothing but what was carried does not.
local function short(i, spent)
  local seed, credit, unpaid, mine = 1e300, 0, 0, ''
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(s, values[i], 0, seed)
  local at = find_own(kv)
  if at > 0 and select(5, unpk(SLICE, kv, at + 8)) > 0 then
    spend(spent)
    kT = min(s.burst, kT)
    sweep()
  else
    credit = charge(spent, 0, 0, 0)
    unpaid = carried(s, kT)
  end
  if waiting then spend(admit(i, min(kT, kT - kP))) end
  if unpaid > 0 then
    kP, kN = kP + unpaid, kN + 1
    mine = tail .. pack(SLICE, s.now, unpaid, 0, 0, 0, 0, 0, credit)
  end
  o[15 + 2 * i], o[16 + 2 * i] = kT, kT + unpaid - kP
  put(i, mine)
end

for j = 1, #later, 2 do short(later[j], later[j + 1]) end
local at = 1
for i = shorts + 1, n do
  local a, b, c, d, e, f, g, l, m
  a, b, c, d, e, f, g, l, m, at = unpk('<ddddddddd', ARGV[6], at)
  long(i, a, b, c, d, e, f, g, l, m)
end
return finish(oi)
