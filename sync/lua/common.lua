-- SPDX-License-Identifier: MIT
-- What every script of weir begins with: a shard's header, its clock, its two generations of keys, its policy's
-- numbers. It owns the layout of the header and of the generations; it must not know records, slices or replies
-- beyond their head. docs/protocol.md describes all of it. Redis runs Lua 5.1: numbers are doubles; every key comes
-- in KEYS.
local call, pack, unpk = redis.call, struct.pack, struct.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local sub, rep, find = string.sub, string.rep, string.find

local FORMAT = 1
local LIVE = 60       -- s: a node that was silent for longer is not counted
local REMEMBER = 600  -- s: nor remembered after this
local CHUNK = 6000    -- values a call: unpack fails at 8,000

-- The header: 30 doubles in field '!' of the nodes' key.
local FMT, SHARDS, VERSION, LIMIT, PER, BURST, OVER, LIFE, EPOCH, HIGH = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local OFFSET, RECOVER, GEN, FLIP, LENGTH, ABSENT, ABSENT_AT = 11, 12, 13, 14, 15, 16, 17
local CHANGED, OLD_RATE, OLD_BURST, KEEP = 18, 19, 20, 21
local NODES, PROMISED, RESERVE, PROMISABLE, RAISED = 22, 23, 24, 25, 26
local SWEPT, REFRESH, HAS_CUR, HAS_PREV = 27, 28, 29, 30
local HEADER, HEADER_LEN = '<' .. rep('d', 30), 240

-- How long a generation lasts, s: the first class that holds a refill of so many seconds.
local function class(s)
  if s <= 10 then return 10 elseif s <= 600 then return 600 elseif s <= 86400 then return 86400 end
  return 3456000
end

-- Longer than 64 bytes, so that Redis keeps the hash as a table and not as a list to be searched.
local function tag(gen) return string.format('weir %.0f ', gen) .. rep('.', 64) end

-- PEXPIRE's argument: an integer, 1 at least; `..` would print 1e+15.
local function ms(s) return string.format('%.0f', max(1, ceil(s * 1000))) end

-- The server's clock, s; tests may give another.
local function clock(override)
  if override ~= '' then return tonumber(override) end
  local t = call('TIME')
  return t[1] + t[2] / 1e6
end

-- A new epoch: what nodes knew of this shard is not what Redis holds. They register again for one lifetime.
local function lost(s)
  s.h[EPOCH] = (s.nonce + floor(s.raw * 1e6)) % 4503599627370496 + 1
  s.h[RECOVER] = s.now + s.h[LIFE]
  s.save = true
end

-- Generations that outlived their header (it was evicted alone): keep them, and the count where it was.
local function salvage(s)
  local found
  for i = 1, 2 do
    local t = call('HGET', i == 1 and s.even or s.odd, '!')
    local gen = t and tonumber(string.match(t, '^weir (%d+) '))
    if gen and gen % 2 == i - 1 and (not found or gen > found) then found = gen end
  end
  if not found then return end
  local h = s.h
  h[GEN], h[HAS_CUR], h[HAS_PREV] = found, 1, 0
  local t = call('HGET', found % 2 == 0 and s.odd or s.even, '!')
  if t == tag(found - 1) then h[HAS_PREV] = 1 end
  call('PEXPIRE', s.even, ms(3 * h[LENGTH]))
  call('PEXPIRE', s.odd, ms(3 * h[LENGTH]))
  lost(s)
end

-- A shard that Redis knows nothing of.
local function create(s, n)
  local now, rate = s.now, n[4] * 1e9 / n[5]
  local length = class((2 * n[6] + n[7] + 2) / rate)
  s.h = {FORMAT, n[2], n[3], n[4], n[5], n[6], n[7], s.life, (s.nonce + floor(s.raw * 1e6)) % 4503599627370496 + 1, now,
    0, 0, 0, now + length, length, n[6], now, 0, rate, n[6],
    0, 0, 0, 0, 0, 0, now, 0, 0, 0}
  s.fresh = true
end

-- Other numbers than those in force. Absent keys were full to the old burst: they go on from there; so does every
-- key, at the old rate until now. A generation is long enough for the deepest debt of the old numbers to be repaid.
local function renumber(s, n)
  local h, now = s.h, s.now
  local rate, old = n[4] * 1e9 / n[5], h[LIMIT] * 1e9 / h[PER]
  h[ABSENT] = min(h[BURST], h[ABSENT] + old * (now - h[ABSENT_AT]), n[6])
  h[ABSENT_AT] = now
  if now < h[KEEP] then h[OLD_RATE], h[OLD_BURST] = min(h[OLD_RATE], old), min(h[OLD_BURST], h[BURST])
  else h[OLD_RATE], h[OLD_BURST] = old, h[BURST] end
  h[CHANGED] = now
  local length = class((n[6] + h[BURST] + n[7] + h[OVER] + 2) / rate)
  h[KEEP] = now + length
  if length > h[LENGTH] then
    h[LENGTH] = length
    h[FLIP] = max(h[FLIP], now + length)
    call('PEXPIRE', s.even, ms(3 * length))
    call('PEXPIRE', s.odd, ms(3 * length))
    h[REFRESH] = 0
  end
  h[VERSION], h[LIMIT], h[PER], h[BURST], h[OVER] = n[3], n[4], n[5], n[6], n[7]
  s.save = true
end

-- Which hash is written and which is only read. A flip that is due happens here in memory; `store` makes it so.
local function turn(s)
  local h, now = s.h, s.now
  if now >= h[FLIP] then
    h[HAS_PREV] = now < h[FLIP] + h[LENGTH] and h[HAS_CUR] or 0
    h[HAS_CUR] = 0
    h[GEN] = h[GEN] + 1
    if now >= h[KEEP] then h[LENGTH] = class((2 * h[BURST] + h[OVER] + 2) * h[PER] / h[LIMIT] / 1e9) end
    h[FLIP] = now + h[LENGTH]
    h[REFRESH] = 0
  end
  if h[GEN] % 2 == 0 then s.cur, s.prv = s.even, s.odd else s.cur, s.prv = s.odd, s.even end
end

-- A key that somebody made immortal gets its time to live back.
local function mortal(s)
  local h = s.h
  if h[HAS_CUR] == 1 and call('PTTL', s.cur) == -1 then call('PEXPIRE', s.cur, ms(3 * h[LENGTH])) end
  if call('PTTL', s.prv) == -1 then call('PEXPIRE', s.prv, ms(2 * h[LENGTH])) end
  if not s.fresh and call('PTTL', s.nodes) == -1 then call('PEXPIRE', s.nodes, ms(max(REMEMBER, 3 * h[LENGTH]))) end
end

-- Opens a shard. numbers: ten doubles, the encoder's. s.stop: a status that ends the script (3: format or shard
-- count). s.node: what is known of the node `id`.
local function open(even, odd, nodes, numbers, raw, id)
  local n = {unpk('<dddddddddd', numbers)}
  local s = {even = even, odd = odd, nodes = nodes, raw = raw, now = raw, nonce = n[10], bad = 0, interval = n[8],
    timeout = n[9], life = 1.5 * n[8] + 2 * n[9]}
  local got = call('HMGET', nodes, '!', '\1' .. id)
  local text = got[1]
  s.node = got[2]
  local format = text and #text >= 8 and unpk('<d', text)
  if text and #text == HEADER_LEN and format == FORMAT then
    local h = {unpk(HEADER, text)}
    s.h = h
    if h[SHARDS] ~= n[2] then s.stop = 3 return s end
    local now = raw + h[OFFSET]
    if now < h[HIGH] then h[OFFSET] = h[OFFSET] + h[HIGH] - now; now = h[HIGH] end
    s.now, s.high = now, h[HIGH]
    h[HIGH] = now
    if s.life > h[LIFE] then h[LIFE] = s.life; s.save = true end
    local other = n[4] ~= h[LIMIT] or n[5] ~= h[PER] or n[6] ~= h[BURST] or n[7] ~= h[OVER]
    if n[3] >= h[VERSION] and other then renumber(s, n)
    elseif n[3] > h[VERSION] then h[VERSION] = n[3]; s.save = true end
  elseif format and format ~= FORMAT and format >= 1 and format < 65536 and format == floor(format) then
    create(s, n)
    s.h[FMT], s.stop = format, 3
    return s
  else
    create(s, n)
    if text then s.bad, s.node = 1, false end
    salvage(s)
  end
  turn(s)
  mortal(s)
  local h = s.h
  s.rate, s.burst = h[LIMIT] * 1e9 / h[PER], h[BURST]
  s.absent = min(h[BURST], h[ABSENT] + s.rate * (s.now - h[ABSENT_AT]))
  return s
end

-- The values of n fields, f[1] to f[n]; f[0] must be '!'. The newer generation goes first. A generation that should
-- be there and is not (evicted, deleted) is a loss.
local function read(s, f, n)
  local h, out = s.h, {}
  if h[HAS_CUR] == 1 then
    for i = 0, n, CHUNK do
      local last = min(i + CHUNK - 1, n)
      local got = call('HMGET', s.cur, unpack(f, i, last))
      for j = 1, last - i + 1 do out[i + j - 1] = got[j] end
    end
    if out[0] ~= tag(h[GEN]) then h[HAS_CUR] = 0; lost(s); return read(s, f, n) end
  end
  if h[HAS_PREV] == 1 then
    local at, miss = {}, {'!'}
    for i = 1, n do if not out[i] then at[#at + 1] = i; miss[#at + 1] = f[i] end end
    for i = 1, #miss, CHUNK do
      local got = call('HMGET', s.prv, unpack(miss, i, min(i + CHUNK - 1, #miss)))
      for j = 1, #got do if i + j > 2 then out[at[i + j - 2]] = got[j] else out[0] = got[1] end end
    end
    if out[0] ~= tag(h[GEN] - 1) then h[HAS_PREV] = 0; lost(s); return read(s, f, n) end
  end
  return out
end

-- Writes n values: field, value, field, value, ... A new generation begins here.
local function store(s, w, n)
  local h = s.h
  if n == 0 then return end
  if h[HAS_CUR] == 0 then
    call('UNLINK', s.cur)
    call('HSET', s.cur, '!', tag(h[GEN]))
    call('PEXPIRE', s.cur, ms(2 * h[LENGTH] + 1))
    h[HAS_CUR] = 1
    s.save = true
  end
  for i = 1, n, CHUNK do call('HSET', s.cur, unpack(w, i, min(i + CHUNK - 1, n))) end
end

-- Writes the header; more: fields to go with it.
local function save(s, ...)
  local h = s.h
  local due = s.now >= h[REFRESH]
  if due then h[REFRESH] = s.now + LIVE end
  call('HSET', s.nodes, '!', pack(HEADER, unpack(h, 1, 30)), ...)
  if due then call('PEXPIRE', s.nodes, ms(max(REMEMBER, 3 * h[LENGTH]))) end
end

-- The head of a reply: 16 doubles.
local function head(s, status, last, q0)
  local h = s.h
  return {h[FMT], status, s.now, h[EPOCH], last, h[VERSION], h[LIMIT], h[PER], h[BURST], h[OVER], h[NODES], q0,
    max(0, h[OVER] - h[RESERVE]), max(0, h[RECOVER] - s.now), h[SHARDS], s.bad}
end

-- One string of n doubles.
local function reply(o, n)
  if n <= CHUNK then return pack('<' .. rep('d', n), unpack(o, 1, n)) end
  local out = {}
  for i = 1, n, CHUNK do
    local last = min(i + CHUNK - 1, n)
    out[#out + 1] = pack('<' .. rep('d', last - i + 1), unpack(o, i, last))
  end
  return table.concat(out)
end
