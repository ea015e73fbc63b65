"""A baseline in the manner of Alpa: an integer program over the ways to split every op.

Takes: a recorder and the fields of ``methods.Alpa``. Gives: a ``Status``; the plans are in the
trace. Paper section 5 (Alpa, OSDI 2022, section 4). Start reading at ``alpa.py``:
``strategies.py`` lists the choices of each cluster of ops and values, ``strategy_prices.py`` prices
them, ``descent.py`` improves one cluster at a time, ``integer_program.py`` and ``memory_rows.py``
formulate the integer program, ``solver.py`` solves it. ``mcts`` uses the same solver from its own
best plans, for large programs in a child process (``background_solver.py``), so this room must not
import ``mcts``.
"""
