"""Run a plan in the user's own program (paper section 5).

Takes: a ``ShardingPlan`` and the user's function. Gives: a function with the same arguments and
results that runs the plan (``jit.py``). Unlike in ``runtime``, everything here happens in the
user's process, on the user's devices, under the user's transforms. Start reading at ``jit.jit``.
"""
