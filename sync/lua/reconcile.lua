-- SPDX-License-Identifier: MIT
-- reconcile: a node's batch for one shard, applied exactly once: charges what was spent, hands out the next slices.
-- Follows common.lua, batch.lua (where KEYS, ARGV and the reply are described) and slices.lua.
local tail = sub(id, 1, 8)
local WHOLE, copied -- a value of which so many bytes stay
local now, r, burst, S = s.now, s.rate, s.burst, s.interval
local pool = s.over > s.reserve and s.over - s.reserve or 0 -- what slices may borrow
local budget = max(16, n / s.nodes) -- keys to sweep
s.outage = flags % 4 >= 2

-- Where this node's slice begins in a value, or 0.
local function find_own(v)
  local at = string.find(v, tail, 1, true)
  while at and (at - 1) % SLICE_LEN ~= 0 do at = string.find(v, tail, at + 1, true) end
  return at and at <= #v - BASE_LEN and at or 0
end

-- Buries the dead of a key once every interval.
local function sweep()
  if budget > 0 and not gathering then
    budget = budget - 1
    rebuild(s, now, 0)
  end
end

-- Charges a report: spent on slices, given back, spent on the fallback share. back: the refill that was held over for
-- it; paid: part of the fallback use that is not to be charged. This node's slice leaves the sums. Returns what is left
-- of its credit for fallback use: a node may report twice before it has told all of an outage.
local function charge(spent, refunded, fall, back, paid)
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
  if paid > credit then credit = paid end
  if fall > 0 then
    x = x + max(0, min(fall - credit, kT - x + burst))
    credit = max(0, credit - fall)
  end
  local more, top, T, Th = refunded + s.rate * back, burst, kT - x, kTh - x
  T, Th, krc = T + more, Th + more, krc + x - refunded
  if T > top then T = top end
  if kU > 0 then top = top + kU end
  if Th > top then Th = top end
  kT, kTh = T, T > Th and T or Th
  if now >= ksw then sweep() end
  return credit
end

-- Short records of keys that have slices, or of a state that is young. A slice of this node's that is still alive stays;
-- one that holds nothing but what was carried does not.
for j = 1, #later, 2 do
  local i, spent, credit, unpaid, mine = later[j], later[j + 1], 0, 0, ''
  bring(s, values[i + 1], 0, (seed_of(i, 0)))
  local at = find_own(kv)
  if at > 0 and select(5, unpk(SLICE, kv, at + 8)) > 0 then
    spend(spent)
    kT = min(burst, kT)
    if now >= ksw then sweep() end
  else
    credit = charge(spent, 0, 0, 0, 0)
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

-- Long records. usual.lua has done those that are as they mostly are.
local asked = {unpk('<' .. string.rep('d', 9 * longs), ARGV[6])}
local bottom, half, recover, args = -(burst + s.over), burst / 2, s.recover, ARGV
-- Those that were there before a loss and are not back yet live on their fallback shares: for a while that part of the
-- rate is theirs, and that of the lifetime for which their slices went on before it, for what they saw tells no others
-- of what they had spent.
local missing, theirs = s.expected - s.came, 0
if missing > 0 and s.expected < UNCOUNTED and now < s.began + AWAY then
  theirs = r * missing / s.expected
  r = r - theirs
end
for j = 1, longs do
  local i, at, back = shorts + j, 9 * j - 8, 0
  local value, age, level, rate, d, want, most = values[i + 1], asked[at + 3], asked[at + 4], asked[at + 5],
    asked[at + 6], asked[at + 7], asked[at + 8]
  if age > 0 and value and #value >= 16 then back = max(0, min(age, now - (unpk('<d', value, #value - 7)))) end
  local seed, paid = seed_of(i, age)
  bring(s, value, back, seed)
  local credit = charge(asked[at], asked[at + 1], asked[at + 2], back, paid)
  local T, Th, P, R, F, D, C, N, es, U, sw, trec, rc = kT, kTh, kP, kR, kF, kD, kC, kN, kes, kU, ksw, ktrec, krc
  local v, own, inflight, late, cap, f, e = kv, kown, rate * rtt, 0, nil, nil, nil
  if theirs > 0 then -- as far as they are asked for this key as those are that have come
    late = min(burst, min(theirs, (D + d) / (N + 1) * missing) * (now - s.began + s.life))
  end
