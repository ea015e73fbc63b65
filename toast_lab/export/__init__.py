"""A plan in the user's own code: the fewest sharding constraints, as Python, a patch or rules.

``minimal`` finds the constraints, ``constrained`` applies them to a function, and ``python``,
``patch`` and ``axis_rules`` write them down. Start reading at ``minimal.minimal_constraints``.

A written plan is exported by ``written_python`` and ``written_patch``; ``explicit_edits`` adds what
JAX's explicit mode needs.
"""
