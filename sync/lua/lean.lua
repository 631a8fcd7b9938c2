-- SPDX-License-Identifier: MIT
-- lean: takes as they nearly always are: the shard's header is as it was left a moment ago, each key is asked for once
-- and nobody holds slices of it. It decides as decide.lua does, which it precedes, from the same KEYS and ARGV (they
-- are described there), and makes no function and no table of the shard. A shard of which anything is not ordinary is
-- left for what follows: nothing of it is written before that is known. Follows layout.lua.
-- reply nodes epoch now; an entry: admitted T. The numbers in force are those that were sent, nothing is reserved, no
--       state is gathered. Of several shards: as decide.lua.
local shards, asked = #KEYS / 3, ARGV[#ARGV]
local UNKNOWN = '\0\0\0\0\0\0\0\0' -- an epoch
local numbers, raw = sub(asked, 1, 56), unpk('<d', asked, 81)
local answers, complete = nil, true -- by shard, where there are several
local first, at = 1, 105
local same, times -- the cost and the count of each entry, where they are all alike
if #asked == 120 then same, times = unpk('<dd', asked, 105) end
for u = 1, shards do
  local n, m, last, name, epoch = #ARGV - 1, (#asked - 104) / 32, 0, KEYS[3 * u], sub(asked, 97, 104)
  if same then m = n end
  if shards > 1 then
    n, m = unpk('<dd', ARGV[#ARGV - 1], 24 * u - 23)
    epoch = sub(ARGV[#ARGV - 1], 24 * u - 7, 24 * u)
  end
  last = at + 32 * m
  local text, answer = call('HGET', name, '!'), false
  if text and m == n and n > 0 and #text == HEADER_LEN and sub(text, 1, 56) == numbers and
    (epoch == sub(text, 153, 160) or epoch == UNKNOWN) then
    if raw == 0 then raw = call('TIME'); raw = raw[1] * 1e6 + raw[2] end
    local limit, per, burst, _, high, offset, settled, gen, flip, changed, base, since, refresh, cur, prv =
      unpk('<ddddddddddddddd', text, 25)
    local now = raw + offset
    if cur == 1 and now >= high and now >= settled and now < flip then
      cur = gen % 2 == 0 and KEYS[3 * u - 2] or KEYS[3 * u - 1]
      prv = prv == 1 and (gen % 2 == 0 and KEYS[3 * u - 1] or KEYS[3 * u - 2])
      local values = call('HMGET', cur, unpack(ARGV, first, first + n - 1))
      local rate, o, w, wi, ours, older = limit * 1e3 / per, nil, nil, 0, true, nil
      for i = 1, n do
        local value, key, op, cost, a, t = values[i], i, 0, same, times, nil
        if not same then key, op, cost, a, at = unpk('<dddd', asked, at) end
        if not value and not older then
          -- The first that is not there: is its generation? Then all that are missing are looked for in the older one.
          older = {}
          ours = call('HGET', cur, '!') == pack('<d', gen) .. MARK
          if ours and prv then
            local k, miss = 1, {'!'}
            for j = i, n do if not values[j] then k = k + 1; miss[k] = ARGV[first + j - 1] end end
            miss = call('HMGET', prv, unpack(miss))
            ours, k = miss[1] == pack('<d', gen - 1) .. MARK, 1
            for j = i, n do if not values[j] then k = k + 1; older[j] = miss[k] end end
          end
        end
        value = value or older[i]
        if key ~= i or op ~= 0 then ours = false
        elseif not value then
          t = base + rate * (now - since)
          if t > burst then t = burst end
        elseif #value == 16 then
          local when
          t, when = unpk('<dd', value)
          -- neither a number that is none, nor one from before the numbers changed
          if when < changed or t - t ~= 0 or when - when ~= 0 then ours = false end
          if now > when then t = t + rate * (now - when) end
          if t > burst then t = burst end
        else ours = false end
        if not ours then break end
        if cost > 0 then
          local most = t / cost + 1e-9
          if most < a then a = most >= 1 and most - most % 1 or 0 end
          if a > 0 then
            t = t - a * cost
            value = pack('<dd', t, now)
            if wi == 0 then w = {ARGV[first + i - 1], value}
            else w[wi + 1], w[wi + 2] = ARGV[first + i - 1], value end
            wi = wi + 2
          end
        end
        if i == 1 then o = {a, t} else o[2 * i - 1], o[2 * i] = a, t end
      end
      -- Ten times a second the header's own time is written, and times to live are looked at, as with every denial.
      local stale = now > high + 1e5
      if ours and (stale or wi == 0) then
        ours = call('PTTL', cur) ~= -1 and call('PTTL', name) ~= -1 and (not prv or call('PTTL', prv) ~= -1)
      end
      if ours and (wi == 0 or now < refresh) then
        if wi > 0 then
          call('HSET', cur, unpack(w))
          if stale then call('HSET', name, '!', numbers .. pack('<d', now) .. sub(text, 65)) end
        end
        answer = sub(text, 145, 160) .. pack(n == 1 and '<ddd' or '<d' .. string.rep('dd', n), now, unpack(o))
      end
    end
  end
  if shards == 1 then
    if answer then return answer end
    answers, complete = {}, false
  else
    if u == 1 then answers = {answer} else answers[u] = answer end
    complete = complete and answer
    first, at = first + n, last
  end
end

-- The answers of several shards, each with its length before it.
local function join()
  if shards == 1 then return answers[1] end
  local all = {}
  for u = 1, shards do all[2 * u - 1], all[2 * u] = pack('<d', #answers[u]), answers[u] end
  return table.concat(all)
end
if complete then return join() end
