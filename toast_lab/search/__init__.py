"""Find a good plan: Monte Carlo tree search and the baselines (paper sections 4.1 and 5).

Takes: a problem (analysis, mesh, machine), a method's name, a seed and a budget. Gives: the best plan found
with its trace and the reason why the search stopped. Start reading at `contract.py`, then `mcts.py`.
"""
