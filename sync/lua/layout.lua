-- SPDX-License-Identifier: MIT
-- What every script of weir begins with: names for what it calls, and where things are in a shard's header and in a
-- key's value. It must not know more. docs/protocol.md describes all of it. Redis runs Lua 5.1: numbers are doubles; every key comes in KEYS.
-- Times are microseconds, whole and so exact, rates are tokens a microsecond.
local call, pack, unpk, sub = redis.call, struct.pack, struct.unpack, string.sub

-- The header: 34 doubles in field '!' of the nodes' key. The first seven as those who ask send them, so that they are
-- compared as text; then what every script needs, then the rest.
local HEADER, HEADER_LEN = '<dddddddddddddddddddddddddddddddddd', 272

-- What follows the number in a generation's tag, field '!' of its hash. A tag is longer than 64 bytes, so that Redis
-- keeps the hash as a table and not as a list to be searched.
local MARK = ' weir: the generation of this number; what is older than two is gone'

-- A value ends in T and its time; without slices that is all. Else 12 doubles precede them, and those 48 bytes a slice,
-- the newest first: the first 8 of the node's id, then two doubles, when it reported and what it has reserved, then six
-- floats: rate, cap, demand (-1: expired, `reserved` was written off), fallback rate, expected use, and the fallback use
-- that the last outage's refill was cut by. So what stays of a value is mostly what it begins with: struct.pack copies
-- that, where anything else would have to be made a string first, and hashed.
local BASE, BASE_LEN, SLICE, SLICE_LEN = '<dddddddddddddd', 112, '<ddffffff', 48
local LAST = '<c8ddffffffdddddddddddddd' -- a slice and what follows the last
