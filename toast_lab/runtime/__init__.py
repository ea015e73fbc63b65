"""Compile and execute plans in a child process (paper section 5).

Takes: a model, a plan, and devices or a topology. Gives: measured step times, memory and the error
against the unsharded program, or what the compiler reports ahead of time. A crash of the compiler
ends the child, never the caller. Start reading at `run.py` and `compile.py`; `diff.py` compares
priced with compiled collectives.
"""
