"""Tests that kill processes of sweeps, races, comparisons and searches, and check the rest.

They are killed at random moments.

Start reading at ``harness.py``.
"""
