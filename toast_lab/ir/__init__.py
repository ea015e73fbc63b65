"""Read a StableHLO module into `Program`, the only intermediate representation (paper section 2).

Takes: a StableHLO module as text, bytecode or an MLIR module. Gives: a frozen `Program` of flat
arrays, where every op carries its sharding rule. Start reading at `read.py`, then `program.py`;
`op_kinds.py` is the registry of everything that the stages know about an op from its name.
"""
