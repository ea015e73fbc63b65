"""The registry of op kinds: everything that TOAST Lab knows about an op from its name.

A kind is one entry of ``OP_KINDS``. Each stage reads the fields that concern it and keeps no table
of its own: reading (``rule``, ``narrow``, ``monoid``, ``flops``, ``detail``), the analysis and its
listings (``paper_name`` and the fields below it), prices (``cost_class``, ``moves_elements``,
``reads_part``, ``update_operand``) and drawing inputs (``keeps_sign`` and the fields below it). To
add a kind, add an entry and a certification case (``evaluation/certification/rules/cases.py``),
which executes every factor that its rule offers.

A kind without an entry is elementwise if it belongs to StableHLO, and opaque if it belongs to
another dialect (``op_kind``).

StableHLO names lose their dialect prefix; names of other dialects keep it (``chlo.square``). The
pseudo-ops of loops and conditionals have names of our own, see ``walk``.

Reference: TOAST sections 3.1 (identities I) and 4.5 (cost); Shardy's op sharding rule registry.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from toast_lab.ir import attributes, kernel_rules, narrowing, own_rules
from toast_lab.ir.own_rules import Rule, Shapes
from toast_lab.ir.program import (
    ARGUMENT,
    CONSTANT,
    CONTROL,
    CONVOLUTION,
    DOT,
    ELEMENTWISE,
    INDEXING,
    OPAQUE,
    OTHER,
    REDUCE,
    VIEW,
)

#: (operand shapes, result shapes, MLIR operation or None) -> the rule, or None if there is none.
OwnRule = Callable[[Shapes, Shapes, Any], Rule | None]
#: (rule, roles of its factors, MLIR operation, monoid); changes the roles in place.
Narrowing = Callable[[Rule, list[int], Any, str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpKind:
    """The facts about one kind of op; functions that take an ``op`` get the MLIR operation."""

    #: How its cost behaves, an index into ``program.CLASSES``.
    cost_class: int = ELEMENTWISE

    # -- sharding rule -----------------------------------------------------------------------------
    #: Our own rule, used if Shardy has none. Without either, every dim stays whole.
    rule: OwnRule | None = None
    #: A rule for this one op, which goes before any other: (operand shapes, result shapes, op).
    given: OwnRule | None = None
    #: Takes back the factors of Shardy's rule that are not local; each such function says why.
    narrow: Narrowing | None = None
    #: It creates dims that no operand has, so that each shard can make its own piece of them.
    creates_dims: bool = False
    #: Tells whether the op stays whole, whatever rule it carries.
    stays_whole: Callable[[Any], bool] | None = None
    #: Tells whether compilers gather its operands even where only independent parts are split (see
    #: ``local_ops``).
    gathered: Callable[[Any], bool] | None = None
    #: Completes "no sharding rule for ..." in place of the kind's name. A function is called with
    #: the op or None.
    without_rule: str | Callable[[Any], str] = ""
    #: It means something only where the user has split the program over devices by hand: inside a
    #: ``shard_map``. Elsewhere it is refused.
    per_device: bool = False
    #: The collective that it is, as ``machines.collectives`` names it.
    collective: str = ""

    # -- partial results, work, text ---------------------------------------------------------------
    #: How partial results over a sharded reduction factor are combined, one of ``program.MONOIDS``,
    #: by the kind or by each op.
    monoid: str | Callable[[Any], str] = "none"
    #: Number of the region whose body determines the monoid instead, None if there is none.
    combiner_region: int | None = None
    #: The monoid of a reduction whose body consists of this op.
    as_combiner: str = "none"
    #: FLOPs of the whole op; None: only its bytes are counted.
    flops: Callable[[Any, Rule, list[attributes.TensorType]], float] | None = None
    #: Bytes that the whole op moves, None: those of its operands and results.
    moved_bytes: Callable[[Any], float | None] | None = None
    #: The line that would give the op FLOPs, empty if it needs none.
    without_cost: Callable[[Any], str] | None = None
    #: (op, monoid) -> the attributes that matter to readers, as listings print them after the op.
    detail: Callable[[Any, str], str] | None = None

    # -- control flow and effects ------------------------------------------------------------------
    #: It has regions that ``walk`` flattens.
    control_flow: bool = False
    #: It may have side effects, and is kept even if nothing uses its results.
    side_effect: bool = False
    #: It exchanges data with the host, which is refused.
    host: bool = False
    #: It makes a token, which orders side effects; it is refused if anything uses the token.
    token: bool = False

    # -- analysis and listings ---------------------------------------------------------------------
    #: Its name in the paper's listings, if it differs.
    paper_name: str = ""
    #: The whole line of a pseudo-op: {0} is its operand, {own} the value that it belongs to.
    line: str = ""
    #: The name that reports use for the construct that a pseudo-op stands for.
    construct: str = ""
    #: The second half of its operands are initial values, which listings leave out.
    initial_values: bool = False
    #: Its detail lists the kept dims, whereas the paper writes the new ones.
    detail_is_kept_dims: bool = False
    #: The detail that listings leave out because it is obvious.
    plain_detail: str = ""
    #: If all elements of its first operand equal one number, all elements of its result equal it.
    keeps_number: bool = False
    #: It takes or writes a slice of its first operand, at a position given by indices.
    picks_slice: bool = False
    #: It passes a stacked tensor into a round of a loop, or takes that round's slice of it.
    passes_slices: bool = False

    # -- Shardy's propagation ----------------------------------------------------------------------
    #: It passes shardings on in both directions before other ops do, as elementwise ops do.
    passes_early: bool = False
    #: Its operand and result differ in size along a factor that it needs whole: no sharding goes
    #: along it.
    blocks_whole: bool = False
    #: Its results have constraints of their own, which those who read them see.
    has_edges: bool = False

    # -- prices ------------------------------------------------------------------------------------
    #: It moves elements and computes nothing, so that any part of its result can be made alone.
    moves_elements: bool = False
    #: Its result has another order in memory, so that it cannot reuse its operand's buffer.
    reorders: bool = False
    #: It casts, slices or reorders its first operand, which can be done while the operand is
    #: fetched.
    done_while_fetched: bool = False
    #: It reads no more of its first operand than it returns.
    reads_part: bool = False
    #: It reads its operand at another place than it writes it.
    shifts: bool = False
    #: Its result is in the memory, of the host or a device, that its first operand is in.
    stays_in_memory: bool = False
    #: Compilers first sort its updates, if an element can be written several times.
    sorts_updates: bool = False
    #: Number of the operand that is written into the first one; -1: the whole result is written.
    update_operand: int = -1
    #: Backends sum its terms in a wider type than its result has.
    sums_wider: bool = False
    #: Its time on a GPU, as the number of reads of its operands that take as long.
    gpu_passes: float = 1.0

    # -- drawing inputs ----------------------------------------------------------------------------
    #: Its result is not negative if its operands are not (subtraction is counted as such).
    keeps_sign: bool = False
    #: Operands in which it is linear while the others stay fixed.
    linear_in: tuple[int, ...] = ()
    #: It is defined for positive numbers only, as roots and logarithms are.
    needs_positive: bool = False
    #: Number of the operand that divides the other, -1: none does.
    divides_by: int = -1
    #: Its result consists of products of its first two operands, summed or not.
    multiplies: bool = False
    #: One of its operands holds indices into the first.
    looks_up: bool = False
    #: Number of the first operand that gives a start position of its slice; -1: there is none.
    first_start: int = -1
    #: It mixes the words of random keys bit by bit, or draws from them.
    mixes_keys: bool = False
    #: It orders its first operand along a dim, or selects the largest there.
    orders: bool = False


OP_KINDS: dict[str, OpKind] = {}


def _kind(name: str, **fields: Any) -> None:
    assert name not in OP_KINDS, name
    OP_KINDS[name] = OpKind(**fields)


def _kinds(names: str, **fields: Any) -> None:
    for name in names.split():
        _kind(name, **fields)


# -- element by element ----------------------------------------------------------------------------

_kind("add", as_combiner="add", keeps_sign=True)
_kind("and", as_combiner="and")
_kind("or", as_combiner="or")
_kind("maximum", as_combiner="max", paper_name="max", keeps_sign=True)
_kind("minimum", as_combiner="min", paper_name="min", keeps_sign=True)
_kind("multiply", as_combiner="mul", paper_name="mul", linear_in=(0, 1), multiplies=True)
_kind("divide", paper_name="div", linear_in=(0,), divides_by=1)
_kind("exponential", paper_name="exp")
_kind("negate", paper_name="neg")
_kind("subtract", paper_name="sub", keeps_sign=True)
_kind("select", keeps_sign=True)
_kind("compare", detail=attributes.detail_of("comparison_direction"))
_kind(
    "convert",
    detail=attributes.convert_detail,
    done_while_fetched=True,
    keeps_number=True,
    keeps_sign=True,
)
_kinds("cbrt log log_plus_one rsqrt sqrt", needs_positive=True)
_kinds(
    "abs atan2 ceil clamp complex count_leading_zeros exponential_minus_one floor imag "
    "is_finite logistic "
    "not popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even "
    "shift_left "
    "shift_right_arithmetic shift_right_logical sign"
)
_kind("xor", mixes_keys=True)
_kinds("tanh cosine sine tan")
# Shardy has no rule for ops that apply a body to each element.
_kind("map", rule=own_rules.elementwise)

# -- element by element, CHLO: meant to be expanded first, hence without rules in Shardy -----------

_kinds("chlo.digamma chlo.lgamma", rule=own_rules.elementwise, needs_positive=True)
_kinds(
    "chlo.erf chlo.erfc chlo.erf_inv "
    "chlo.square chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e "
    "chlo.conj chlo.cosh "
    "chlo.is_inf chlo.is_neg_inf chlo.is_pos_inf chlo.next_after "
    "chlo.polygamma "
    "chlo.sinh chlo.tan chlo.zeta chlo._asin_acos_kernel chlo.mulhi chlo.constant_like",
    rule=own_rules.elementwise,
)

# -- products --------------------------------------------------------------------------------------

_kind(
    "dot_general",
    cost_class=DOT,
    monoid="add",
    flops=attributes.dot_flops,
    detail=attributes.precision,
    paper_name="matmul",
    sums_wider=True,
    multiplies=True,
)
_kind(
    "dot",
    cost_class=DOT,
    monoid="add",
    flops=attributes.dot_flops,
    sums_wider=True,
    multiplies=True,
)
_kind(
    "chlo.ragged_dot",
    cost_class=DOT,
    rule=own_rules.ragged_dot,
    monoid="add",
    flops=attributes.ragged_dot_flops,
    detail=attributes.ragged_dot_detail,
)
_kind(
    "convolution",
    cost_class=CONVOLUTION,
    narrow=narrowing.narrow_convolution,
    gathered=own_rules.has_groups,
    monoid="add",
    flops=attributes.convolution_flops,
    detail=attributes.precision,
    sums_wider=True,
    multiplies=True,
)
_kind("dynamic_conv", cost_class=CONVOLUTION, flops=attributes.convolution_flops)

# -- reductions ------------------------------------------------------------------------------------

_kind(
    "reduce",
    cost_class=REDUCE,
    narrow=narrowing.narrow_reduce,
    combiner_region=0,
    detail=attributes.reduce_detail,
    initial_values=True,
    keeps_sign=True,
)
_kind("reduce_window", cost_class=REDUCE, combiner_region=0)
_kind("select_and_scatter", cost_class=REDUCE, combiner_region=1)

# -- views -----------------------------------------------------------------------------------------

_kind(
    "reshape",
    stays_in_memory=True,
    cost_class=VIEW,
    # The only reshape for which Shardy has no rule.
    without_rule="a reshape of an array without elements",
    done_while_fetched=True,
    keeps_number=True,
    passes_slices=True,
    keeps_sign=True,
    passes_early=True,
)
_kind(
    "broadcast_in_dim",
    cost_class=VIEW,
    creates_dims=True,
    detail=attributes.detail_of("broadcast_dimensions"),
    paper_name="broadcast",
    detail_is_kept_dims=True,
    keeps_number=True,
    keeps_sign=True,
)
_kind("broadcast", cost_class=VIEW, rule=own_rules.broadcast, creates_dims=True)
_kind(
    "optimization_barrier",
    cost_class=VIEW,
    rule=own_rules.identity,
    keeps_sign=True,
    stays_in_memory=True,
    has_edges=True,
)
# The user's own constraints cost nothing by themselves: what they move is priced as collectives
_kind("sdy.sharding_constraint", cost_class=VIEW, keeps_sign=True, stays_in_memory=True)
_kinds("bitcast_convert tuple get_tuple_element", cost_class=VIEW)

# -- slices and indices ----------------------------------------------------------------------------

_kind(
    "slice",
    cost_class=INDEXING,
    stays_in_memory=True,
    detail=attributes.slice_detail,
    moves_elements=True,
    done_while_fetched=True,
    reads_part=True,
    shifts=True,
    keeps_sign=True,
)
_kind(
    "dynamic_slice",
    cost_class=INDEXING,
    stays_in_memory=True,
    picks_slice=True,
    passes_slices=True,
    done_while_fetched=True,
    reads_part=True,
    first_start=1,
    blocks_whole=True,
)
_kind(
    "dynamic_update_slice",
    cost_class=INDEXING,
    stays_in_memory=True,
    narrow=narrowing.narrow_update,
    picks_slice=True,
    update_operand=1,
    first_start=2,
)
# Each shard of a gather's operand gives the rows that it holds, and zeros for all others.
_kind(
    "gather",
    cost_class=INDEXING,
    monoid="add",
    reads_part=True,
    looks_up=True,
    blocks_whole=True,
)
_kind(
    "scatter",
    cost_class=INDEXING,
    narrow=narrowing.narrow_bitwise,
    combiner_region=0,
    update_operand=2,
    sorts_updates=True,
    looks_up=True,
)
_kind(
    "concatenate",
    cost_class=INDEXING,
    detail=attributes.detail_of("dimension"),
    moves_elements=True,
    shifts=True,
    keeps_sign=True,
)
_kind(
    "pad",
    cost_class=INDEXING,
    narrow=narrowing.narrow_pad,
    moves_elements=True,
    shifts=True,
    keeps_sign=True,
)
_kind("reverse", cost_class=INDEXING, moves_elements=True, keeps_sign=True)
_kind("dynamic_gather", cost_class=INDEXING)
_kind(
    "transpose",
    cost_class=OTHER,
    detail=attributes.detail_of("permutation"),
    # A matrix has only one transpose.
    plain_detail="1,0",
    moves_elements=True,
    done_while_fetched=True,
    reorders=True,
    keeps_sign=True,
    passes_early=True,
)

# -- made without operands: every use has its own copy ---------------------------------------------

_kind(
    "constant",
    cost_class=CONSTANT,
    rule=own_rules.all_pass,
    creates_dims=True,
    detail=attributes.constant_detail,
)
_kind(
    "iota",
    cost_class=CONSTANT,
    rule=own_rules.all_pass,
    creates_dims=True,
    detail=attributes.detail_of("iota_dimension"),
)
_kind("create_token", cost_class=CONSTANT, rule=own_rules.all_pass, token=True)
# A piece of its stream depends only on the state and the position, and XLA was seen to make just
# that piece, without communication.
_kind(
    "rng_bit_generator",
    cost_class=OTHER,
    creates_dims=True,
    mixes_keys=True,
    blocks_whole=True,
)

# -- others ----------------------------------------------------------------------------------------

_kinds("cholesky dynamic_reshape", cost_class=OTHER)
# From six sorts and selections on an H100, which took 14 to 60 times as long as their traffic; see
# docs/measured.md.
_kind("sort", cost_class=OTHER, gpu_passes=35.0, orders=True)
_kind(
    "fft",
    cost_class=OTHER,
    gathered=own_rules.always,
    flops=attributes.fourier_flops,
    blocks_whole=True,
)
_kind(
    "triangular_solve",
    cost_class=OTHER,
    narrow=narrowing.narrow_triangular_solve,
    gathered=own_rules.always,
)
_kind(
    "chlo.top_k",
    cost_class=OTHER,
    rule=own_rules.top_k,
    gathered=own_rules.always,
    gpu_passes=35.0,
    orders=True,
)
_kind(
    "custom_call",
    cost_class=OPAQUE,
    monoid=kernel_rules.monoid,
    given=kernel_rules.given,
    rule=own_rules.custom_call,
    narrow=narrowing.narrow_call,
    stays_whole=own_rules.known_whole,
    without_rule=kernel_rules.without_rule,
    flops=kernel_rules.flops,
    moved_bytes=kernel_rules.moved_bytes,
    without_cost=kernel_rules.without_cost,
    detail=kernel_rules.detail,
    side_effect=True,
    mixes_keys=True,
)
_kind("composite", cost_class=OPAQUE, side_effect=True)
_kind(
    "rng",
    cost_class=OPAQUE,
    without_rule="rng: each shard would draw numbers of its own",
    side_effect=True,
)
_kinds("infeed outfeed send recv", cost_class=OPAQUE, side_effect=True, host=True)
_kind("after_all", token=True)
_kind("func.call", cost_class=OPAQUE)
_kind("sdy.propagation_barrier", cost_class=OPAQUE, rule=own_rules.elementwise)

# -- loops and conditionals, and their pseudo-ops --------------------------------------------------

_kinds("while case if", cost_class=OPAQUE, control_flow=True)
_kind("argument", cost_class=ARGUMENT)
_kind(
    "while.enter",
    cost_class=CONTROL,
    line="carry({0})",
    construct="loop",
    passes_slices=True,
    has_edges=True,
    keeps_sign=True,
)
_kind("while.test", cost_class=CONTROL, line="test {0}")
_kind("while.next", cost_class=CONTROL, line="next {own} = {0}", keeps_sign=True)
_kind("while.result", cost_class=CONTROL, line="carried({own})", keeps_sign=True)
_kind("case.index", cost_class=CONTROL, line="switch {0}", construct="conditional")
_kind("case.yield", cost_class=CONTROL, line="yield {0}", keeps_sign=True)
_kind(
    "case.result",
    cost_class=CONTROL,
    line="one_of({yielded})",
    construct="conditional",
    has_edges=True,
    keeps_sign=True,
)

# -- split over devices by hand: one op of the program, and what only its body may hold ------------

_kind("shard_map", cost_class=OPAQUE)
_kinds("partition_id replica_id", per_device=True)
for _name in "all_gather all_reduce all_to_all collective_permute reduce_scatter".split():
    _kind(_name, cost_class=OPAQUE, per_device=True, collective=_name)
# No machine has a price of its own for it; each device receives as much as in a permute.
_kind("collective_broadcast", cost_class=OPAQUE, per_device=True, collective="collective_permute")
_kinds("collective_reduce cross-replica-sum", cost_class=OPAQUE, per_device=True)

# -- kinds without an entry ------------------------------------------------------------------------

_STABLEHLO = OpKind()
_BROADCASTING = OpKind(cost_class=OTHER, rule=own_rules.broadcasting)
_CHLO = OpKind(cost_class=OTHER)
_FOREIGN = OpKind(cost_class=OPAQUE)


def op_kind(name: str) -> OpKind:
    """The entry of a kind, or a default: StableHLO is elementwise, foreign kinds are opaque."""
    if name in OP_KINDS:
        return OP_KINDS[name]
    if name.startswith("chlo.broadcast_"):
        return _BROADCASTING
    if name.startswith("chlo."):
        return _CHLO
    return _FOREIGN if "." in name else _STABLEHLO


def kinds_where(field: str) -> frozenset[str]:
    """Names of all kinds with an entry for which ``field`` is true."""
    return frozenset(name for name, kind in OP_KINDS.items() if getattr(kind, field))


def ops_where(kinds: Iterable[str], field: str) -> np.ndarray:
    """[O] bool: is ``field`` true for each of ``kinds``?"""
    holds = functools.cache(lambda name: bool(getattr(op_kind(name), field)))
    return np.asarray([holds(name) for name in kinds], dtype=bool)


def is_control(kind: str) -> bool:
    """Is ``kind`` a pseudo-op of a loop or conditional (see ``walk``)?"""
    return op_kind(kind).cost_class == CONTROL


def is_constant(kind: str) -> bool:
    """Is ``kind`` made without operands, so that every use can have its own copy?"""
    return op_kind(kind).cost_class == CONSTANT


def is_elementwise(kind: str) -> bool:
    """Does Shardy treat ops of this kind as elementwise, or what XLA expands them to?"""
    known = OP_KINDS.get(kind)
    if known is None or known.token or known.per_device or kind == "map":
        return False  # elementwise for their cost alone
    return known.cost_class == ELEMENTWISE
