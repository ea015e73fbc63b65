"""The zoo: the networks that the paper shards, and small ones to learn from (paper section 5.1).

Takes: a name and sizes. Gives: a function with the shapes of its arguments; no weight is ever
allocated. Start reading at `registry.py`.
"""
