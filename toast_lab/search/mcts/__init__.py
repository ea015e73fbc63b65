"""The method of TOAST: Monte-Carlo tree search, its best plans refined and polished.

Takes: a recorder (problem, budget, prices and trace of one search) and the fields of
``methods.Mcts``. Gives: a ``Status``; plans, tree and what it takes to resume are in the trace.
Paper sections 4.1 to 4.3. Start reading at ``mcts.py``: ``tree.py`` holds the arrays,
``selection.py``, ``rollout.py`` and ``backup.py`` are the three steps of a batch,
``improvement.py`` is what happens to the best plans of a start (``refine.py``, then ``polish.py``,
which continues with the integer programs of ``search/alpa``), ``memory_check.py`` judges a trace
before it is resumed.
"""
