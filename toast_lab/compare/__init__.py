"""Compare: several plans of one model, measured side by side and kept.

Takes: a ``Model`` and plans. Gives: a ``Comparison``: a row for each plan with times, memory,
collectives, a certificate and the predicted numbers (``compare.py``); rows are stored in a file
(``comparison_store.py``). ``replay`` times one device's share of a large mesh.
Start reading at ``compare.compare``.
"""
