"""Benchmarks: timings and accuracy, as ratios within one run.

``python -m tests.benchmarks`` prints them and checks the targets.
"""
