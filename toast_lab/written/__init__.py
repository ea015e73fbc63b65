"""Plans as people write them: sharding rules of arguments, and a few constraints.

A *written plan* is a table of rules, which shard arguments by their paths, and constraints on
values of the forward program. JAX's propagation and XLA decide the rest. Its size is the number of
rules and constraints, its price is that of the plan that propagation makes of it. Everything that
shows, counts, exports, compiles or confirms what a user writes uses this notion.

Start reading at ``written_plan``.
"""
