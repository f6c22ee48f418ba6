-- UIDs: six bits a character, in ASCII order.
local DIGITS = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'

-- The next UID-shaped text above `uid`.
local function uid_after(uid)
  for i = #uid, 1, -1 do
    local digit = string.find(DIGITS, string.sub(uid, i, i), 1, true)
    if digit < 64 then
      return string.sub(uid, 1, i - 1) .. string.sub(DIGITS, digit + 1, digit + 1) .. string.rep('-', #uid - i)
    end
  end
end
