"""Say what a plan means on one device, and hand it to a compiler (paper sections 2.1 and 3.2).

Takes: a `Program` and a `ShardingPlan`. Gives: the device-local listing with its collectives,
StableHLO that carries sdy annotations, PartitionSpecs and sharding constraints.
Start reading at `listing.py`, then `annotate.py` and `specs.py`.
"""
