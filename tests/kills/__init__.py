"""Kill processes of sweeps, races, comparisons and searches, and see what is left.

They are killed at random moments.

Start reading at ``harness.py``.
"""
