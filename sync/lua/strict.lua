-- SPDX-License-Identifier: MIT
-- strict: keys of which hybrid nodes hold slices, and those of a state that is young: only what is nobody's is given,
-- never an overdraft. Follows common.lua, decide.lua (where KEYS, ARGV and the reply are described) and slices.lua.
for k = 1, #open_units do
  local q = open_units[k]
  s, fields, values, entries, o, base, gathering, w, wi =
    q.s, q.fields, q.values, q.entries, q.o, q.base, q.gathering, q.w, q.wi
  s.outage = flags % 4 >= 2
  for j = 1, #q.later do
    local i = q.later[j]
    bring(s, values[i] or nil, 0, 1e300)
    if s.now >= ksw and #kv > BASE_LEN and not gathering then rebuild(s, s.now, 0) end
    local t, changed, charged = decide(i, kT, kP, krc)
    if changed or kwoke then -- the dead are given a time to report in, which must be kept though all was denied
      local moved = t - kT
      kT, krc = t, charged
      kTh = max(t, min(s.burst + max(0, kU), kTh + moved))
      w[wi + 1], w[wi + 2] = fields[i], value_of(s, '')
      wi = wi + 2
    end
  end
  answers[q.u] = finish(q.m)
end
return join()
