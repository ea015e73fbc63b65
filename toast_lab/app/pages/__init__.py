"""The five steps of the explorer: load, graph, by hand, search, compare.

Takes: a ``Session``. Gives: Panel viewers that compute nothing themselves; each has ``left``,
``centre`` and ``right``. Start reading at ``graph_page.py``.
"""
