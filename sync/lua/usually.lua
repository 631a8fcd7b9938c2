-- SPDX-License-Identifier: MIT
-- usually: the end of usual.lua's loop, and of a batch that was ordinary to its end. Follows grant.lua.
  end
  if not ordinary then break end

  local answer, at = pack('<ddddddddddddddddd' .. kinds .. string.rep('d', 8 * longs), unpack(out, 1, oi)), 137
  if shorts > 0 then -- that table is large enough for what is to be written
    local k = 0
    for i = 9, shorts + 8 do
      if spent[i] ~= 0 then
        k = k + 1
        out[k] = args[i]
        k = k + 1
        out[k] = sub(answer, at, at + 15)
      end
      at = at + 16
    end
    for j = 1, wi do out[k + j] = w[j] end
    w, wi = out, k + wi
  end
  if wi > 0 then call('HSET', cur, unpack(w, 1, wi)) end
  call('HSET', name, '!', sub(text, 1, 56) .. pack('<d', now) .. sub(text, 65), '\1' .. id,
    pack('<dddd', seq, now, counted, q0), '\2' .. id, answer)
  do return answer end
until true
