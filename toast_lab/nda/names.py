"""The named dimension analysis (NDA): names, the identities I and the map M.

A *name* is one factor of one op, or one dim of one argument: exactly one way to partition that op.  The
identities I of the paper are built in, because an op's rule already maps all dims that must be split
alike to one factor.  What is left to compute is M: a directed edge from the name on a value's definition
to the name on each of its uses, dim by dim.

Where we differ from the paper: values computed from constants and iota alone carry no edges, as if every
use had its own copy; otherwise one causal mask would tie all layers of a Transformer together.

Reference: TOAST section 3.1 and its figure of NDA rules.  Start reading at ``name_dimensions``.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from toast_lab.ir.program import PASS, REDUCTION, Program


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """Names of a program (``N`` of them, numbered like its factors) and the map M (``E`` edges)."""

    program: Program
    op: np.ndarray  #: [N] the op that the name partitions
    size: np.ndarray  #: [N] int64
    shardable: np.ndarray  #: [N] bool: size above 1, a pass-through or reduction factor, not of constants
    source: np.ndarray  #: [E] name on the definition
    target: np.ndarray  #: [E] name on the use
    ptr: np.ndarray  #: [N+1] row starts into ``successor``: M without what a loop hands to its next round
    successor: np.ndarray  #: [at most E]

    @property
    def n(self) -> int:
        """Number of names."""
        return len(self.op)


def name_dimensions(program: Program) -> Names:
    """Compute names and M of ``program``."""
    op = np.repeat(np.arange(program.n_ops, dtype=np.int32), np.diff(program.factor_ptr))
    # What is made of constants alone is made wherever it is used: there is nothing to decide about it.
    constant = np.asarray(
        [
            len(program.results(o)) > 0 and all(program.value_is_constant[v] for v in program.results(o))
            for o in range(program.n_ops)
        ],
        dtype=bool,
    )
    shardable = (program.factor_size > 1) & np.isin(program.factor_class, (PASS, REDUCTION)) & ~constant[op]
    edges = _map_edges(program)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    edges = edges[order]
    # Paths stay within one round of a loop, as they stay within one layer of an unrolled one.
    forward = edges[op[edges[:, 0]] < op[edges[:, 1]]]
    ptr = np.zeros(len(op) + 1, dtype=np.int64)
    np.add.at(ptr, forward[:, 0] + 1, 1)
    names = Names(
        program,
        op,
        program.factor_size,
        shardable,
        edges[:, 0].copy(),
        edges[:, 1].copy(),
        np.cumsum(ptr),
        forward[:, 1].copy(),
    )
    for field in dataclasses.fields(names):
        value = getattr(names, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return names


def _map_edges(program: Program) -> np.ndarray:
    """Unique (definition name, use name) pairs, [E, 2] int32."""
    found: set[tuple[int, int]] = set()
    size = program.factor_size
    for use in range(program.n_uses):
        value = int(program.use_value[use])
        if program.value_is_constant[value]:
            continue
        start = int(program.shape_ptr[value])
        row = int(program.use_dim_ptr[use])
        for dim in range(int(program.shape_ptr[value + 1]) - start):
            if program.shape[start + dim] <= 1:
                continue
            here, there = program.def_dim_minor[start + dim], program.use_dim_minor[row + dim]
            if len(here) == len(there) and all(size[a] == size[b] for a, b in zip(here, there, strict=True)):
                found.update(zip(here, there, strict=True))
            else:
                found.add((here[0], there[0]))
    if not found:
        return np.zeros((0, 2), dtype=np.int32)
    return np.asarray(sorted(found), dtype=np.int32)
