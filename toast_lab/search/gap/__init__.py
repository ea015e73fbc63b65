"""How far the best plan may be from the best possible: a proven lower bound on C(s).

Takes: a problem.  Gives: a ``LowerBound``, which no plan of its space is below.  No method runs
here, and no plan is searched for: the price of a plan is taken apart into terms of few choices,
none above its price (``relaxed_prices.py``, ``relaxation.py``), and their least sum is bounded
from below by moving prices between them (``dual_ascent.py``).  Start reading at ``certify.py``.
The paper has no such thing.
"""
