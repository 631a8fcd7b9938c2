-- SPDX-License-Identifier: MIT
-- The state of one key with the slices that nodes hold of it, brought to the present. Follows common.lua. It owns a
-- key's value; it must not know batches or who asks.
--
-- The key at hand is in locals, for a field of a table costs several times as much and there are a hundred of them in a
-- record: kT its true level; kTh the same with its cap raised by kU, the use expected but not yet reported (kes a
-- second); kP all that is reserved, growing at kR; kF, kD, kC sums of fallback rates, demands, caps; kN slices; ksw the
-- next sweep; ktrec the end of the last outage; krc charged since the epoch began; kv the value that it came
-- from ('' for none with slices), whose slices are in force but for the one at byte kown (0: none), which the asking
-- node renews; kwoke: its slices died since it was written.
local kT, kTh, kP, kR, kF, kD, kC, kN, kes, kU, ksw, ktrec, krc = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
local kv, kown, kwoke = '', 0, false

-- Sums the slices anew. One that was silent for longer than its lifetime is dead: it grows no more. If it reported last
-- before `bury`, what it had reserved counts as spent, and a tombstone keeps that, so that a late report of the same
-- spending is charged once. Where the debt's floor leaves no room for it, it stays reserved: nobody would carry it.
-- cut: the time of fallback use that its credit grows by.
local function rebuild(s, bury, cut)
  local now, life, v, out, j, bottom = s.now, s.life, kv, nil, 0, -(s.burst + s.over)
  local P, R, F, D, C, N, es, U, own = 0, 0, 0, 0, 0, 0, 0, 0, 0
  for i = #v - BASE_LEN - SLICE_LEN + 1, 1, -SLICE_LEN do
    local at, p, rate, cap, d, f, e, credit = unpk(SLICE, v, i + 8)
    local quiet, text = now - at, nil
    if i == kown then own = j
    elseif d < 0 then
      if quiet > REMEMBER then text = '' end
    else
      if quiet > life then
        p, rate, e, quiet, credit = p + rate * life, 0, 0, 0, credit + f * cut
        if at < bury and kT - max(0, p) >= bottom then
          if p < 0 then p = 0 end
          d, cap, kT, kTh, krc = -1, 0, kT - p, kTh - p, krc + p
        end
        text = sub(v, i, i + 7) .. pack(SLICE, at, p, rate, cap, d, f, e, credit)
        if d < 0 and p == 0 and credit == 0 then text = '' end
      end
      if d >= 0 then
        P, R, F, D, C, N = P + p + rate * quiet, R + rate, F + f, D + d, C + cap, N + 1
        es, U = es + e, U + e * quiet
      end
    end
    if text and not out then -- the first that changes: those behind it stay as they are
      out = sub(v, i + SLICE_LEN)
    end
    if out then out = (text or sub(v, i, i + SLICE_LEN - 1)) .. out end
    if text ~= '' then j = j + SLICE_LEN end
  end
  if out then kv, kown = out, kown > 0 and #out - BASE_LEN - SLICE_LEN - own + 1 or 0 end
  kP, kR, kF, kD, kC, kN, kes, kU, ksw = P, R, F, D, C, N, es, U, now + s.interval
end

-- What was charged since the epoch began, and more rather than less, where that was not noted yet: before anybody knew
-- that it was a new one.
local function unnoticed(s, t, at)
  if at < s.began or at >= s.recover - s.life then return 0 end
  return max(0, s.burst + s.rate * (at - s.began) - t)
end

-- A value with slices, brought to now. back: time whose refill is held over until a late report is charged.
local function load(s, back)
  local now, burst = s.now, s.burst
  local Th, P, R, F, D, C, N, sw, es, U, trec, rc, T, ts = unpk(BASE, kv, #kv - BASE_LEN + 1)
  local gone = now - ts
  if gone < 0 then gone = 0 end
  local dt = gone
  if ts < s.began then rc = 0 elseif now < s.settled then rc = max(rc, unnoticed(s, T, ts)) end
  if ts < s.changed then
    local above = Th - T
    T = min(T + s.old_rate * (s.changed - ts), max(T, s.old_burst))
    Th, dt = T + above, max(0, now - s.changed)
  end
  local gain = dt > back and s.rate * (dt - back) or 0
  krc, kR, kF, kD, kC, kN, kes = rc, R, F, D, C, N, es
  if gone > s.life then
    -- Nobody reported for a lifetime: all slices are dead, and their holders lived on their fallback shares. That use
    -- is kept out of the refill; the sweep waits, so that they can say what they really spent.
    local cut = s.outage and max(0, min(60e6, gone - 2 * s.timeout)) or 0
    gain, krc = gain - F * cut, rc + F * cut
    -- Those that were dead already when the key was written last have had that chance.
    kT, kTh = T, Th
    rebuild(s, ts - s.life, cut)
    T, Th = kT, kTh
    U, ktrec, ksw, kwoke = 0, now, now + s.life, kN > 0
  else U, kP, ktrec, ksw = U + es * gone, P + R * gone, trec, sw end
  T, Th = T + gain, Th + gain
  if T > burst then T = burst end
  local top = U > 0 and burst + U or burst
  if Th > top then Th = top end
  kT, kTh, kU = T, T > Th and T or Th, U
end

-- A key from its value, or from none. seed: what a node last saw of it (1e300: nothing).
local function bring(s, value, back, seed)
  kown, kwoke = 0, false
  if value and #value ~= 16 then
    local t, at = nil, nil
    if #value >= BASE_LEN and (#value - BASE_LEN) % SLICE_LEN == 0 then t, at = unpk('<dd', value, #value - 15) end
    if t and t - t == 0 and at - at == 0 then
      kv = value
      load(s, back)
      if seed - krc < kT then kT = seed - krc; kTh = kT end
      return
    end
    value, s.bad = nil, s.bad + 1
  end
  local t = plain(s, value, back)
  krc = 0
  if value and s.now < s.settled then krc = unnoticed(s, unpk('<dd', value)) end
  if seed - krc < t then t = seed - krc end
  kT, kTh, kv, ksw = t, t, '', s.now + s.interval
  kP, kR, kF, kD, kC, kN, kes, kU, ktrec = 0, 0, 0, 0, 0, 0, 0, 0, 0
end

-- Takes tokens that count as spent.
local function spend(x)
  kT, kTh, krc = kT - x, kTh - x, krc + x
end

-- The value to store; mine: the slice of the node that asks, or ''.
local function value_of(s, mine)
  local unpaid, v, own, others = carried(s, kT), kv, kown, ''
  local T = kT + unpaid
  if own > 0 then others = sub(v, 1, own - 1) .. sub(v, own + SLICE_LEN, #v - BASE_LEN)
  elseif v ~= '' then others = sub(v, 1, #v - BASE_LEN) end
  if others == '' and mine == '' and s.now >= s.settled then return pack('<dd', T, s.now) end
  return mine .. others .. pack(BASE, kTh > T and kTh or T, kP, kR, kF, kD, kC, kN, ksw, kes, kU, ktrec,
    krc - unpaid, T, s.now)
end
