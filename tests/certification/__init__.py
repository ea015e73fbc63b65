"""Proof by execution.

Ops are held against their rules, plans against the unsharded program, collectives against Shardy's.

Run in full with ``python -m tests.certification rules|plans|oracle --full``; pytest runs a short
seeded form.
"""
