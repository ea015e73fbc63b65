"""``Program``: the one intermediate representation, a tensor program as frozen flat arrays.

Every stage after the frontend works on these arrays. An *op* has operands (*uses* of values) and
results (*definitions* of values). A *factor* is one way to partition one op: the op's rule maps
every dim of every operand and result to factors, exactly as an einsum does. Arguments are ops too
(kind ``argument``), with one factor per dim, so that names, factors and ways to split an op share
one numbering throughout TOAST Lab.

Reference: TOAST sections 3 and 3.1 (rules as identities I); Shardy's op sharding rules.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from toast_lab.ir.annotations import Annotation
from toast_lab.ir.locations import user_line
from toast_lab.ragged import row_lists, row_numbers, row_ranges
from toast_lab.text import line_text

# How an op's cost behaves; see toast_lab.cost.
CLASSES = (
    "argument",
    "constant",
    "view",
    "elementwise",
    "dot",
    "convolution",
    "reduce",
    "indexing",
    "other",
    "opaque",
    "control",
)
(
    ARGUMENT,
    CONSTANT,
    VIEW,
    ELEMENTWISE,
    DOT,
    CONVOLUTION,
    REDUCE,
    INDEXING,
    OTHER,
    OPAQUE,
    CONTROL,
) = range(len(CLASSES))

# Role of a factor. PERMUTATION and NEED_REPLICATION factors are never sharded.
FACTOR_CLASSES = ("pass", "reduction", "need_replication", "permutation")
PASS, REDUCTION, NEED_REPLICATION, PERMUTATION = range(4)

# Operators that combine partial results over a sharded reduction factor.
MONOIDS = ("none", "add", "max", "min", "mul", "and", "or")


# Fields that no analysis depends on; the digest leaves them out.
_NOT_ANALYSED = (
    "name",
    "location",
    "locations",
    "name_stack",
    "value_name",
    "detail",
    "annotations",
    "without_cost",
)


class Region(NamedTuple):
    """Ops ``begin`` to ``end`` (exclusive), inside the region ``parent`` (-1: the program).

    A "loop" spans its ``while.enter`` ops, one "cond" and one "body"; a "branch" is one branch of a
    conditional.
    """

    kind: str
    begin: int
    end: int
    parent: int
    times: float  #: how often it runs each time its parent runs
    known: bool  #: False: ``times`` is an assumption, since the input does not say


class WrittenCollective(NamedTuple):
    """A collective that the user wrote, inside a ``shard_map``."""

    op: int  #: of the body
    kind: str  #: "all_reduce", "collective_permute", ...
    axes: tuple[str, ...]  #: mesh axes over which its devices differ
    #: False: it joins some devices of these axes only, which the axes alone do not say
    exact: bool = True


class ShardMap(NamedTuple):
    """An op that its user has split over devices by hand, as ``jax.shard_map`` does.

    It is kept as it was written: whatever the plan, its operands are brought to these specs, each
    device runs the body on its parts, and the results come out in these specs.
    """

    op: int
    mesh: tuple[tuple[str, int], ...]  #: axes and sizes; the body counts devices in their order
    manual_axes: tuple[str, ...]  #: axes over which the body is one device's; whole on the others
    operand_specs: tuple[tuple[tuple[str, ...], ...], ...]  #: axes per dim of each operand
    result_specs: tuple[tuple[tuple[str, ...], ...], ...]  #: axes per dim of each result
    body: Program  #: what each device runs, on local shapes

    def name_inside(self, value: int) -> str:
        """Name of a value of the body that no value of the program has."""
        return f"{self.body.value_name[value]} (shard_map {self.op})"

    @property
    def n_devices(self) -> int:
        """Devices of its mesh."""
        return math.prod(size for _, size in self.mesh)

    @property
    def flops(self) -> float:
        """Floating point operations of all devices."""
        return float(self.body.flops @ self.body.trips) * self.n_devices

    @property
    def free_axes(self) -> tuple[str, ...]:
        """Axes of its mesh that it leaves to the compiler, on which plans keep it whole."""
        return tuple(axis for axis, _ in self.mesh if axis not in self.manual_axes)


class HostMemory(NamedTuple):
    """What is in host memory, by number; see ``host_memory``."""

    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()  #: positions among the program's results
    values: tuple[int, ...] = ()  #: that no device holds; arguments among them

    def __bool__(self) -> bool:
        return bool(self.arguments or self.results or self.values)


NO_HOST_MEMORY = HostMemory()


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A tensor program as a list of ops; loops and conditionals are ranges of it (``regions``).

    Each value that passes through a loop or a conditional has pseudo-ops of class "control", which
    share one set of factors: see ``walk``. The ``owner`` of such an op is the op that has the
    factors; every other op owns its own.

    Sizes: ``V`` values, ``O`` ops (arguments first), ``U`` operand uses, ``F`` factors; ``*_ptr``
    arrays are row starts, one longer than the rows they index. All arrays are read-only.

    Examples:
        >>> import toast_lab as tl
        >>> program = tl.load("mlp", batch=64).program
        >>> program.n_ops, program.n_values
        (8, 8)
        >>> [kind for kind in program.kind if kind != "argument"]
        ['dot_general', 'constant', 'broadcast_in_dim', 'maximum', 'dot_general']
        >>> program.dims(0)  # of the first argument
        (64, 32)
    """

    name: str
    # -- values ---------------------------------------------------------------------------------
    shape_ptr: np.ndarray  #: [V+1] row starts into ``shape``
    shape: np.ndarray  #: [sum of ranks] int64 dim sizes
    itemsize: np.ndarray  #: [V] bytes per element (0.125 is rounded up to 1)
    value_op: np.ndarray  #: [V] the op that defines the value
    value_is_constant: np.ndarray  #: [V] bool, computed from constants and iota only
    value_dtype: tuple[str, ...]  #: [V] element type as StableHLO spells it
    value_name: tuple[str, ...]  #: [V] readable, unique: argument path, source variable or ``%12``
    # -- ops ------------------------------------------------------------------------------------
    kind: tuple[str, ...]  #: [O] "argument", "dot_general", "chlo.square", ...
    op_class: np.ndarray  #: [O] index into CLASSES
    result_ptr: np.ndarray  #: [O+1] results of op o are values result_ptr[o]:result_ptr[o+1]
    use_ptr: np.ndarray  #: [O+1] operand uses of op o are use_ptr[o]:use_ptr[o+1]
    use_value: np.ndarray  #: [U] the value used
    monoid: np.ndarray  #: [O] index into MONOIDS
    flops: np.ndarray  #: [O] float64 floating point operations of the whole op
    trips: np.ndarray  #: [O] float64 how often the op runs (1 outside loops)
    owner: np.ndarray  #: [O] the op whose factors this op's dims are mapped to
    region: np.ndarray  #: [O] innermost region, -1 outside all
    location: np.ndarray  #: [O] index into ``locations``
    locations: tuple[str, ...]  #: "file.py:12" innermost frame first, frames joined by " < "
    name_stack: tuple[str, ...]  #: [O] for instance "jit(f)/transpose(jvp)/dot_general"
    detail: tuple[str, ...]  #: [O] attributes for people: "dims=[1] add", "perm=[1, 0]"
    regions: tuple[Region, ...]  #: loops and branches, outer ones first
    # -- rules ----------------------------------------------------------------------------------
    factor_ptr: np.ndarray  #: [O+1] factors (names) of op o
    factor_size: np.ndarray  #: [F] int64
    factor_class: np.ndarray  #: [F] index into FACTOR_CLASSES
    use_dim_ptr: np.ndarray  #: [U+1] row starts into use_dim_*; row u has one entry per operand dim
    use_dim_factor: np.ndarray  #: [sum] major factor of each operand dim (-1 never occurs)
    use_dim_factors: tuple[tuple[int, ...], ...]  #: [sum] all factors of that dim, major first
    #: [sum of ranks] major factor of each result dim, row starts = shape_ptr
    def_dim_factor: np.ndarray
    def_dim_minor: tuple[tuple[int, ...], ...]  #: [sum of ranks] all factors of that dim
    #: [sum of ranks] bool, dims of the words of random keys, which are never cut: see
    #: ``random_keys``
    hidden: np.ndarray
    # -- interface ------------------------------------------------------------------------------
    n_arguments: int
    outputs: np.ndarray  #: values returned, in order
    output_paths: tuple[str, ...]
    donated: np.ndarray  #: [n_arguments] bool
    missing_rules: tuple[tuple[int, str], ...]  #: (op, reason) of every op without a rule
    #: (op, bytes that the whole op moves to and from memory) of kernels whose rule says so
    moved_bytes: tuple[tuple[int, float], ...] = ()
    #: (op, line that would give it FLOPs) of kernels that are priced by their bytes alone
    without_cost: tuple[tuple[int, str], ...] = ()
    #: shardings that the user wrote into the program; no other field depends on them
    annotations: tuple[Annotation, ...] = ()
    shard_maps: tuple[ShardMap, ...] = ()  #: ops that the user has split by hand, in program order
    collectives: tuple[WrittenCollective, ...] = ()  #: only in the body of a ``shard_map``
    host: HostMemory = NO_HOST_MEMORY  #: what is in host memory

    def __repr__(self) -> str:
        return (
            f"<Program {self.name}: {self.n_ops} ops, {self.n_values} values, "
            f"{self.n_arguments} arguments>"
        )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __getstate__(self) -> dict[str, Any]:
        """The fields only; cached properties are computed again after unpickling."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    # -- sizes ----------------------------------------------------------------------------------
    @property
    def n_values(self) -> int:
        """Number of values, arguments included."""
        return len(self.value_op)

    @property
    def n_ops(self) -> int:
        """Number of ops, argument pseudo-ops included."""
        return len(self.kind)

    @property
    def n_uses(self) -> int:
        """Number of operand uses."""
        return len(self.use_value)

    @property
    def n_factors(self) -> int:
        """Number of factors, which are the paper's dimension names."""
        return len(self.factor_size)

    # -- access ---------------------------------------------------------------------------------
    def dims(self, value: int) -> tuple[int, ...]:
        """Shape of ``value``."""
        return self._dims[value]

    def uses(self, op: int) -> range:
        """Operand uses of ``op``, in operand order."""
        return self._uses[op]

    def operands(self, op: int) -> list[int]:
        """Values that ``op`` uses, in operand order."""
        return self._operands[op][:]

    def results(self, op: int) -> range:
        """Values that ``op`` defines."""
        return self._results[op]

    def factors(self, op: int) -> range:
        """Factors (names) of ``op``."""
        return range(int(self.factor_ptr[op]), int(self.factor_ptr[op + 1]))

    def def_names(self, value: int) -> list[int]:
        """Name of each dim of the definition of ``value`` (the major factor of a merged dim)."""
        return self._def_names[value][:]

    def use_names(self, use: int) -> list[int]:
        """Name of each dim of operand use ``use``."""
        return self._use_names[use][:]

    # Loops over all ops read these rows again and again. Slicing an array each time would cost ten
    # times as much.
    @functools.cached_property
    def _dims(self) -> list[tuple[int, ...]]:
        return [tuple(row) for row in row_lists(self.shape_ptr, self.shape)]

    @functools.cached_property
    def _uses(self) -> list[range]:
        return row_ranges(self.use_ptr)

    @functools.cached_property
    def _operands(self) -> list[list[int]]:
        return row_lists(self.use_ptr, self.use_value)

    @functools.cached_property
    def _results(self) -> list[range]:
        return row_ranges(self.result_ptr)

    @functools.cached_property
    def _def_names(self) -> list[list[int]]:
        return row_lists(self.shape_ptr, self.def_dim_factor)

    @functools.cached_property
    def _use_names(self) -> list[list[int]]:
        return row_lists(self.use_dim_ptr, self.use_dim_factor)

    @functools.cached_property
    def use_op(self) -> np.ndarray:
        """[U] the op that each use belongs to."""
        return row_numbers(self.use_ptr)

    @functools.cached_property
    def dim_value(self) -> np.ndarray:
        """[sum of ranks] the value that each row of ``shape`` belongs to."""
        return row_numbers(self.shape_ptr)

    def ops(self) -> Iterator[int]:
        """Indices of the real ops, in program order (argument pseudo-ops skipped)."""
        return iter(range(self.n_arguments, self.n_ops))

    def region_end(self) -> np.ndarray:
        """[O] first op after the innermost region of each op; its results live no longer."""
        ends = np.asarray([*(region.end for region in self.regions), self.n_ops], dtype=np.int32)
        return ends[self.region]

    def kept_until(self, defining_op: int, using_op: int) -> int:
        """The last op during which a value of ``defining_op`` must be kept for ``using_op``.

        A loop uses values from outside in every round, so they are kept until it ends.
        """
        last_op, index = using_op, int(self.region[using_op])
        while index >= 0:
            region = self.regions[index]
            if region.kind == "loop" and defining_op < region.begin:
                last_op = max(last_op, region.end - 1)
            index = region.parent
        return last_op

    def nbytes(self, value: int) -> int:
        """Size of the whole, unsharded value in bytes."""
        return math.prod(self.dims(value)) * int(self.itemsize[value])

    def where(self, op: int) -> str:
        """The user's source line of ``op``, or "unknown line" if the input had none."""
        return user_line(self.locations[int(self.location[op])]) or "unknown line"

    def is_computed_again(self, op: int) -> bool:
        """Is it an op of the backward pass that repeats one of the forward pass?"""
        return "rematted_computation" in self.name_stack[op]

    def source_lines(self) -> list[str]:
        """[O] ``where`` of each op, without the folder."""
        return [line_text(self.where(op)) for op in range(self.n_ops)]

    def digest(self) -> str:
        """Hex digest of everything that an analysis depends on, for caching and plan files."""
        hashed = hashlib.sha256()
        for field in dataclasses.fields(self):
            if field.name in _NOT_ANALYSED:
                continue
            value = getattr(self, field.name)
            if field.name == "hidden" and not value.any():
                continue  # keeps the digests that programs without keys had before this field
            if field.name in ("shard_maps", "collectives", "host", "moved_bytes"):
                if not value:
                    continue  # likewise
                if field.name == "shard_maps":
                    value = [(*shard_map[:-1], shard_map.body.digest()) for shard_map in value]
            hashed.update(field.name.encode())
            hashed.update(
                value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            )
        return hashed.hexdigest()[:16]
