-- SPDX-License-Identifier: MIT
-- peek: all that there is to know of one key, for a person. Writes nothing. Follows common.lua and slices.lua.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 clock ('' but in tests)  2 format  3 field
-- reply head (status 2: no such shard); exists (2: in the older generation) T free P rates fallbacks demands caps ttl,
--       number of the newer generation, time until the next begins, slices; a slice: 8 bytes of the node's id, then
--       age reserved rate cap fallback demand expired
local text = call('HGET', KEYS[3], '!')
local nothing = {0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0}
if not text then return reply(nothing, 28) end
local format = #text >= 8 and unpk('<d', text) or 0
if format ~= tonumber(ARGV[2]) or #text ~= HEADER_LEN then
  nothing[1], nothing[2] = format, 3
  return reply(nothing, 28)
end
local s = read_header(text)
s.even, s.odd, s.name = KEYS[1], KEYS[2], KEYS[3]
s.now = max(s.high, clock(tonumber(ARGV[1])) + s.offset)
settle(s)

local value, held
if s.has_cur == 1 then value, held = call('HGET', s.cur, ARGV[3]), s.cur end
if not value and s.has_prev == 1 then value, held = call('HGET', s.prv, ARGV[3]), s.prv end
bring(s, value or nil, 0, 1e300)
local o = head(s, 0, 0, 0)
local ttl = value and call('PTTL', held) or -1
local parts = {}
for i = #kv - BASE_LEN - SLICE_LEN + 1, 1, -SLICE_LEN do
  local at, p, rate, cap, d, f = unpk(SLICE, kv, i + 8)
  if d >= 0 then p = p + rate * min(s.now - at, s.life) end
  parts[#parts + 1] = string.sub(kv, i, i + 7) ..
    pack('<ddddddd', s.now - at, p, rate, cap, f, max(0, d), d < 0 and 1 or 0)
end
local place = value and (held == s.cur and 1 or 2) or 0
o[16], o[17], o[18], o[19], o[20], o[21], o[22] = s.bad, place, kT, min(kT, kT - kP), kP, kR, kF
o[23], o[24], o[25], o[26], o[27], o[28] = kD, kC, ttl < 0 and -1 or ttl * 1000, s.gen, s.flip - s.now, #parts
return reply(o, 28) .. table.concat(parts)
