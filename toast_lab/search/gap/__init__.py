"""How far the best plan found may be from the best possible one: a proven lower bound of C(s).

Takes: a problem. Gives: a ``LowerBound``, which no plan of its space is below. No method runs and
no plan is searched for. The price of a plan is split into terms of few choices whose sum is at most
that price (``relaxed_terms.py``, ``relaxation.py``), and the least sum of the terms is bounded
from below by moving prices between them (``dual_ascent.py``). ``exhaustive`` prunes by the same
bound, with a part of the choices made (``state_bound.py``). Start reading at ``certify.py``. Not in
the paper.
"""
