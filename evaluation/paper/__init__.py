"""The paper's evaluation (section 5): searches, tables, charts and a page.

It reports step times, search times, scaling, and the results of compilers.

Takes: a folder, and the parts, methods and machines to run. Gives: rows, which a second run reuses,
and tables as CSV, charts as SVG and a page in Markdown, all computed from the rows.
Start reading at `evaluation/paper/paper_cases.py`, then `run.py`.
"""
