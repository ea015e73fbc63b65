"""The rival of Alpa's kind: an integer program over the ways to split every op.

Takes: a recorder and the fields of ``methods.Alpa``. Gives: a ``Status``; the plans are in the
trace. Paper section 5 (Alpa, OSDI 2022, section 4). Start reading at ``alpa.py``:
``strategies.py`` lists and ``strategy_prices.py`` prices what each cluster of ops and values may
do, ``descent.py`` improves one cluster at a time, ``integer_program.py`` and ``memory_rows.py``
state the program, ``solver.py`` solves it. ``mcts`` solves from its own best plans with the same
solver, large programs in a child process (``background_solver.py``), so this room stands below it.
"""
