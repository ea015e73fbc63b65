"""Find a good plan: Monte Carlo tree search and the baselines (paper sections 4.1 and 5).

Takes: a problem (analysis, mesh, machine), a method's name, a seed and a budget. Gives: the best
plan found with its trace and the reason why the search stopped. Start reading at ``contract.py``;
``methods.py`` has the methods with their options, ``recorder.py`` what each is given to search
with. The larger methods have rooms of their own: ``mcts/``, ``alpa/`` and ``exhaustive/``.
"""
