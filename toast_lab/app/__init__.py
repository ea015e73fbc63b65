"""The explorer: one state without a GUI, and pages that only present it.

It covers all sections of the paper.

Takes: a model, or nothing. Gives: a page served on 127.0.0.1 or shown inside a notebook.
Searches and compilers run in worker processes. Start reading at `explorer.py`.
"""
