"""Standby copies: how many each member holds, where they are placed, and which one is promoted.

The story in the order of files: `placement` states the rules; `demand` tells how many copies each unit needs and who
has one; `shares` how many each member gets; `slots` makes an initial placement, with dummy occupants in empty slots;
`costs` weighs what is wrong with a placement; `exchange` improves it by swapping copies. `promotion` is the other
direction: when owners change, it prefers members that hold a copy. It imports `strategies.problem` only.

Not promised: the optimum, since copies are exchanged two at a time (`placement` names what is exact).
"""
