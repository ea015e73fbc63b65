"""Integer programs over the ways to split every op, which ``alpa`` and ``mcts`` solve.

Takes: a recorder and the choices of a problem with their prices. Gives: plans, in the trace. Start
reading at ``solver.py``. ``strategies.py`` collects the choices of each cluster of ops and values,
``descent.py`` improves one cluster at a time, ``integer_program.py`` and ``memory_rows.py``
formulate the integer program. ``mcts`` begins at its own best plans, and solves large programs in a
child process (``background_solver.py``). Reference: Alpa, OSDI 2022, section 4; paper section 5.
"""
