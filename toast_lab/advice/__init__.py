"""From a model to a training set-up: what to recompute, and why a plan does not fit.

Start reading at ``recomputation``.
"""
