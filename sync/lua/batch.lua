-- SPDX-License-Identifier: MIT
-- batch: the first part of reconcile: is it new, who lives, and all records of keys without slices. Follows common.lua;
-- a batch that needs no more ends here. It must not know slices.
-- KEYS  the shard's two generations and its nodes
-- ARGV  1 numbers  2 clock ('' but in tests)  3 node id  4 seq epoch rtt flags shorts longs nodes owed
--       5 shorts: spent  6 longs: spent refunded fallback age level rate demand want max_cost
--       7 seeds: '' or level age fallback of each record, 1e300 for none  8 waiting: record cost count  9... fields, shorts first, distinct
-- reply head; plain, 0 or 1; a short: T free (plain: T and the time); a long: T free level rate cap fallback hold rich;
--       then how many of each waiting were admitted
-- A call of struct.unpack costs more than a dozen of the values that it gives, and a string is hashed from end to end
-- when it is made: so what is alike is unpacked and packed at once, and no long string is made that is not needed.
local id = ARGV[3]
local seq, epoch, rtt, flags, shorts, longs, heard, owed = unpk('<dddddddd', ARGV[4])
local s = open(KEYS[1], KEYS[2], KEYS[3], ARGV[1], clock(tonumber(ARGV[2])), id)
if s.stop then return reply(head(s, s.stop, 0, 0), 16) end
local hello = flags % 2 == 1
-- The node: its last seq, when, what is counted for it, its promise; where more is counted: what it owed, and until when
-- (negative: no silence makes that later any more).
local known, said, counted, q0, told, till = nil, 0, 0, 0, 0, 0
if s.node and #s.node == 32 then known, said, counted, q0 = unpk('<dddd', s.node)
elseif s.node and #s.node == 48 then known, said, counted, q0, told, till = unpk('<dddddd', s.node) end

-- Ends the script without applying anything.
local function refuse(status)
  if s.save or s.fresh then save(s) end
  return reply(head(s, status, known or 0, 0), 16)
end

if epoch ~= 0 and epoch ~= s.epoch then
  estranged(s)
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

if hello and heard > 0 and said < s.began and s.now < s.began + REMEMBER then came(s, heard) end

local n = shorts + longs
local values = fetch(s, ARGV, 9, n) -- that of record i at [i + 1]
if epoch ~= 0 and epoch ~= s.epoch then return refuse(2) end

-- Nodes: how many live, and what overdraft each was promised. Counted anew now and then; those long gone are forgotten.
if s.now >= s.swept + 10e6 then
  local all, ids, gone = call('HKEYS', s.name), {}, {}
  for i = 1, #all do if string.byte(all[i]) == 1 then ids[#ids + 1] = all[i] end end
  s.nodes, s.promised, s.swept = 0, 0, s.now
  for i = 1, #ids, CHUNK do
    local got = call('HMGET', s.name, unpack(ids, i, min(i + CHUNK - 1, #ids)))
    for j = 1, #got do
      local at, q, _ = -1e300, 0, nil
      if got[j] and #got[j] >= 32 then _, at, q = unpk('<ddd', got[j]) end
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
-- promise is above it. A promise that falls may be in use: it counts until the node has had time to hear of the smaller
-- one and to tell all of its keys, and then what it still owes does (but for the token of `unknown`: none was promised).
-- A silence makes that later once: a node that owes nothing has little to say, and the others wait.
do
  local others, heard, round = s.promised, q0, 2 * s.interval -- in which a node that speaks tells all of its keys
  if known and said >= s.swept - LIVE then others = others - counted else s.nodes = s.nodes + 1 end
  local each = floor(0.75 * s.over / s.nodes + 1e-9)
  local want = each * s.nodes
  if s.raised == 0 then -- the first batch that this shard ever had
    s.reserve, s.raised, s.promisable = want, s.now, s.recover == 0 and want or 0
  elseif want > s.reserve then s.reserve, s.raised = want, s.now
  elseif s.now >= s.raised + s.length then s.promisable = s.reserve end
  q0 = max(0, min(each, floor(s.promisable - others + 1e-9)))
  if said < s.now - LIVE then counted, heard, told, till = 0, 0, 0, 0 end
  if owed <= 1 then owed = 0 end
  if heard > q0 then till = s.now + 2 * round
  elseif till > 0 and said < s.now - round then till = -max(till, s.now + round) end -- it has told nothing yet
  told = max(told, owed)
  if s.now < max(till, -till) then counted = max(counted, q0, owed)
  else counted, told, till = max(q0, told), owed, -(s.now + round) end
  s.promised = others + counted
  if want < s.reserve and s.promised <= want then s.reserve = want end
  s.promisable = min(s.promisable, s.reserve)
end

local gathering, settling = s.now < s.recover, s.now < s.settled
local seeds = ARGV[7]
-- What the node saw of record i, by now; and what of its use of its fallback share is paid by refill.
local function seed_of(i, out)
  if seeds == '' then return 1e300, 0 end
  local level, age, fall = unpk('<ddd', seeds, 24 * i - 23)
  if level >= 1e300 then return level, 0 end
  level, out = recalled(s, level, age, flags % 4 >= 2 and out or 0)
  return level, fall * out
end
local w, wi, o, oi = {}, 0, {}, 0 -- what is written; the answers of long records
local answers -- ... of short ones, twice as many; packed as they are stored where nothing else is to be said
local flat = ''

-- Waiting requests by record: {cost, count, index of their answer}, ... Admits what waits for record i out of `free`;
-- returns the tokens. Nothing is free while state is being gathered.
local waiting, admit, admitted = nil, nil, {}
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
  admit = function(i, free)
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
end

-- Writes everything and ends the script.
local function finish()
  local plain = answers and 0 or 1
  if answers then flat = pack('<' .. string.rep('d', 2 * shorts), unpack(answers)) end
  for j = 1, #admitted do oi = oi + 1; o[oi] = admitted[j] end
  store(s, w, wi)
  local h = head(s, 0, seq, q0)
  h[17] = plain
  local answer = reply(h, 17) .. flat .. reply(o, oi)
  local node = pack('<dddd', seq, s.now, counted, q0)
  if counted > q0 then node = node .. pack('<dd', told, till) end
  save(s, '\1' .. id, node, '\2' .. id, answer)
  return answer
end

-- Short records of keys without slices, the common case; the others, and debts past their floor, are left for later.
local later = {}
if shorts > 0 then
  local spent, changed, now, r, burst = {unpk('<' .. string.rep('d', shorts), ARGV[5])}, s.changed, s.now, s.rate, s.burst
  local bottom, filler, odd = -(burst + s.over), pack('<dd', s.absent, now), {}
  -- A key that is not there is as one that had so much just now.
  for i = 2, shorts + 1 do
    local value = values[i]
    if not value then odd[i], values[i] = false, filler
    elseif #value ~= 16 then odd[i], values[i] = value, filler end
  end
  local levels = {unpk('<' .. string.rep('dd', shorts), table.concat(values, '', 2, shorts + 1))}
  for i = 1, shorts do
    local x, t, when = spent[i], levels[2 * i - 1], levels[2 * i]
    if when >= changed and t - t == 0 then
      if now > when then t = t + r * (now - when) end
      if t > burst then t = burst end
    else t = plain(s, values[i + 1], 0) end
    t = t - x
    if t > burst then t = burst end
    if t < bottom or odd[i + 1] or settling or seeds ~= '' then
      if odd[i + 1] ~= nil then values[i + 1] = odd[i + 1] end
      later[#later + 1] = i
      later[#later + 1] = x
      spent[i] = 0
    else
      if waiting then
        local took = admit(i, t)
        t, spent[i] = t - took, x + took
      end
      levels[2 * i - 1], levels[2 * i] = t, now
    end
  end
  flat = pack('<' .. string.rep('dd', shorts), unpack(levels))
  for i = 1, shorts do
    if spent[i] ~= 0 then
      w[wi + 1], w[wi + 2] = ARGV[8 + i], sub(flat, 16 * i - 15, 16 * i)
      wi = wi + 2
    end
  end
  if #later > 0 then
    for i = 1, shorts do levels[2 * i] = levels[2 * i - 1] end
    answers = levels
  end
end
if longs == 0 and #later == 0 then return finish() end
