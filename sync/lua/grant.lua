-- SPDX-License-Identifier: MIT
-- grant: the piece of a loop that usual.lua and reconcile.lua share: a node's next slice of one key. It stands among
-- their locals and is no script by itself; no function, for a call costs as much as ten additions, and no field of a
-- table. In: v the key's value ('' for one without slices), own where the node's slice is in it (0: nowhere); T Th P R
-- F D C N es U sw trec rc as slices.lua names them, without that slice; credit; what was asked: level rate d want most
-- inflight; late: what is kept for nodes that are not back yet. It decides the new slice, appends the answer to o and
-- what is to be written to w.
-- sure: what is nobody's; avail: what may be given.
local sure = T - P - late - level - inflight
if waiting then
  local took = admit(i, min(sure, T))
  T, Th, rc, sure = T - took, Th - took, rc + took, sure - took
end
local avail = Th
if sure < T then avail = avail - T + sure end
if sure + pool < avail then avail = sure + pool end
if gathering then avail = 0 end

-- The fair share of a key: what the node may have in hand, the target of its rate, its fallback rate, how scarce
-- tokens are, and d's part of the demand.
local all, target, x = D + d, 0, 0
local frac = all > d and d / all or 1
local goal, least = half * frac, want < 2 and want or 2
if want < goal then goal = want end
if goal < least then goal = half >= least * (N + 1) and least or 0 end
f = 0
if goal > 0 then
  if most > goal and (N > 0 and half or burst) >= most * (N + 1) then goal = most end
  x = 0.25
  target = r
  f = r * frac
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
  target = x * target
  if f > r - F then f = r > F and r - F or 0 end
else goal = 0 end

-- The next slice.
local new, hold, rich = level, 0, 1
if not gathering then
  local have, g = avail > 0 and avail or 0, 0
  rate = target < f and target or f
  if rate > r - R then rate = r - R end
  if rate < 1e-5 * r then rate = 0 end
  if level < 0 then g = -level < have and -level or have end
  if goal > level + g then
    local part, even = goal - level - g, 0.5 / (N + 1)
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
  local room = burst - C
  local fits = level > 0 and room - level or room
  if g > fits then g = fits end
  if g < 0 then g = 0 end
  new = level + g
  avail = avail - g
  cap = new > 0 and new or 0
  local top = goal < room and goal or room
  if rate > 0 and top > cap then cap = top end
  R = R + rate
  -- The time before which asking again is no use.
  if avail < 1 then
    rich = 0
    local left = r - R
    hold = left > 1e-15 and (1 - avail) / left or S
    if hold > S then hold = S end
    if hold < (1 - avail) / r then hold = (1 - avail) / r end
  elseif x > 0.5 and new < goal - 1e-6 and rate >= 0.7 * target then hold = 0.1 * S end
  if goal > 0 and rate < 0.7 * target and hold > 0.1 * S then hold = 0.1 * S end
else -- what the node holds stays its own, and nothing more is given
  if rate > r - R then rate = r - R end
  if rate < 0 then rate = 0 end
  cap, hold, rich, R = level > 0 and level or 0, recover - now, 0, R + rate
end

-- What is stored; its slice goes before those of the others, so that it mostly is the last next time. others: what begins
-- with their slices; many: so many bytes.
local reserved, unpaid, owed, others, many = new + inflight, nil, T, v, #v - BASE_LEN
if T <= bottom - 1 then -- an overdraft pays for no other debt
  unpaid = bottom - T
  unpaid = unpaid - unpaid % 1
  if reserved < 0 then reserved = 0 end
  reserved, owed, rc = reserved + unpaid, T + unpaid, rc - unpaid
end
if own > 0 then
  many = many - SLICE_LEN
  if own <= many then others = sub(v, 1, own - 1) .. sub(v, own + SLICE_LEN, many + SLICE_LEN) end
end
if many <= 0 then others, many = '', 0 end
local value
if d > 0 or rate > 0 or reserved > 1e-9 or reserved < -1e-9 then
  e = new > 0 and rate + new / S or rate
  if d < e then e = d end
  P = P + reserved
  F = F + f
  D = all
  C = C + cap
  N = N + 1
  es = es + e
  if many ~= copied then WHOLE, copied = '<c8ddffffffc' .. many .. sub(BASE, 2), many end
  value = pack(WHOLE, tail, now, reserved, rate, cap, d, f, e, credit, others, Th > owed and Th or owed, P, R, F, D, C,
    N, sw, es, U, trec, rc, owed, now)
elseif many > 0 or settling then
  value = pack('<c' .. many .. sub(BASE, 2), others, Th > T and Th or T, P, R, F, D, C, N, sw, es, U, trec, rc, T, now)
else value = pack('<dd', T, now) end
o[oi + 1] = T -- one after the other: what is assigned together goes to another place first
o[oi + 2] = owed - P
o[oi + 3] = new
o[oi + 4] = rate
o[oi + 5] = cap
o[oi + 6] = f
o[oi + 7] = hold
o[oi + 8] = rich
oi = oi + 8
w[wi + 1] = args[8 + i]
w[wi + 2] = value
wi = wi + 2
