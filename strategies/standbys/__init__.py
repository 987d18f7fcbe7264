"""Places standby copies: how many each member holds, which members hold them, and which copy is promoted.

In the order of files: `placement` states the rules; `demand` computes how many copies each unit needs and who
has one; `shares` how many each member gets; `slots` makes an initial placement, with dummy occupants in empty slots;
`costs` computes the weighted cost of a placement; `exchange` improves it by swapping copies. `promotion` is the other
direction: when owners change, it prefers members that hold a copy. It imports `strategies.problem` only.

Not promised: the optimum, since copies are exchanged two at a time (`placement` names what is exact).
"""
