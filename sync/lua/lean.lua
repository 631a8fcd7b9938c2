-- SPDX-License-Identifier: MIT
-- lean: takes as they nearly always are: the shard's header is as it was left a moment ago, each key is asked for once
-- and nobody holds slices of it. It decides as decide.lua does, which it precedes, from the same KEYS and ARGV (they are
-- described there), and makes no function and no table of the shard. Whatever is not ordinary is left for what follows:
-- nothing is written before that is known.
-- reply head; an entry: admitted free
do
  local sub = string.sub

  -- Is a key immortal? A denial would otherwise leave it so.
  local function all_mortal(cur, prv, name)
    return call('PTTL', cur) ~= -1 and call('PTTL', name) ~= -1 and (not prv or call('PTTL', prv) ~= -1)
  end

  -- Looks for those that the newer generation does not have in the older one. False: that one is not there.
  local function look_back(prv, tag, values, n)
    local at, miss, k = {}, {tag}, 0
    for i = 2, n + 1 do
      if not values[i] then k = k + 1; at[k], miss[k] = i, ARGV[i + 3] end
    end
    if k == 0 then return true end
    local got = call('HMGET', prv, '!', unpack(miss))
    for i = 1, k do values[at[i]] = got[i + 1] end
    return got[1] == tag
  end

  local text, raw = call('HGET', KEYS[3], '!'), ARGV[2]
  if text and #text == 240 and sub(text, 1, 56) == sub(ARGV[1], 1, 56) then
    if raw == '' then raw = call('TIME'); raw = raw[1] * 1e6 + raw[2] end
    local limit, per, burst, over, _, epoch, high, offset, recover, gen, flip, changed, base, since, reserve, refresh, cur,
      prv = unpk('<dddddddddddddddddd', text, 25)
    local now, n = raw + offset, #ARGV - 4
    if cur == 1 and now >= high and now >= recover and now < flip and #ARGV[4] == 32 * n then
      cur = gen % 2 == 0 and KEYS[1] or KEYS[2]
      prv = prv == 1 and (gen % 2 == 0 and KEYS[2] or KEYS[1])
      local values = call('HMGET', cur, '!', unpack(ARGV, 5))
      local ours = values[1] == sub(text, 97, 104) .. MARK and
        (not prv or look_back(prv, pack('<d', gen - 1) .. MARK, values, n))
      local rate, o, w, wi, entries, at = limit * 1e3 / per, {}, {}, 0, ARGV[4], 1
      local absent = base + rate * (now - since)
      if absent > burst then absent = burst end
      for i = 1, ours and n or 0 do
        local value, key, op, cost, a = values[i + 1], nil, nil, nil, nil
        key, op, cost, a, at = unpk('<dddd', entries, at)
        ours = key == i and op == 0
        local t = absent
        if value then
          local when
          if #value == 16 then t, when = unpk('<dd', value) end
          -- neither a number that is none, nor one from before the numbers changed
          ours = ours and when and when >= changed and t - t == 0 and when - when == 0
          if not ours then break end
          if now > when then t = t + rate * (now - when) end
          if t > burst then t = burst end
        elseif not ours then break end
        if cost > 0 then
          local most = t / cost + 1e-9
          if most < a then a = most >= 1 and most - most % 1 or 0 end
          if a > 0 then
            t = t - a * cost
            w[wi + 1], w[wi + 2] = ARGV[4 + i], pack('<dd', t, now)
            wi = wi + 2
          end
        end
        o[2 * i - 1], o[2 * i] = a, t
      end
      -- Ten times a second the header's own time is written, and times to live are looked at, as with every denial.
      local stale = now > high + 1e5
      if ours and (stale or wi == 0) then ours = all_mortal(cur, prv, KEYS[3]) end
      if ours and (wi == 0 or now < refresh) then
        if wi > 0 then
          call('HSET', cur, unpack(w))
          if stale then call('HSET', KEYS[3], '!', sub(text, 1, 72) .. pack('<d', now) .. sub(text, 81)) end
        end
        over = over > reserve and over - reserve or 0
        return sub(text, 1, 8) .. pack('<dddd', 0, now, epoch, 0) .. sub(text, 17, 64) ..
          pack('<ddd', 0, over, 0) .. sub(text, 9, 16) .. pack('<d' .. string.rep('dd', n), 0, unpack(o))
      end
    end
  end
end
