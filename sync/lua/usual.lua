-- SPDX-License-Identifier: MIT
-- usual: a node's batch as it nearly always is: the node and the shard's header are as they were left a moment ago, no
-- request waits, no state is young, nobody has died. It decides as batch.lua and reconcile.lua do, which it precedes,
-- from the same KEYS and ARGV (they are described there) and with the same answer, and makes no function and no table
-- of the shard: those cost more than a dozen records. A batch of which anything is not ordinary is left for what
-- follows: nothing of it is written before that is known. Follows layout.lua; ends in the middle of a loop, which
-- grant.lua and usually.lua go on with.
repeat
  local id, name, args, numbers = ARGV[3], KEYS[3], ARGV, ARGV[1]
  local got = call('HMGET', name, '!', '\1' .. id)
  local text, node = got[1], got[2]
  if args[7] ~= '' or args[8] ~= '' or not text or not node or #text ~= HEADER_LEN or #node ~= 32 or
    sub(text, 1, 56) ~= sub(numbers, 1, 56) then break end
  local format, shards, version, limit, per, burst, over, high, offset, settled, gen, flip, changed, base, since,
    refresh, cur, prv, nodes, current, reserve, life, length, _, _, _, promised, promisable, raised, swept, _, began =
    unpk(HEADER, text)
  local seq, epoch, rtt, _, shorts, longs, _, owed = unpk('<dddddddd', args[4])
  local known, said, counted, q0 = unpk('<dddd', node)
  local S, timeout = unpk('<dd', numbers, 57)
  local now = tonumber(args[2])
  if not now or now == 0 then
    now = call('TIME')
    now = now[1] * 1e6 + now[2]
  end
  now = now + offset
  if epoch ~= current or seq ~= known + 1 or cur ~= 1 or now < high or now < settled or now >= flip or now >= refresh or
    now >= swept + 10e6 or said < swept - 60e6 or said < began or 1.5 * S + 2 * timeout > life or raised == 0 then break end

  -- The node's overdraft stays what it is.
  local each = 0.75 * over / nodes + 1e-9
  each = each - each % 1
  local left = promisable - (promised - counted) + 1e-9
  left = left - left % 1
  if each < left then left = each end
  if left < 0 then left = 0 end
  if left ~= q0 or counted ~= q0 or owed > q0 and owed > 1 or each * nodes ~= reserve or promisable > reserve or
    promisable < reserve and now >= raised + length then break end

  cur = gen % 2 == 0 and KEYS[1] or KEYS[2]
  prv = prv == 1 and (gen % 2 == 0 and KEYS[2] or KEYS[1])
  if now > high + 1e5 and
    (call('PTTL', cur) == -1 or call('PTTL', name) == -1 or prv and call('PTTL', prv) == -1) then break end
  local n = shorts + longs
  local values = call('HMGET', cur, '!', unpack(args, 9, n + 8)) -- that of record i at [i + 1]
  if values[1] ~= pack('<d', gen) .. MARK then break end

  local r, ordinary, spent, missing = limit * 1e3 / per, true, nil, nil
  local absent, bottom, pool = base + r * (now - since), -(burst + over), 0
  if absent > burst then absent = burst end
  if over > reserve then pool = over - reserve end

  -- What is not in the newer generation may be in the older one. In neither: as a key that had so much just now.
  local filler = pack('<dd', absent, now)
  for i = 2, shorts + 1 do
    local value = values[i]
    if not value then
      missing = missing or {}
      missing[#missing + 1] = i
      values[i] = filler
    elseif #value ~= 16 then ordinary = false end
  end
  if not ordinary then break end
  if prv then
    for i = shorts + 2, n + 1 do
      if not values[i] then
        missing = missing or {}
        missing[#missing + 1] = i
      end
    end
    if missing then
      local older = {'!'}
      for j = 1, #missing do older[j + 1] = args[missing[j] + 7] end
      older = call('HMGET', prv, unpack(older))
      if older[1] ~= pack('<d', gen - 1) .. MARK then break end
      for j = 1, #missing do
        local i, value = missing[j], older[j + 1]
        if value then
          values[i] = value
          if i <= shorts + 1 and #value ~= 16 then ordinary = false end
        end
      end
      if not ordinary then break end
    end
  end

  -- One table for what is read and, in its place, the reply: its head, two doubles a short record (level and time, as
  -- they are stored), nine a long one.
  local kinds, read, first = string.rep('dd', shorts), args[6], values[shorts + 2]
  if shorts > 0 then
    values[shorts + 2] = read
    read = table.concat(values, '', 2, shorts + 2)
    values[shorts + 2] = first
  end
  local out = {format, 0, now, epoch, seq, version, limit, per, burst, over, nodes, q0, pool, 0, shards, 0, 1,
    unpk('<' .. kinds .. string.rep('d', 9 * longs), read)}

  -- Short records.
  if shorts > 0 then
    spent = {0, 0, 0, 0, 0, 0, 0, 0, unpk('<' .. string.rep('d', shorts), args[5])} -- by its field's place in ARGV
    local at = 18
    for i = 9, shorts + 8 do
      local second = at + 1
      local t, when = out[at], out[second]
      if now > when then t = t + r * (now - when) end
      if t > burst then t = burst end
      t = t - spent[i]
      if t > burst then t = burst end
      -- a debt at its floor, a number that is none, one from before the numbers changed
      if not (t >= bottom and when >= changed) then ordinary = false end
      out[at] = t
      out[second] = now
      at = at + 2
    end
    if not ordinary then break end
  end

  -- Long records. Eight numbers out for nine in: answers take the place of what was read.
  local o, oi, late, gathering, settling, waiting, admit = out, 17 + 2 * shorts, 0, false, false, nil, nil
  local tail, half, budget, w, wi = sub(id, 1, 8), burst / 2, n / nodes, nil, 0
  if budget < 16 then budget = 16 end
  local WHOLE, copied -- a value of which so many bytes stay
  if longs > 0 then
    w = {unpack(args, 9 + shorts, 8 + shorts + 2 * longs)} -- as large as it will be
  end
  for j = 1, longs do
    local i, at = shorts + j, 9 * j + 2 * shorts + 9
    local x, refunded, fall, age, level, rate, d, want, most = unpack(out, at, at + 8)
    if fall > 0 or age > 0 then ordinary = false break end -- after an outage
    local v, inflight, lasts = values[i + 1], rate * rtt, life
    local size = v and #v or 0
    if size == 16 or size == 0 then -- as one with a slice that nothing is left of
      local T, ts = absent, now
      if v then T, ts = unpk('<dd', v) end
      v = pack(LAST, tail, now, 0, 0, 0, -1, 0, 0, 0, T, 0, 0, 0, 0, 0, 0, now + S, 0, 0, 0, 0, T, ts)
      size, lasts = BASE_LEN + SLICE_LEN, now
    end
    local own = size - BASE_LEN - SLICE_LEN + 1
    if own < 1 or (own - 1) % SLICE_LEN ~= 0 then ordinary = false break end
    local who, last, p, was, cap, demand, f, e, credit, Th, P, R, F, D, C, N, sw, es, U, trec, rc, T, ts =
      unpk(LAST, v, own)
    if not (now - ts <= lasts and ts >= changed and T - T == 0) then ordinary = false break end
    -- Refilled, with what is reserved grown.
    if now > ts then
      local dt = now - ts
      T = T + r * dt
      Th = Th + r * dt
      P = P + R * dt
      U = U + es * dt
    end
    if ts < began then rc = 0 end
    if T > burst then T = burst end
    local top = U > 0 and burst + U or burst
    if Th > top then Th = top end
    if Th < T then Th = T end
    -- This node's slice leaves the sums.
    if who ~= tail then
      local at = string.find(v, tail, 1, true)
      while at and (at - 1) % SLICE_LEN ~= 0 do at = string.find(v, tail, at + 1, true) end
      if at and at < own then last, p, was, cap, demand, f, e, credit = unpk(SLICE, v, at + 8)
      else at, credit = 0, 0 end
      own = at
    end
    if own > 0 then
      if demand < 0 then
        if p > 0 then x = x > p and x - p or 0 end -- it was written off
      elseif N <= 1 then P, R, F, D, C, N, es, U = 0, 0, 0, 0, 0, 0, 0, 0
      else
        local quiet = now - last
        P = P - p - was * quiet
        R = R - was
        F = F - f
        D = D - demand
        C = C - cap
        N = N - 1
        es = es - e
        U = U - e * quiet
      end
      if now > trec + 60e6 then credit = 0 end
    end
    -- What was spent leaves the level.
    T = T - x + refunded
    Th = Th - x + refunded
    rc = rc + x - refunded
    if T > burst then T = burst end
    top = U > 0 and burst + U or burst
    if Th > top then Th = top end
    if Th < T then Th = T end
    -- Once an interval the sums are made anew.
    if now >= sw and budget > 0 then
      budget = budget - 1
      P, R, F, D, C, N, es, U, sw = 0, 0, 0, 0, 0, 0, 0, 0, now + S
      for k = size - BASE_LEN - SLICE_LEN + 1, 1, -SLICE_LEN do
        if k ~= own then
          local last, p, was, cap, demand, f, e = unpk(SLICE, v, k + 8)
          local quiet = now - last
          if demand < 0 then
            if quiet > 600e6 then ordinary = false end
          elseif quiet > life then ordinary = false
          else
            P = P + p + was * quiet
            R = R + was
            F = F + f
            D = D + demand
            C = C + cap
            N = N + 1
            es = es + e
            U = U + e * quiet
          end
        end
      end
      if not ordinary then break end
    end
