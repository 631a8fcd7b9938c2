-- SPDX-License-Identifier: MIT
-- peek: all that there is to know of one key, for a person. Writes nothing. Follows common.lua and slices.lua.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 clock ('' but in tests)  2 field
-- reply head (status 2: no such shard); exists T free P rates fallbacks demands caps ttl slices; a slice: 8 bytes
--       of the node's id, then age reserved rate cap fallback demand expired
local text = call('HGET', KEYS[3], '!')
local nothing = {0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0}
if not text then return reply(nothing, 26) end
local format = #text >= 8 and unpk('<d', text) or 0
if format ~= FORMAT or #text ~= HEADER_LEN then
  nothing[1], nothing[2] = format, 3
  return reply(nothing, 26)
end
local raw = clock(ARGV[1])
local header = {unpk(HEADER, text)}
local shard = {h = header, even = KEYS[1], odd = KEYS[2], nodes = KEYS[3], raw = raw, bad = 0,
  interval = 0, timeout = 0, now = max(header[HIGH], raw + header[OFFSET])}
turn(shard)
shard.rate, shard.burst = header[LIMIT] * 1e9 / header[PER], header[BURST]
shard.absent = min(header[BURST], header[ABSENT] + shard.rate * (shard.now - header[ABSENT_AT]))
use(shard, false)

local value, held
for i = 1, 2 do
  local name, has = i == 1 and s.cur or s.prv, i == 1 and HAS_CUR or HAS_PREV
  if not value and h[has] == 1 then value, held = call('HGET', name, ARGV[2]), name end
end
bring(value or nil, 0, 1e300)
local o = head(s, 0, 0, 0)
local ttl = value and call('PTTL', held) or -1
local parts, k = {}, 0
for i = BASE_LEN + 1, #v, SLICE_LEN do
  local at, p, rate, cap, d, f = unpk(SLICE, v, i + 8)
  local expired = d < 0 and 1 or 0
  if expired == 0 then p = p + rate * min(now - at, life) end
  k = k + 1
  parts[k] = sub(v, i, i + 7) .. pack('<ddddddd', now - at, p, rate, cap, f, max(0, d), expired)
end
o[16], o[17], o[18], o[19], o[20], o[21], o[22] = s.bad, value and 1 or 0, T, min(T, T - P), P, R, F
o[23], o[24], o[25], o[26] = D, C, ttl < 0 and -1 or ttl / 1000, k
return reply(o, 26) .. table.concat(parts)
