"""Colours, conflicts and how they are resolved together (paper sections 3.3 to 3.6 and 4.4).

Takes: names and the map M. Gives: the dimension graph with its colours, the conflicts, the
compatibility sets that tie conflicts to one bit, the repeated layers and the argument groups.
Start reading at `analysis.py`.
"""
