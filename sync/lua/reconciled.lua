-- SPDX-License-Identifier: MIT
-- reconciled: the end of reconcile.lua's loop and of the script. Follows grant.lua.
end
return finish()
