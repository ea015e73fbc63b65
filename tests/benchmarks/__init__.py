"""Timings and accuracy as ratios inside one run.

``python -m tests.benchmarks`` prints them and checks the targets.
"""
