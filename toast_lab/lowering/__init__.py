"""Express a plan as a device-local program and for compilers (paper sections 2.1 and 3.2).

Takes: a `Program` and a `ShardingPlan`. Gives: the device-local listing with its collectives,
StableHLO with sdy annotations, PartitionSpecs and sharding constraints.
Start reading at `listing.py`, then `annotate.py` and `specs.py`.
"""
