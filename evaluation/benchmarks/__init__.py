"""Benchmarks: timings and accuracy, as ratios within one run.

``python -m evaluation benchmarks`` prints them and checks the targets.
"""
