"""What a sharding is (paper sections 4.2 and 4.3).

Mesh, neutral plan, search state and legal actions.

Takes: an analysis and a mesh. Gives: the `ShardingPlan` that every search returns, the actions that
lead to it, and a key that is the same for equal shardings. Start reading at `plan.py`, then
`steps.py`, `space.py`, `alike.py` and `state.py`.
"""
