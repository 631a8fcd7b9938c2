-- SPDX-License-Identifier: MIT
-- The state of one key with the slices that nodes hold of it, brought to the present. Follows common.lua. It owns a
-- key's value; it must not know batches or who asks.
--
-- A value: without slices T and its time. Else 14 doubles and 48 bytes a slice: the first 8 of the node's id, then two
-- doubles, when it reported and what it has reserved, then six floats: rate, cap, demand (-1: expired, `reserved` was
-- written off), fallback rate, expected use, and the fallback use that the last outage's refill was cut by.
--
-- The key at hand is in locals, for a field of a table costs several times as much and there are a hundred of them in a
-- record: kT its true level; kTh the same with its cap raised by kU, the use expected but not yet reported (kes a
-- second); kP all that is reserved, growing at kR; kF, kD, kC sums of fallback rates, demands, caps; kN slices; ksw the
-- next sweep; ktrec the end of the last outage; krc charged since state is being gathered; kv the value that it came
-- from ('' for none with slices), whose slices are in force but for the one at byte kown (0: none), which the asking
-- node renews; kwoke: its slices died since it was written.
local kT, kTh, kP, kR, kF, kD, kC, kN, kes, kU, ksw, ktrec, krc = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
local kv, kown, kwoke = '', 0, false
local BASE, BASE_LEN, SLICE, SLICE_LEN = '<dddddddddddddd', 112, '<ddffffff', 48

-- Sums the slices anew. One that was silent for longer than its lifetime is dead: it grows no more. If it reported last
-- before `bury`, what it had reserved counts as spent, and a tombstone keeps that, so that a late report of the same
-- spending is charged once. Where the debt's floor leaves no room for it, it stays reserved: nobody would carry it.
-- cut: the time of fallback use that its credit grows by.
local function rebuild(s, bury, cut)
  local now, life, v, out, j, changed, bottom = s.now, s.life, kv, {}, 0, false, -(s.burst + s.over)
  local P, R, F, D, C, N, es, U, own = 0, 0, 0, 0, 0, 0, 0, 0, 0
  for i = BASE_LEN + 1, #v, SLICE_LEN do
    local at, p, rate, cap, d, f, e, credit = unpk(SLICE, v, i + 8)
    local quiet, text = now - at, false
    if i == kown then own = BASE_LEN + 1 + j * SLICE_LEN
    elseif d < 0 then
      if quiet > REMEMBER then text, changed = '', true end
    else
      if quiet > life then
        p, rate, e, quiet, credit, changed = p + rate * life, 0, 0, 0, credit + f * cut, true
        if at < bury and kT - max(0, p) >= bottom then
          if p < 0 then p = 0 end
          d, cap, kT, kTh = -1, 0, kT - p, kTh - p
        end
        text = string.sub(v, i, i + 7) .. pack(SLICE, at, p, rate, cap, d, f, e, credit)
        if d < 0 and p == 0 and credit == 0 then text = '' end
      end
      if d >= 0 then
        P, R, F, D, C, N = P + p + rate * quiet, R + rate, F + f, D + d, C + cap, N + 1
        es, U = es + e, U + e * quiet
      end
    end
    if text ~= '' then j = j + 1; out[j] = text or i end
  end
  if changed then
    for i = 1, j do
      local at = out[i]
      if type(at) == 'number' then out[i] = string.sub(v, at, at + SLICE_LEN - 1) end
    end
    kv, kown = string.sub(v, 1, BASE_LEN) .. table.concat(out), own
  end
  kP, kR, kF, kD, kC, kN, kes, kU, ksw = P, R, F, D, C, N, es, U, now + s.interval
end

-- A value with slices, brought to now. back: time whose refill is held over until a late report is charged.
local function load(s, back)
  local now, burst = s.now, s.burst
  local T, ts, Th, P, R, F, D, C, N, sw, es, U, trec, rc = unpk(BASE, kv)
  local gone = now - ts
  if gone < 0 then gone = 0 end
  local dt = gone
  if ts < s.recover - s.life then rc = 0 end
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
    gain = gain - F * cut
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
    if #value >= BASE_LEN and (#value - BASE_LEN) % SLICE_LEN == 0 then t, at = unpk('<dd', value) end
    if t and t - t == 0 and at - at == 0 then
      kv = value
      load(s, back)
      if s.now < s.recover and seed - krc < kT then kT = seed - krc; kTh = kT end
      return
    end
    value, s.bad = nil, s.bad + 1
  end
  local t = plain(s, value, back)
  if seed < t and (not value or s.now < s.recover) then t = seed end
  kT, kTh, kv, ksw = t, t, '', s.now + s.interval
  kP, kR, kF, kD, kC, kN, kes, kU, ktrec, krc = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
end

-- Takes tokens that count as spent.
local function spend(x)
  kT, kTh, krc = kT - x, kTh - x, krc + x
end

-- The value to store; mine: the slice of the node that asks, or ''.
local function value_of(s, mine)
  local T, v, own, before = kT + carried(s, kT), kv, kown, ''
  local after = own > 0 and own + SLICE_LEN or BASE_LEN + 1
  if #v < after and own <= BASE_LEN + 1 and mine == '' and s.now >= s.recover then return pack('<dd', T, s.now) end
  if own > BASE_LEN + 1 then before = string.sub(v, BASE_LEN + 1, own - 1) end
  return pack(BASE, T, s.now, kTh > T and kTh or T, kP, kR, kF, kD, kC, kN, ksw, kes, kU, ktrec, krc) ..
    before .. string.sub(v, after) .. mine
end
