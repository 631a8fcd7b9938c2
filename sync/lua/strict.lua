-- SPDX-License-Identifier: MIT
-- strict: keys of which hybrid nodes hold slices: only what is nobody's is given, never an overdraft. Follows
-- common.lua, decide.lua (where KEYS, ARGV and the reply are described) and slices.lua.
s.outage = flags % 4 >= 2
local k = {}
for j = 1, #later do
  local i = later[j]
  bring(s, k, values[i], 0, 1e300)
  if s.now >= k.sw and #k.v > BASE_LEN and not gathering then rebuild(s, k, s.now, 0) end
  local t, changed = decide(i, k.T, k.P)
  if changed or k.woke then -- the dead are given a time to report in, which must be kept though all was denied
    local moved = t - k.T
    k.T, k.rc = t, k.rc - moved
    k.Th = max(t, min(s.burst + max(0, k.U), k.Th + moved))
    w[wi + 1], w[wi + 2] = fields[i], value_of(s, k, '')
    wi = wi + 2
  end
end
return finish()
