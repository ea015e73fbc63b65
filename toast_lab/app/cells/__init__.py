"""The explorer's components one by one, for notebooks: ``toast_lab.views.graph(analysis)`` and so on.

Takes what the public functions give, gives a ``View`` that a cell shows.  Start reading at ``view``.
"""
