"""Branch and bound: the proven optimum of small programs.

Takes: a recorder and the fields of ``methods.Exhaustive``. Gives: a ``Status``, and in the
recorder a proven lower bound of C(s). Not in the paper. Start reading at ``exhaustive.py``:
``bound.py`` derives the lower bound of a state and of all states that follow from it, and
``bound_tables.py`` precomputes the terms of that bound.
"""
