-- SPDX-License-Identifier: MIT
-- common: a shard's header, its clock, its two generations of keys, its policy's numbers. It owns the life
-- of the header and of the generations; it must not know records, slices or what follows a reply's head. Follows
-- layout.lua.
-- Every function and every local that functions share costs on each call of a script, and a call of math.min costs ten
-- comparisons: so there are few of them here.
local floor, max, min = math.floor, math.max, math.min

local LIVE = 60e6      -- a node that was silent for longer is not counted
local REMEMBER = 600e6 -- nor remembered after this
local STRAGGLE = 10e6  -- what a node saw of all its keys comes within this
local UNCOUNTED = 1e9  -- nodes: more than that are there, nobody knows how many
local AWAY = 6e6       -- who has not come back after this is not waited for
local CHUNK = 6000     -- values a call: unpack fails at 8,000

-- A shard from its header. Made in one piece: a table that grows is built anew each time.
local function read_header(text)
  local a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, A, B, C, D, E, F, G, H =
    unpk(HEADER, text)
  return {format = a, shards = b, version = c, limit = d, per = e, burst = f, over = g, high = h, offset = i,
    settled = j, gen = k, flip = l, changed = m, base = n, base_at = o, refresh = p, has_cur = q, has_prev = r,
    nodes = s, epoch = t, reserve = u, life = v, length = w, old_rate = x, old_burst = y, keep = z, promised = A,
    promisable = B, raised = C, swept = D, recover = E, began = F, came = G, expected = H, even = '', odd = '', name = '', cur = '', prv = '', raw = 0, nonce = 0,
    bad = 0, now = 0, interval = 0, timeout = 0, before = 0, rate = 0, absent = 0, node = false, save = false,
    fresh = false, outage = false, stop = false, wrote = false}
end

-- The tag of a generation.
local function tag(gen)
  return pack('<d', gen) .. MARK
end

-- PEXPIRE's argument must be an integer, 1 at least; `..` would print 1e+15.
local function expire(name, us)
  call('PEXPIRE', name, string.format('%.0f', max(1, math.ceil(us / 1000))))
end

-- The server's clock; tests may give another.
local function clock(override)
  if override and override ~= 0 then return override end
  local t = call('TIME')
  return t[1] * 1e6 + t[2]
end

-- A new epoch: what nodes know of this shard is not what Redis holds. They register again for one lifetime. Who comes
-- later saw nothing of what was charged since: that is told apart until all have come that there were.
local function lost(s)
  local old = s.epoch
  s.epoch = (s.nonce + s.raw) % 4503599627370496 + 1
  if s.epoch == old then s.epoch = old + 1 end
  s.began, s.recover, s.settled, s.came, s.expected = s.now, s.now + s.life, s.now + REMEMBER, 0, 0
  s.save = true
end

-- A node knows another epoch. Once an epoch that is a loss: those who come later register in what it found. Where a new
-- node made the state a moment ago, who knew of none before, what it was charged counts from then.
local function estranged(s)
  if s.recover ~= 0 and not s.fresh then return end
  lost(s)
  if not s.fresh and s.changed == 0 and s.now <= s.base_at + LIVE then s.began = s.base_at end
end

-- A node that is back since the epoch began; it had heard of so many nodes.
local function came(s, nodes)
  s.came, s.expected = s.came + 1, max(s.expected, nodes)
  s.settled = s.came >= s.expected and max(s.recover, s.now + STRAGGLE) or s.recover - s.life + REMEMBER
end

-- The level that a node saw so long ago, grown since. What overflowed before the epoch began is lost. Since then nothing
-- is cut off: the level that Redis has is, and the lesser of the two counts. out: for so long the node has lived on its
-- fallback share. That use is kept out of the refill until the epoch began, for that time the second result.
local function recalled(s, level, age, out)
  local since = s.now - s.began
  if s.began == 0 then since = 0 end
  out = max(0, min(LIVE, out - since))
  if age > since then level, age = min(s.burst, level + s.rate * max(0, age - since - out)), since end
  local at = s.now - age
  if at < s.changed then level, at = level + s.old_rate * (s.changed - at), s.changed end
  return level + s.rate * (s.now - at), out
end

-- What happens seldom. n: the numbers of the one who asks; nil: a flip is due.
local function amend(s, n)
  local now = s.now

  -- How long a generation lasts: the first class that holds so long a refill.
  local function class(us)
    if us <= 10e6 then return 10e6 elseif us <= 600e6 then return 600e6 elseif us <= 86400e6 then return 86400e6 end
    return 3456000e6
  end

  -- Both generations must outlive a longer class.
  local function stretch()
    expire(s.even, 3 * s.length)
    expire(s.odd, 3 * s.length)
    s.refresh = 0
  end

  -- A shard that Redis knows nothing of. Its generations may have outlived its header (which was evicted alone): then
  -- they are kept, and their count goes on.
  local function create()
    s.format, s.shards, s.version, s.limit, s.per, s.burst, s.over = n[1], n[2], n[3], n[4], n[5], n[6], n[7]
    s.life, s.high, s.swept, s.fresh = 1.5 * s.interval + 2 * s.timeout, now, now, true
    s.epoch = (s.nonce + s.raw) % 4503599627370496 + 1
    s.length = class((2 * s.burst + s.over + 2) * s.per / s.limit / 1e3)
    s.flip, s.base, s.base_at = now + s.length, s.burst, now
    local even, odd = call('HGET', s.even, '!'), call('HGET', s.odd, '!')
    local e = even and string.sub(even, 9) == MARK and unpk('<d', even) or -1
    local o = odd and string.sub(odd, 9) == MARK and unpk('<d', odd) or -1
    if e < 0 and o < 0 then return end
    s.gen, s.has_cur, s.has_prev = max(e, o), 1, min(e, o) >= 0 and math.abs(e - o) == 1 and 1 or 0
    stretch()
    lost(s)
  end

  -- Other numbers than those in force. Absent keys were full to the old burst: they go on from there; so does every
  -- key, at the old rate until now. A generation becomes long enough for the old numbers' deepest debt to be repaid.
  local function renumber()
    local rate, old = n[4] * 1e3 / n[5], s.limit * 1e3 / s.per
    s.base = min(s.burst, s.base + old * (now - s.base_at), n[6])
    s.base_at = now
    if now < s.keep then s.old_rate, s.old_burst = min(s.old_rate, old), min(s.old_burst, s.burst)
    else s.old_rate, s.old_burst = old, s.burst end
    s.changed = now
    local length = class((n[6] + s.burst + n[7] + s.over + 2) / rate)
    s.keep = now + length
    if length > s.length then
      s.length = length
      s.flip = max(s.flip, now + length)
      stretch()
    end
    s.version, s.limit, s.per, s.burst, s.over = n[3], n[4], n[5], n[6], n[7]
    s.save = true
  end

  -- In memory; `store` makes it so.
  local function flip()
    s.has_prev = now < s.flip + s.length and s.has_cur or 0
    s.has_cur = 0
    s.gen = s.gen + 1
    if now >= s.keep then s.length = class((2 * s.burst + s.over + 2) * s.per / s.limit / 1e3) end
    s.flip = now + s.length
    s.refresh = 0
  end

  if not n then flip() elseif s.format == 0 then create() else renumber() end
end

-- Which hash is written and which is only read, and what follows from the numbers.
local function settle(s)
  if s.now >= s.flip then amend(s, nil) end
  if s.gen % 2 == 0 then s.cur, s.prv = s.even, s.odd else s.cur, s.prv = s.odd, s.even end
  s.rate = s.limit * 1e3 / s.per
  s.absent = s.base + s.rate * (s.now - s.base_at) -- the level of a key that is not there
  if s.absent > s.burst then s.absent = s.burst end
end

-- Opens a shard. numbers: ten doubles, the encoder's. s.stop: a status that ends the script (3: format or shard count).
-- s.node: what is known of the node `id`. A key that somebody made immortal gets its time to live back; nodes, who come
-- often, look for that ten times a second.
local function open(even, odd, name, numbers, raw, id)
  local n = {unpk('<dddddddddd', numbers)}
  local got = call('HMGET', name, '!', '\1' .. id)
  local text = got[1]
  local format = text and #text >= 8 and unpk('<d', text)
  local ours = text and #text == HEADER_LEN and format == n[1]
  local s = read_header(ours and text or string.rep('\0', HEADER_LEN))
  s.even, s.odd, s.name, s.raw, s.now, s.nonce, s.interval, s.timeout = even, odd, name, raw, raw, n[10], n[8], n[9]
  if ours then
    s.node = got[2]
    if s.shards ~= n[2] then s.stop = 3 return s end
    local now, life = raw + s.offset, 1.5 * s.interval + 2 * s.timeout
    if now < s.high then s.offset = s.offset + s.high - now; now = s.high; s.save = true end
    s.now, s.before, s.high = now, s.high, now
    if life > s.life then s.life = life; s.save = true end
    local other = n[4] ~= s.limit or n[5] ~= s.per or n[6] ~= s.burst or n[7] ~= s.over
    if n[3] >= s.version and other then amend(s, n)
    elseif n[3] > s.version then s.version = n[3]; s.save = true end
  else
    amend(s, n)
    if format and format ~= n[1] and format >= 1 and format < 65536 and format == floor(format) then
      s.format, s.stop = format, 3
      return s
    end
    if text then s.bad = 1 end
  end
  settle(s)
  if id ~= '' and s.now <= s.before + 1e5 then return s end
  if s.has_cur == 1 and call('PTTL', s.cur) == -1 then expire(s.cur, 3 * s.length) end
  if s.has_prev == 1 and call('PTTL', s.prv) == -1 then expire(s.prv, 2 * s.length) end
  if ours and call('PTTL', name) == -1 then expire(name, max(REMEMBER, 3 * s.length)) end
  return s
end

-- The values of n fields, f[first] and on: that of the i-th at [i + 1]. The newer generation goes first. A generation
-- that should be there and is not (evicted, deleted) is a loss.
local function fetch(s, f, first, n)
  local out = {false}
  if s.has_cur == 1 then
    out = call('HMGET', s.cur, '!', unpack(f, first, first + n - 1))
    if out[1] ~= tag(s.gen) then s.has_cur = 0; lost(s); return fetch(s, f, first, n) end
  end
  if s.has_prev == 1 then
    local at, miss = {}, {}
    for i = 1, n do if not out[i + 1] then at[#at + 1] = i + 1; miss[#miss + 1] = f[first + i - 1] end end
    if #at > 0 then
      local got = call('HMGET', s.prv, '!', unpack(miss))
      if got[1] ~= tag(s.gen - 1) then s.has_prev = 0; lost(s); return fetch(s, f, first, n) end
      for j = 1, #at do out[at[j]] = got[j + 1] end
    end
  end
  return out
end

-- The same of f[1] to f[n], each at its own place.
local function read(s, f, n)
  local out = fetch(s, f, 1, n)
  table.remove(out, 1)
  return out
end

-- Writes n values: field, value, field, value, ... A new generation begins here.
local function store(s, w, n)
  if n == 0 then return end
  if s.has_cur == 0 then
    call('UNLINK', s.cur)
    call('HSET', s.cur, '!', tag(s.gen))
    expire(s.cur, 2 * s.length + 1e6)
    if s.has_prev == 1 then expire(s.prv, s.flip - s.now + 1e6) end -- this one began late: so long must that one last
    s.has_cur, s.save = 1, true
  end
  for i = 1, n, CHUNK do call('HSET', s.cur, unpack(w, i, min(i + CHUNK - 1, n))) end
end

-- Writes the header; more: fields to go with it.
local function save(s, ...)
  local due = s.now >= s.refresh
  if due then s.refresh = s.now + LIVE end
  call('HSET', s.name, '!', pack(HEADER, s.format, s.shards, s.version, s.limit, s.per, s.burst, s.over, s.high,
    s.offset, s.settled, s.gen, s.flip, s.changed, s.base, s.base_at, s.refresh, s.has_cur, s.has_prev, s.nodes,
    s.epoch, s.reserve, s.life, s.length, s.old_rate, s.old_burst, s.keep, s.promised, s.promisable, s.raised,
    s.swept, s.recover, s.began, s.came, s.expected), ...)
  if due then expire(s.name, max(REMEMBER, 3 * s.length)) end
end

-- The header of a script that writes only where something changed.
local function save_if(s, wrote)
  if s.save or (wrote and (s.fresh or s.now >= s.refresh or s.now > s.before + 1e5)) then save(s) end
end

-- The head of a reply: 16 doubles.
local function head(s, status, last, q0)
  return {s.format, status, s.now, s.epoch, last, s.version, s.limit, s.per, s.burst, s.over, s.nodes, q0,
    max(0, s.over - s.reserve), max(0, s.recover - s.now), s.shards, s.bad}
end

-- One string of n doubles.
local function reply(o, n)
  if n <= CHUNK then return pack('<' .. string.rep('d', n), unpack(o, 1, n)) end
  local out = {}
  for i = 1, n, CHUNK do
    local last = min(i + CHUNK - 1, n)
    out[#out + 1] = pack('<' .. string.rep('d', last - i + 1), unpack(o, i, last))
  end
  return table.concat(out)
end

-- The level of a key without slices `back` s ago, from its value: T and its time. One that makes no sense counts for
-- nothing.
local function plain(s, value, back)
  if not value then return s.absent end
  local t, at = unpk('<dd', value)
  if t - t ~= 0 or at - at ~= 0 then s.bad = s.bad + 1; return s.absent end
  local changed, burst = s.changed, s.burst
  if at < changed then t, at = min(t + s.old_rate * (changed - at), max(t, s.old_burst)), changed end
  if s.now - back > at then t = t + s.rate * (s.now - back - at) end
  return t < burst and t or burst
end

-- A debt has a floor, since a generation is only so long: whole tokens below it are not applied, the node reports them
-- again. Until then they are reserved for it, so that nobody is given what they spent.
local function carried(s, t)
  local bottom = -(s.burst + s.over)
  return t < bottom and floor(bottom - t) or 0
end
