"""Price a plan on a machine: time, memory and every term of both (paper section 4.5).

Takes: a `Program`, a `ShardingPlan` and a machine. Gives: a `Cost` split by op and by collective,
from a roofline, a model of the links and live ranges; and for a search, prices that are computed
once per class of ops and only for ops that an action changed. Start reading at `problem.py`, then
`kernel.py`, `fold.py` and `reprice.py`.
"""
