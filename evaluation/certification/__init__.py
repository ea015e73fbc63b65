"""Certification by execution of rules, plans and collectives.

Each op is checked against its sharding rule, each plan against the unsharded program, and the
collectives of a plan against Shardy's.

Run in full with ``python -m evaluation certification rules|plans|oracle --full``; pytest runs a
short, seeded form.
"""
