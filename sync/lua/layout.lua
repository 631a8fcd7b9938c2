-- SPDX-License-Identifier: MIT
-- What every script of weir begins with: names for what it calls, and where things are in a shard's header. It must not
-- know more. docs/protocol.md describes all of it. Redis runs Lua 5.1: numbers are doubles; every key comes in KEYS.
-- Times are microseconds, whole and so exact, rates are tokens a microsecond.
local call, pack, unpk, sub = redis.call, struct.pack, struct.unpack, string.sub

-- The header: 30 doubles in field '!' of the nodes' key. The first seven as those who ask send them, so that they are
-- compared as text; then what every script needs, then the rest.
local HEADER = '<dddddddddddddddddddddddddddddd'

-- What follows the number in a generation's tag, field '!' of its hash. A tag is longer than 64 bytes, so that Redis
-- keeps the hash as a table and not as a list to be searched.
local MARK = ' weir: the generation of this number; what is older than two is gone'
