"""The paper's evaluation (section 5) by one command.

It gives step times, search times, scaling, and what compilers say.

Takes: a folder, and which parts, methods and machines. Gives: rows that a second run does not make
again, tables as CSV, charts as SVG and a page in Markdown, all computed from the rows.
Start reading at `cases.py`, then `paper.py`.
"""
