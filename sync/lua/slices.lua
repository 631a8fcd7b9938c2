-- SPDX-License-Identifier: MIT
-- The state of one key, with the slices that nodes hold of it, brought to the present. Follows common.lua. It owns a
-- key's value; it must not know batches or who asks.
--
-- A value: without slices T and its time. Else 14 doubles and 72 bytes a slice: the first 8 of the node's id, then
-- time, reserved, rate, cap, demand (-1: expired, `reserved` was written off), fallback rate, expected use, and the
-- fallback use that the last outage's refill was cut by.
local BASE, BASE_LEN, SLICE, SLICE_LEN = '<' .. rep('d', 14), 112, '<dddddddd', 72

-- The shard that the functions below work on.
local s, h, now, r, B, S, life, outage

-- The key that they work on. T true level, at time ts; Th the same with its cap raised by U, the use expected but not
-- yet reported (es a second); P all that is reserved, growing at R; F, D, C sums of fallback rates, demands, caps; N
-- slices; sw the next sweep; trec the end of the last outage; rc charged since state is being gathered.
local v, T, ts, Th, P, R, F, D, C, N, sw, es, U, trec, rc

local function use(shard, local_outage)
  s, h, now, r, B, S, life = shard, shard.h, shard.now, shard.rate, shard.burst, shard.interval, shard.h[LIFE]
  outage = local_outage
end

-- Is it a value that these scripts wrote?
local function sound(value)
  local n = #value
  if n ~= 16 and (n < BASE_LEN or (n - BASE_LEN) % SLICE_LEN ~= 0) then return false end
  local t, at = unpk('<dd', value)
  return t - t == 0 and at - at == 0
end

-- The level now of a key that had t at time `at`.
local function refill(t, at)
  local changed = h[CHANGED]
  if at < changed then t, at = min(t + h[OLD_RATE] * (changed - at), max(t, h[OLD_BURST])), changed end
  if now > at then t = t + r * (now - at) end
  return min(t, B)
end

-- Sums the slices anew. One that was silent for longer than its lifetime is dead: it grows no more; with `expire`
-- what it had reserved counts as spent, and a tombstone keeps that, so that a late report of the same spending is
-- charged once.
local function rebuild(expire, cut)
  P, R, F, D, C, N, es, U = 0, 0, 0, 0, 0, 0, 0, 0
  local out, k, changed = {}, 0, false
  for i = BASE_LEN + 1, #v, SLICE_LEN do
    local at, p, rate, cap, d, f, e, credit = unpk(SLICE, v, i + 8)
    local quiet, text = now - at, sub(v, i, i + SLICE_LEN - 1)
    if d < 0 then
      if quiet > REMEMBER then text, changed = nil, true end
    else
      if quiet > life then
        p, rate, e, quiet, changed = p + rate * life, 0, 0, 0, true
        credit = credit + f * cut
        if expire then
          p, d, cap = max(0, p), -1, 0
          T, Th = T - p, Th - p
        end
        text = sub(v, i, i + 7) .. pack(SLICE, at, p, rate, cap, d, f, e, credit)
        if d < 0 and p == 0 and credit == 0 then text = nil end
      end
      if d >= 0 then
        P, R, F, D, C, N = P + p + rate * quiet, R + rate, F + f, D + d, C + cap, N + 1
        es, U = es + e, U + e * quiet
      end
    end
    if text then k = k + 1; out[k] = text end
  end
  if changed then v = sub(v, 1, BASE_LEN) .. table.concat(out) end
  sw = now + S
end

-- A value with slices, brought to now. back: s of refill that are held over until a late report is charged.
local function load(back)
  T, ts, Th, P, R, F, D, C, N, sw, es, U, trec, rc = unpk(BASE, v)
  local dt = max(0, now - ts)
  local gap, gone = dt > life, dt
  if ts < h[RECOVER] - life then rc = 0 end
  if ts < h[CHANGED] then
    local above = Th - T
    T = min(T + h[OLD_RATE] * (h[CHANGED] - ts), max(T, h[OLD_BURST]))
    Th, dt = T + above, max(0, now - h[CHANGED])
  end
  local gain = r * max(0, dt - back)
  if gap then
    -- Nobody reported for a lifetime: all slices are dead, and their holders lived on their fallback shares. That use
    -- is kept out of the refill; the sweep waits, so that they can say what they really spent.
    local cut = outage and max(0, min(60, gone - 2 * s.timeout)) or 0
    gain, trec = gain - F * cut, now
    rebuild(false, cut)
    U, sw = 0, now + life
  else
    P, U = P + R * gone, U + es * gone
  end
  T, Th = min(B, T + gain), min(B + max(0, U), Th + gain)
  if Th < T then Th = T end
end

-- Brings a key to now from its value, or from none. seed: what a node last saw (1e300: nothing).
local function bring(value, back, seed)
  if value and not sound(value) then value = nil; s.bad = s.bad + 1 end
  local gathering = now < h[RECOVER]
  if value and #value > 16 then
    v = value
    load(back)
    if gathering and seed - rc < T then T, Th = seed - rc, seed - rc end
    return
  end
  P, R, F, D, C, N, es, U, trec, rc = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if value then
    T, ts = unpk('<dd', value)
    T = refill(T - r * back, ts)
    if gathering then T = min(T, seed) end
  else
    T, ts = min(s.absent, seed), now
  end
  v, Th, sw = rep('\0', BASE_LEN), T, now + S
end

-- A debt has a floor, since a generation is only so long: whole tokens below it are not applied, the node reports
-- them again.
local function floored(t)
  local bottom = -(B + h[OVER])
  if t < bottom then t = t + floor(bottom - t) end
  return t
end

-- The value to store; own: one more slice, or ''.
local function value_of(own)
  if #v + #own <= BASE_LEN and now >= h[RECOVER] then return pack('<dd', floored(T), now) end
  local base = pack(BASE, floored(T), now, floored(Th), P, R, F, D, C, N, sw, es, U, trec, rc)
  return base .. sub(v, BASE_LEN + 1) .. own
end
