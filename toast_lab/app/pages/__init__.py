"""The four pages of the explorer: load, understand, search, use.

Takes: a ``Session``. Gives: Panel viewers that compute nothing themselves; each has ``left``,
``centre`` and ``right``. Start reading at ``graph_page.py``.
"""
