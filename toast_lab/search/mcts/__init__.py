"""The method of TOAST: Monte-Carlo tree search, whose best plans are refined and polished.

Takes: a recorder (problem, budget, prices and trace of one search) and the fields of
``methods.Mcts``. Gives: a ``Status``; the trace holds the plans and the tree. Paper sections 4.1 to
4.3. Start reading at ``mcts.py``: ``tree.py`` holds the arrays; ``selection.py``, ``rollout.py``
and ``backup.py`` are the three steps of a batch; ``improvement.py`` improves the best plans of a
start (``refine.py``, then ``polish.py``, which goes on with the integer programs of
``search/integer_program``).
"""
