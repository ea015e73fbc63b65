"""Kill processes of sweeps, races, comparisons and searches at random moments, and see what is
left.

Start reading at ``harness.py``.
"""
