-- SPDX-License-Identifier: MIT
-- batch: the first part of reconcile: is it new, who lives, and all records of keys without slices. Follows common.lua;
-- a batch that needs no more ends here. It must not know slices.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 numbers  2 clock ('' but in tests)  3 node id  4 seq epoch rtt flags shorts longs
--       5 shorts: spent  6 longs: spent refunded fallback age level rate demand want max_cost
--       7 seeds: '' or one a record, 1e300 for none  8 waiting: record cost count  9... fields, shorts first, distinct
-- reply head; a short: T free; a long: T free level rate cap fallback hold rich; then how many of each waiting were
--       admitted
local id = ARGV[3]
local seq, epoch, rtt, flags, shorts, longs = unpk('<dddddd', ARGV[4])
local s = open(KEYS[1], KEYS[2], KEYS[3], ARGV[1], clock(tonumber(ARGV[2])), id)
if s.stop then return reply(head(s, s.stop, 0, 0), 16) end
local hello = flags % 2 == 1
local known, said, q0 = nil, 0, 0 -- the node: its last seq, when, its promise
if s.node and #s.node == 24 then known, said, q0 = unpk('<ddd', s.node) end

-- Ends the script without applying anything.
local function refuse(status)
  if s.save or s.fresh then save(s) end
  return reply(head(s, status, known or 0, 0), 16)
end

if epoch ~= 0 and epoch ~= s.epoch then
  if s.recover == 0 or s.fresh then lost(s) end -- once an epoch: those who come later register in what it found
  return refuse(2)
end
if known and seq <= known then
  local old = seq == known and call('HGET', s.name, '\2' .. id)
  if old then return string.sub(old, 1, 8) .. pack('<d', 1) .. string.sub(old, 17) end
  return refuse(4)
elseif not hello and seq ~= (known or -1) + 1 then
  if known then lost(s) end -- its numbers have a gap: Redis went back in time
  return refuse(2)
end

local n = shorts + longs
local fields = {[0] = '!'}
for i = 1, n do fields[i] = ARGV[8 + i] end
local values = read(s, fields, n)
if epoch ~= 0 and epoch ~= s.epoch then return refuse(2) end

-- Nodes: how many live, and what overdraft each was promised -------------------------------------------------------

-- Counts them anew and forgets those long gone.
local function count_nodes()
  local all, ids, gone = call('HKEYS', s.name), {}, {}
  for i = 1, #all do if string.byte(all[i]) == 1 then ids[#ids + 1] = all[i] end end
  s.nodes, s.promised, s.swept = 0, 0, s.now
  for i = 1, #ids, CHUNK do
    local got = call('HMGET', s.name, unpack(ids, i, min(i + CHUNK - 1, #ids)))
    for j = 1, #got do
      local at, q, _ = -1e300, 0, nil
      if got[j] and #got[j] == 24 then _, at, q = unpk('<ddd', got[j]) end
      if at >= s.now - LIVE then s.nodes, s.promised = s.nodes + 1, s.promised + q
      elseif at < s.now - REMEMBER then
        gone[#gone + 1] = ids[i + j - 1]
        gone[#gone + 1] = '\2' .. string.sub(ids[i + j - 1], 2)
      end
    end
  end
  for i = 1, #gone, CHUNK do call('HDEL', s.name, unpack(gone, i, min(i + CHUNK - 1, #gone))) end
end

-- This node's overdraft. What is reserved for overdrafts is taken off the pool before it is promised: when the reserve
-- grows, promises follow only after a generation, when every loan of the larger pool is repaid; it shrinks once no
-- promise is above it.
local function promise()
  if s.now >= s.swept + 10e6 then count_nodes() end
  local others = s.promised
  if known and said >= s.swept - LIVE then others = others - q0 else s.nodes = s.nodes + 1 end
  local each = floor(0.75 * s.over / s.nodes + 1e-9)
  local want = each * s.nodes
  if s.raised == 0 then -- the first batch that this shard ever had
    s.reserve, s.raised, s.promisable = want, s.now, s.recover == 0 and want or 0
  elseif want > s.reserve then s.reserve, s.raised = want, s.now
  elseif s.now >= s.raised + s.length then s.promisable = s.reserve end
  q0 = max(0, min(each, floor(s.promisable - others + 1e-9)))
  s.promised = others + q0
  if want < s.reserve and s.promised <= want then s.reserve = want end
  s.promisable = min(s.promisable, s.reserve)
end

promise()
local gathering = s.now < s.recover
local seeds = ARGV[7]
local o, w, wi = head(s, 0, seq, q0), {}, 0

-- Waiting requests by record: {cost, count, index of their answer}, ...
local waiting, admitted = nil, {}
if #ARGV[8] > 0 then
  waiting = {}
  local at = 1
  for j = 1, #ARGV[8] / 24 do
    local i, cost, count
    i, cost, count, at = unpk('<ddd', ARGV[8], at)
    local list = waiting[i]
    if not list then list = {}; waiting[i] = list end
    local k = #list
    list[k + 1], list[k + 2], list[k + 3] = cost, count, j
    admitted[j] = 0
  end
end

-- Admits what waits for record i out of `free`; returns the tokens. Nothing is free while state is being gathered.
local function admit(i, free)
  local list, sum = waiting[i], 0
  if not list or gathering then return 0 end
  for k = 1, #list, 3 do
    local cost, a = list[k], list[k + 1]
    if cost > 0 then
      a = min(a, max(0, floor((free - sum) / cost + 1e-9)))
      sum = sum + a * cost
    end
    admitted[list[k + 2]] = a
  end
  return sum
end

-- Writes everything and ends the script; count: doubles in o before the answers of waiting requests.
local function finish(count)
  for j = 1, #admitted do o[count + j] = admitted[j] end
  o[16] = s.bad
  store(s, w, wi)
  local answer = reply(o, count + #admitted)
  save(s, '\1' .. id, pack('<ddd', seq, s.now, q0), '\2' .. id, answer)
  return answer
end

-- Short records of keys without slices, the common case; the others, and debts past their floor, are left for later.
local later = {}
do
  local text, at, changed, now, r, burst = ARGV[5], 1, s.changed, s.now, s.rate, s.burst
  local bottom = -(burst + s.over)
  for i = 1, shorts do
    local spent
    spent, at = unpk('<d', text, at)
    local value = values[i]
    if gathering or seeds ~= '' or (value and #value ~= 16) then later[#later + 1] = i; later[#later + 1] = spent
    else
      local t, when
      if value then t, when = unpk('<dd', value) end
      if t and when >= changed and t - t == 0 then
        if now > when then t = t + r * (now - when) end
        if t > burst then t = burst end
      else t = plain(s, value, 0) end
      t = min(burst, t - spent)
      if t < bottom then later[#later + 1] = i; later[#later + 1] = spent
      else
        if waiting then
          local took = admit(i, t)
          t, spent = t - took, spent + took
        end
        o[15 + 2 * i], o[16 + 2 * i] = t, t
        if spent ~= 0 then
          w[wi + 1], w[wi + 2] = fields[i], pack('<dd', t, now)
          wi = wi + 2
        end
      end
    end
  end
end
if longs == 0 and #later == 0 then return finish(16 + 2 * n) end
