"""Find a good plan: Monte Carlo tree search and the baselines (paper sections 4.1 and 5).

Takes: a problem (analysis, mesh, machine), a method's name, a seed and a budget. Gives: the best
plan found, its trace, and the reason why the search stopped. Start reading at ``contract.py``;
``methods.py`` lists the methods with their options, ``recorder.py`` is the interface that each of
them searches with. The larger methods have rooms of their own: ``mcts/``, ``alpa/`` and
``exhaustive/``; ``gap/`` proves lower bounds without a search.
"""
