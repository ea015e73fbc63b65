"""The named dimension analysis (NDA): names, the identities I and the map M.

A *name* is one factor of one op, or one dim of one argument: exactly one way to partition that op.
The identities I of the paper are built in, because an op's rule already maps all dims that must be
split alike to one factor. That leaves M to compute: a directed edge from the name on a value's
definition to the name on each of its uses, dim by dim.

One difference from the paper: values computed from constants and iota alone carry no edges, as if
every use had its own copy; otherwise one causal mask would tie all layers of a Transformer
together.

Reference: TOAST section 3.1 and its figure of NDA rules. Start reading at ``name_dims``.
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
    #: [N] bool: a pass-through or reduction factor of size above 1, of an op that is not constant
    shardable: np.ndarray
    source: np.ndarray  #: [E] name on the definition
    target: np.ndarray  #: [E] name on the use
    #: [N+1] row starts into ``successor``: M without the edges to the next round of a loop
    ptr: np.ndarray
    successor: np.ndarray  #: [at most E]

    def __repr__(self) -> str:
        return f"<Names of {self.program.name}: {len(self.op)} names>"

    @property
    def n(self) -> int:
        """Number of names."""
        return len(self.op)

    def followers(self, name: int) -> np.ndarray:
        """The names that M leads to from ``name``, without those in the next round of a loop."""
        return self.successor[self.ptr[name] : self.ptr[name + 1]]


def name_dims(program: Program) -> Names:
    """Compute names and M of ``program``."""
    op = np.repeat(np.arange(program.n_ops, dtype=np.int32), np.diff(program.factor_ptr))
    # Values made of constants alone are recomputed at every use, so nothing is decided for them.
    varying = np.zeros(program.n_ops, dtype=bool)
    varying[program.value_op[~program.value_is_constant]] = True
    constant = (np.diff(program.result_ptr) > 0) & ~varying
    shardable = (
        (program.factor_size > 1) & np.isin(program.factor_class, (PASS, REDUCTION)) & ~constant[op]
    )
    edges = _map_edges(program)
    # Paths stay within one round of a loop, as they stay within one layer of an unrolled one.
    forward = edges[op[edges[:, 0]] < op[edges[:, 1]]]
    ptr = np.zeros(len(op) + 1, dtype=np.int64)
    ptr[1:] = np.bincount(forward[:, 0], minlength=len(op))
    names = Names(
        program=program,
        op=op,
        size=program.factor_size,
        shardable=shardable,
        source=edges[:, 0].copy(),
        target=edges[:, 1].copy(),
        ptr=np.cumsum(ptr),
        successor=forward[:, 1].copy(),
    )
    for field in dataclasses.fields(names):
        value = getattr(names, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return names


def _map_edges(program: Program) -> np.ndarray:
    """Unique (definition name, use name) pairs in ascending order, [E, 2] int32."""
    value, def_dim, use_dim = use_dims(program)
    is_mapped = ~program.value_is_constant[value] & (program.shape[def_dim] > 1)
    def_dim, use_dim = def_dim[is_mapped], use_dim[is_mapped]
    pairs = np.stack(
        [program.def_dim_factor[def_dim], program.use_dim_factor[use_dim]], axis=1
    ).astype(np.int64)
    # The major factors of merged dims are mapped, and the minor ones too if all sizes are equal.
    merged = _merged(program.def_dim_minor)[def_dim] & _merged(program.use_dim_factors)[use_dim]
    size = program.factor_size
    minor_pairs = []
    for definition, use in zip(def_dim[merged].tolist(), use_dim[merged].tolist(), strict=True):
        left, right = list(program.def_dim_minor[definition]), list(program.use_dim_factors[use])
        if np.array_equal(size[left], size[right]):
            minor_pairs += list(zip(left[1:], right[1:], strict=True))
    pairs = np.concatenate([pairs, np.asarray(minor_pairs, dtype=np.int64).reshape(-1, 2)])
    # Far quicker than unique rows
    pair_keys = np.unique(pairs[:, 0] * program.n_factors + pairs[:, 1])
    return np.stack(np.divmod(pair_keys, max(1, program.n_factors)), axis=1).astype(np.int32)


def use_dims(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row of ``use_dim_*``: its value, its row in ``def_dim_*`` and its own index."""
    rank = np.diff(program.use_dim_ptr)
    value = np.repeat(program.use_value, rank)
    row = np.arange(len(value))
    return value, program.shape_ptr[value] + row - np.repeat(program.use_dim_ptr[:-1], rank), row


def _merged(dims: tuple[tuple[int, ...], ...]) -> np.ndarray:
    return np.fromiter(map(len, dims), dtype=np.int64, count=len(dims)) > 1
