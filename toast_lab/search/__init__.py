"""Find a good plan: Monte Carlo tree search and the baselines (paper sections 4.1 and 5).

Takes: a problem (analysis, mesh, machine), a method's name, a seed and a budget. Gives: the best
plan found, its trace, and the reason why the search stopped. Start reading at ``contract.py``;
``methods.py`` lists the methods with their options, ``recorder.py`` is the interface that each of
them searches with. ``mcts/`` has a room of its own. ``terms/`` prices the small choices of which a
plan consists; ``integer_program/`` and ``gap/`` add them up, for the best plan and for a bound that
no plan is below.
"""
