"""Explain: what a plan does and why, and what another choice would cost.

Takes: a ``Problem`` and plans. Gives: rows with source lines, seconds and bytes: conflicts before
any search (``board.py``), the causes of a collective (``why.py``), two plans side by side
(``difference.py``). Everything is priced by the evaluator; nothing is traced or compiled. Start
reading at ``board.conflicts``.
"""
