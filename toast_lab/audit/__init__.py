"""Audits code that is already sharded: what a compiler makes of it, and what to change.

Takes a model whose user wrote shardings into it, gives an ``Audit``: findings by source line, each
with why, its cost and the cheapest change that removes it. The paper has no such stage.

Start reading at ``audit.py``.
"""
