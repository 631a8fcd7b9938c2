-- SPDX-License-Identifier: MIT
-- reconcile: a node's batch for one shard, applied exactly once: charges what was spent, hands out the next slices.
-- Follows common.lua, batch.lua (where KEYS, ARGV and the reply are described) and slices.lua.
local tail = sub(id, 1, 8)
local WHOLE = BASE .. 'c0c8ddffffff' -- a value whose last slice is this node's
local now, r, burst, S = s.now, s.rate, s.burst, s.interval
local pool = s.over > s.reserve and s.over - s.reserve or 0 -- what slices may borrow
local budget = max(16, n / s.nodes) -- keys to sweep
s.outage = flags % 4 >= 2

-- Where this node's slice begins in a value, or 0.
local function find_own(v)
  local at = string.find(v, tail, BASE_LEN + 1, true)
  while at and (at - BASE_LEN - 1) % SLICE_LEN ~= 0 do at = string.find(v, tail, at + 1, true) end
  return at or 0
end

-- Buries the dead of a key once every interval.
local function sweep()
  if budget > 0 and not gathering then
    budget = budget - 1
    rebuild(s, now, 0)
  end
end

-- Charges a report: spent on slices, given back, spent on the fallback share. back: the refill that was held over for
-- it. This node's slice leaves the sums. Returns what is left of its credit for fallback use: a node may report twice
-- before it has told all of an outage.
local function charge(spent, refunded, fall, back)
  local own, x, credit = find_own(kv), spent - fall, 0
  if own > 0 then
    local last, p, rate, cap, d, f, e
    last, p, rate, cap, d, f, e, credit = unpk(SLICE, kv, own + 8)
    kown = own
    if d < 0 then
      if p > 0 then x = x > p and x - p or 0 end -- it was written off
    elseif kN <= 1 then kP, kR, kF, kD, kC, kN, kes, kU = 0, 0, 0, 0, 0, 0, 0, 0
    else
      local quiet = now - last
      kP, kR, kF, kD, kC, kN = kP - p - rate * quiet, kR - rate, kF - f, kD - d, kC - cap, kN - 1
      kes, kU = kes - e, kU - e * quiet
    end
    if now > ktrec + LIVE then credit = 0 end -- it may take a node long to find its way back
  end
  if fall > 0 then
    x = x + max(0, min(fall - credit, kT - x + burst))
    credit = max(0, credit - fall)
  end
  local more, top, T, Th = refunded + r * back, burst, kT - x, kTh - x
  T, Th, krc = T + more, Th + more, krc + x
  if T > top then T = top end
  if kU > 0 then top = top + kU end
  if Th > top then Th = top end
  kT, kTh = T, T > Th and T or Th
  if now >= ksw then sweep() end
  return credit
end

-- The fair share of a key: what a node may have in hand, the target of its rate, its fallback rate, how scarce tokens
-- are, and d's part of the demand.
local function share(avail, d, want, most)
  local half, all = burst / 2, kD + d
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
      local scale = all * S
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
  local hold = 0
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
    local more, left = (target - rate) * S, sure - g + pool
    if left < more then more = left end
    if more > 0 then g = g + more end
  end
  local room = burst - kC
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

-- Short records of keys that have slices, or while state is being gathered. A slice of this node's that is still alive
-- stays; one that holds nothing but what was carried does not.
for j = 1, #later, 2 do
  local i, spent, seed, credit, unpaid, mine = later[j], later[j + 1], 1e300, 0, 0, ''
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(s, values[i + 1], 0, seed)
  local at = find_own(kv)
  if at > 0 and select(5, unpk(SLICE, kv, at + 8)) > 0 then
    spend(spent)
    kT = min(burst, kT)
    if now >= ksw then sweep() end
  else
    credit = charge(spent, 0, 0, 0)
    unpaid = carried(s, kT)
  end
  if waiting then spend(admit(i, min(kT, kT - kP))) end
  if unpaid > 0 then
    kP, kN = kP + unpaid, kN + 1
    mine = tail .. pack(SLICE, now, unpaid, 0, 0, 0, 0, 0, credit)
  end
  answers[2 * i - 1], answers[2 * i] = kT, kT + unpaid - kP
  w[wi + 1], w[wi + 2] = ARGV[8 + i], value_of(s, mine)
  wi = wi + 2
end

-- Long records.
local asked = {unpk('<' .. string.rep('d', 9 * longs), ARGV[6])}
local bottom = -(burst + s.over)
for j = 1, longs do
  local i, at, back, seed = shorts + j, 9 * j - 8, 0, 1e300
  local value, age, level, rate, d, want = values[i + 1], asked[at + 3], asked[at + 4], asked[at + 5], asked[at + 6],
    asked[at + 7]
  if age > 0 and value and #value >= 16 then back = max(0, min(age, now - select(2, unpk('<dd', value)))) end
  if seeds ~= '' then seed = unpk('<d', seeds, 8 * i - 7) end
  bring(s, value, back, seed)
  local credit = charge(asked[at], asked[at + 1], asked[at + 2], back)
  local inflight = rate * rtt
  local sure = kT - kP - level - inflight
  if waiting then
    local took = admit(i, min(sure, kT))
    spend(took)
    sure = sure - took
  end
  local new, cap, f, hold, left
  if not gathering then new, rate, cap, f, hold, left = grant(sure, level, d, want, asked[at + 8])
  else -- what the node holds stays its own, and nothing more is given
    rate = max(0, min(rate, r - kR))
    new, cap, hold, left = level, max(0, level), s.recover - now, 0
    f = select(3, share(0, d, want, 0))
    kR = kR + rate
  end
  local p, unpaid, T = new + inflight, kT < bottom and floor(bottom - kT) or 0, kT
  if unpaid > 0 then p, T = max(0, p) + unpaid, kT + unpaid end -- an overdraft pays for nothing that is owed besides
  if d > 0 or rate > 0 or p > 1e-9 or p < -1e-9 then
    local e = new > 0 and rate + new / S or rate
    if d < e then e = d end
    kP, kF, kD, kC, kN, kes = kP + p, kF + f, kD + d, kC + cap, kN + 1, kes + e
    local others = '' -- its slice goes behind those of the others, so that it mostly is the first next time
    if #kv > 0 then others = sub(kv, kown == BASE_LEN + 1 and kown + SLICE_LEN or BASE_LEN + 1) end
    if kown > BASE_LEN + 1 then others = sub(kv, BASE_LEN + 1, kown - 1) .. sub(kv, kown + SLICE_LEN) end
    value = pack(WHOLE, T, now, kTh > T and kTh or T, kP, kR, kF, kD, kC, kN, ksw, kes, kU, ktrec, krc, others, tail,
      now, p, rate, cap, d, f, e, credit)
  else value = value_of(s, '') end
  o[oi + 1], o[oi + 2], o[oi + 3], o[oi + 4] = kT, T - kP, new, rate
  o[oi + 5], o[oi + 6], o[oi + 7], o[oi + 8] = cap, f, hold, left >= 1 and 1 or 0
  oi = oi + 8
  w[wi + 1], w[wi + 2] = ARGV[8 + i], value
  wi = wi + 2
end
return finish()
