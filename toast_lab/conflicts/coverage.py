"""The coverage report: which parts of a program no action can split, why, and how large they are.

What "blocks" means. An op is *held whole* if it has something to split (a dim above 1, or FLOPs)
and yet none of its names is shardable, so that every device computes all of it on whole operands,
whatever the plan. It blocks

* **FLOPs**: its own FLOPs, times its trips;
* **bytes**: its operands and results, which a device has to hold whole while the op runs. They may
  be kept sharded before and after it, at the price of a gather and a slice.

A value is *kept whole* if no action can shard any of its dims: it is whole for as long as it lives,
not only around one op. No mesh reduces these bytes.

Ops that can be split along some dims only (a sort keeps the sorted dim whole, the minor factor of a
merged dim stays with the major one) block neither. They still have rows, which name the colours
whose actions stop at these ops; the bytes of such a row are those of the values that the colours do
not split there. Assumed counts have rows too, such as the FLOPs of a loop whose trips are unknown.
Rows of ops and values held whole come first, then the others, each by the share that they block.
Only the former enter the totals, where a value that several rows share counts once.

An op that its user has split by hand, a ``shard_map``, is not held whole. It has a row if it leaves
axes of its mesh to the compiler, over which every plan keeps it whole.

Values made of constants alone are left out: each device computes the part that it needs.

Reference: TOAST section 3.1 (an op has as many ways to be split as names). Start reading at
``coverage``.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import FACTOR_CLASSES, NEED_REPLICATION, PERMUTATION, Program
from toast_lab.nda.names import use_dims
from toast_lab.text import (
    Table,
    as_html,
    bytes_text,
    first_items_text,
    line_text,
    share_text,
)


class UnsplitReason(enum.Enum):
    """Why an op, a value or a dim is not split; each value is a sentence for users."""

    NO_RULE = "no sharding rule is known for this op, so all its dims stay whole"
    ALL_WHOLE = "the rule of this op keeps every dim whole or permutes it"
    KEPT_WHOLE = (
        "no dim of this value has a colour with anything to split, so the value stays whole"
    )
    MINOR_FACTOR = (
        "the inner part of a merged dim stays whole: cutting it would need a strided layout"
    )
    SOME_WHOLE = "this dim of the op must stay whole, but its other dims can be split"
    STACKED = (
        "a loop reads or writes one slice of this dim in each round, so the dim must stay whole"
    )
    FREE_AXES = "a shard_map is kept as it is written, and whole over the axes that it leaves free"
    UNKNOWN_TRIPS = (
        "the number of rounds of this loop is not known in advance: its body is counted once"
    )
    UNKNOWN_BRANCH = "which branch runs is not known in advance: all are counted as equally likely"
    WITHOUT_COST = "nobody says how many FLOPs this kernel has: it is priced by its bytes"


WHOLE_REASONS = (UnsplitReason.NO_RULE, UnsplitReason.ALL_WHOLE, UnsplitReason.KEPT_WHOLE)


class CoverageRow(NamedTuple):
    """Ops (or the values they define) of one kind with one reason."""

    reason: UnsplitReason
    kind: str  #: op kind
    why: str  #: the reason in words, with the details of this op
    ops: tuple[int, ...]  #: the ops, in program order
    lines: tuple[tuple[str, int], ...]  #: (source line, number of these ops on it), most ops first
    #: colour groups whose actions stop at these ops, most ops first; empty if all of them stop
    colours: tuple[str, ...]
    flops: float
    bytes: float
    flops_share: float | None  #: share of all FLOPs, None if the program has none that are counted
    bytes_share: float  #: share of the bytes of all values

    @property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @property
    def whole(self) -> bool:
        """Are these held whole, rather than split along some dims only or counted by assumption?"""
        return self.reason in WHOLE_REASONS


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The parts of a program that no action can split.

    FLOPs are those of dot products and convolutions, times trips.
    """

    rows: tuple[CoverageRow, ...]
    n_ops: int  #: ops with something to split
    n_whole_ops: int  #: those of them that are held whole
    flops: float
    whole_flops: float  #: FLOPs of ops held whole
    bytes: float  #: bytes of all values, constants apart
    whole_bytes: float  #: bytes of values that ops held whole use or define, each value once
    kept_bytes: float  #: bytes of values that are kept whole for as long as they live
    flops_share: float | None  #: share of the FLOPs that can be split, None without FLOPs

    @property
    def complete(self) -> bool:
        """Can every op be split, every value be kept sharded, and is every count known?"""
        return all(
            row.reason
            in (
                UnsplitReason.MINOR_FACTOR,
                UnsplitReason.SOME_WHOLE,
                UnsplitReason.STACKED,
                UnsplitReason.FREE_AXES,
            )
            for row in self.rows
        )

    @property
    def whole_rows(self) -> tuple[CoverageRow, ...]:
        """Rows of ops and values held whole."""
        return tuple(row for row in self.rows if row.whole)

    @property
    def other_rows(self) -> tuple[CoverageRow, ...]:
        """Rows of dims at which an action stops, and of counts that are assumed."""
        return tuple(row for row in self.rows if not row.whole)

    def headline(self) -> str:
        """The report in one sentence."""
        if not self.n_whole_ops and not self.kept_bytes:
            partly = sum(row.op_count for row in self.rows)
            some = f" ({partly:,} not along every dim)" if partly else ""
            sentence = f"every op can be split{some} and every value can be kept sharded"
        else:
            sentence = f"{self.n_whole_ops:,} of {self.n_ops:,} ops cannot be split"
            if self.flops_share is not None:
                sentence += f", with {share_text(1 - self.flops_share)} of the FLOPs"
            share = share_text(self.whole_bytes / self.bytes if self.bytes else 0.0)
            sentence += f"; they need {share} of the bytes whole"
            if self.kept_bytes:
                sentence += f", {bytes_text(self.kept_bytes)} always stay whole"
        unknown = (
            UnsplitReason.UNKNOWN_TRIPS,
            UnsplitReason.UNKNOWN_BRANCH,
            UnsplitReason.WITHOUT_COST,
        )
        assumed = any(row.reason in unknown for row in self.rows)
        return sentence + ("; some counts are assumed" if assumed else "")

    def __repr__(self) -> str:
        return f"<Coverage: {self.headline()}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        """A table of the ops and values held whole, then one of the dims where an action stops."""
        return "\n\n".join([f"Coverage: {self.headline()}.", *map(str, self.tables())])

    def tables(self, *, with_dims: bool = True) -> list[Table]:
        """A table of the ops and values held whole, and one of the others, if there are any.

        ``with_dims`` says whether the latter has the dims at which an action stops.
        """
        others = tuple(row for row in self.other_rows if with_dims or not row.colours)
        columns = ("op", ">count", ">FLOPs", ">bytes", "~stops", "~source", "~why")
        return [
            Table(title, columns, list(map(row_cells, rows)))
            for title, rows in (
                ("Held whole", self.whole_rows),
                ("Split along some dims only, or counted under an assumption", others),
            )
            if rows
        ]


def row_cells(row: CoverageRow) -> tuple[object, ...]:
    """Op, count, FLOPs, bytes, colours, source and reason of a row, as a table shows them."""
    return (
        row.kind,
        row.op_count,
        share_text(row.flops_share),
        share_text(row.bytes_share),
        first_items_text(row.colours) or "all",
        first_items_text((line_text(line) for line, _ in row.lines), 2),
        row.why,
    )


def value_bytes(program: Program) -> np.ndarray:
    """[V] float64, bytes of each unsharded value."""
    size = program.itemsize.astype(np.float64)
    np.multiply.at(size, program.dim_value, program.shape)
    return size


class _Dims(NamedTuple):
    """Every dim of every use and definition, constants left out; rows are dims."""

    op: np.ndarray
    value: np.ndarray
    size: np.ndarray
    factors: list[tuple[int, ...]]
    major: np.ndarray


def _all_dims(program: Program) -> _Dims:
    use_value, def_row, _ = use_dims(program)
    value = np.concatenate([program.dim_value, use_value])
    op_of_use = np.repeat(program.use_op, np.diff(program.use_dim_ptr))
    op = np.concatenate([program.value_op[program.dim_value], op_of_use])
    size = np.concatenate([program.shape, program.shape[def_row]])
    varying = ~program.value_is_constant[value]
    factors = itertools.compress((*program.def_dim_minor, *program.use_dim_factors), varying)
    major = np.concatenate([program.def_dim_factor, program.use_dim_factor])[varying]
    return _Dims(op[varying], value[varying], size[varying], factors=list(factors), major=major)


def coverage(analysis: Analysis) -> Coverage:
    """The coverage report of a program; the module docstring defines its numbers.

    Examples:
        >>> import toast_lab as tl
        >>> print(tl.coverage(tl.analyse(tl.load("attention"))))
        Coverage: every op can be split and every value can be kept sharded.
    """
    program, names = analysis.program, analysis.names
    dims, nbytes = _all_dims(program), value_bytes(program)
    nbytes[program.value_is_constant] = 0
    flops = program.flops * program.trips
    # Ops on constants alone are folded away.
    flops[program.value_op[program.value_is_constant]] = 0.0
    flops_total, bytes_total = float(flops.sum()), float(nbytes.sum())
    group_of = analysis.group[analysis.colour]
    group_is_shardable = np.asarray([group.shardable for group in analysis.groups], dtype=bool)
    missing = dict(program.missing_rules)

    is_op = np.arange(program.n_ops) >= program.n_arguments
    can_split = np.zeros(program.n_ops, bool)
    can_split[dims.op[names.shardable[dims.major]]] = True
    by_hand = np.zeros(program.n_ops, bool)
    by_hand[[shard_map.op for shard_map in program.shard_maps]] = True
    has_dims = np.zeros(program.n_ops, bool)
    has_dims[dims.op[dims.size > 1]] = True
    has_work = is_op & (has_dims | (flops > 0))
    whole = has_work & ~can_split & ~by_hand

    values_of_whole_op: dict[int, set[int]] = {int(op): set() for op in np.flatnonzero(whole)}
    at_whole_op = whole[dims.op]
    for op, value in zip(
        dims.op[at_whole_op].tolist(), dims.value[at_whole_op].tolist(), strict=True
    ):
        values_of_whole_op[op].add(value)
    drafts = _RowDrafts(program)
    without_rule = {op for op in missing if not can_split[op]}
    for op in sorted(values_of_whole_op.keys() | without_rule):
        reason = UnsplitReason.NO_RULE if op in missing else UnsplitReason.ALL_WHOLE
        whole_draft = drafts.of(reason, op, missing.get(op, ""))
        whole_draft.flops += float(flops[op])
        whole_draft.values.update(values_of_whole_op.get(op, ()))

    can_shard = np.zeros(program.n_values, bool)
    # An action finds the dims of a value on its definition or on a use.
    can_shard[dims.value[group_is_shardable[group_of[dims.major]]]] = True
    can_shard[_cut_by_hand(program)] = True
    large = np.zeros(program.n_values, bool)
    large[dims.value[dims.size > 1]] = True
    kept_whole = np.flatnonzero(large & ~can_shard)
    for value in kept_whole.tolist():
        drafts.of(UnsplitReason.KEPT_WHOLE, int(program.value_op[value])).values.add(value)

    _stopped(
        analysis,
        dims,
        drafts,
        can_split=can_split & is_op,
        group_is_shardable=group_is_shardable,
        group_of=group_of,
    )
    for shard_map in program.shard_maps:
        if free := [
            axis for axis, size in shard_map.mesh if size > 1 and axis in shard_map.free_axes
        ]:
            why = f"{UnsplitReason.FREE_AXES.value} ({', '.join(free)})"
            drafts.of(UnsplitReason.FREE_AXES, shard_map.op, why).values.update(
                program.results(shard_map.op)
            )
    _assumed(program, flops, drafts)
    for op, line in program.without_cost:
        why = f"{UnsplitReason.WITHOUT_COST.value}. {line} gives it some"
        drafts.of(UnsplitReason.WITHOUT_COST, op, why).values.update(program.results(op))

    held_whole = np.zeros(program.n_values, bool)
    held_whole[[value for values in values_of_whole_op.values() for value in values]] = True
    whole_flops = float(flops[whole].sum())
    return Coverage(
        rows=drafts.rows(analysis, nbytes, flops_total, bytes_total),
        n_ops=int(has_work.sum()),
        n_whole_ops=int(whole.sum()),
        flops=flops_total,
        whole_flops=whole_flops,
        bytes=bytes_total,
        whole_bytes=float(nbytes[held_whole].sum()),
        kept_bytes=float(nbytes[kept_whole].sum()),
        flops_share=1 - whole_flops / flops_total if flops_total else None,
    )


def _cut_by_hand(program: Program) -> list[int]:
    """Values that some ``shard_map`` takes or leaves in parts."""
    return [
        value
        for shard_map in program.shard_maps
        for values, specs in (
            (program.operands(shard_map.op), shard_map.operand_specs),
            (program.results(shard_map.op), shard_map.result_specs),
        )
        for value, spec in zip(values, specs, strict=True)
        if any(spec)
    ]


class _RowDraft:
    """A row under construction."""

    def __init__(self) -> None:
        self.ops: dict[int, None] = {}
        self.values: set[int] = set()
        self.groups: Counter[int] = Counter()
        self.flops = 0.0


class _RowDrafts:
    """The rows of a report under construction, by reason, kind of op and explanation."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._drafts: dict[tuple[UnsplitReason, str, str], _RowDraft] = {}

    def of(self, reason: UnsplitReason, op: int, why: str = "") -> _RowDraft:
        """Add an op to the row for its kind and this reason, and give that row."""
        kind = op_kind(self._program.kind[op]).construct or self._program.kind[op]
        draft = self._drafts.setdefault((reason, kind, why or reason.value), _RowDraft())
        draft.ops[op] = None
        return draft

    def rows(
        self, analysis: Analysis, nbytes: np.ndarray, flops_total: float, bytes_total: float
    ) -> tuple[CoverageRow, ...]:
        """The finished rows: those held whole, then the others, each by the work that they block.

        Args:
            analysis: the program's analysis.
            nbytes: [V] bytes of each value.
            flops_total: FLOPs of the program.
            bytes_total: bytes of its values.
        """
        rows = []
        for (reason, kind, why), draft in self._drafts.items():
            size = float(nbytes[list(draft.values)].sum())
            row = CoverageRow(
                reason=reason,
                kind=kind,
                why=why,
                ops=tuple(draft.ops),
                lines=tuple(Counter(map(self._program.where, draft.ops)).most_common()),
                colours=tuple(
                    analysis.group_name[group] for group, _ in draft.groups.most_common()
                ),
                flops=draft.flops,
                bytes=size,
                flops_share=draft.flops / flops_total if flops_total else None,
                bytes_share=size / bytes_total if bytes_total else 0.0,
            )
            rows.append(row)
        rows.sort(
            key=lambda row: (not row.whole, -(row.flops_share or 0.0), -row.bytes, -len(row.ops))
        )
        return tuple(rows)


def _stopped(
    analysis: Analysis,
    dims: _Dims,
    drafts: _RowDrafts,
    *,
    can_split: np.ndarray,
    group_is_shardable: np.ndarray,
    group_of: np.ndarray,
) -> None:
    """Add rows for dims that stay whole while their op can be split along other dims.

    An action on the colour of such a dim stops at the op.
    """
    program = analysis.program
    factor_class = program.factor_class
    stays_whole = (
        np.isin(factor_class, (NEED_REPLICATION, PERMUTATION))
        & (program.factor_size > 1)
        & group_is_shardable[group_of]
    )
    is_minor = np.zeros(program.n_factors, bool)
    merged = [i for i, factors in enumerate(dims.factors) if len(factors) > 1]
    is_minor[[factor for i in merged for factor in dims.factors[i][1:]]] = True

    def stop(row: int, name: int, op: int, reason: UnsplitReason, why: str = "") -> None:
        draft = drafts.of(reason, op, why)
        draft.groups[int(group_of[name])] += 1
        draft.values.add(int(dims.value[row]))

    for row in np.flatnonzero(can_split[dims.op] & stays_whole[dims.major]).tolist():
        name, op = int(dims.major[row]), int(program.owner[dims.op[row]])
        if program.kind[op] == "while.enter":
            stop(row, name, op, UnsplitReason.STACKED)
        elif is_minor[name]:
            stop(row, name, op, UnsplitReason.MINOR_FACTOR)
        else:
            why = f"{UnsplitReason.SOME_WHOLE.value} ({FACTOR_CLASSES[factor_class[name]]} factor)"
            stop(row, name, op, UnsplitReason.SOME_WHOLE, why=why)
    for row in merged:
        for name in dims.factors[row][1:]:
            if can_split[dims.op[row]] and stays_whole[name]:
                stop(row, name, int(dims.op[row]), UnsplitReason.MINOR_FACTOR)


def _assumed(program: Program, flops: np.ndarray, drafts: _RowDrafts) -> None:
    """Add rows for loops with an unknown number of rounds, and conditionals of unknown branch."""
    counted: set[int] = set()
    for region in program.regions:
        if region.known or region.kind not in ("body", "branch"):
            continue
        if region.kind == "body":
            reason, loop = UnsplitReason.UNKNOWN_TRIPS, program.regions[region.parent].begin
            times = "once" if region.times == 1 else f"{region.times:g} times"
            draft = drafts.of(reason, loop, why=reason.value.replace("once", times))
        else:  # all branches of a conditional follow the op that gives its index
            index = region.begin - 1
            while program.kind[index] != "case.index" or program.region[index] != region.parent:
                index -= 1
            draft = drafts.of(UnsplitReason.UNKNOWN_BRANCH, index)
        inside = [op for op in range(region.begin, region.end) if op not in counted]
        # A loop within a loop is counted with the outer one, which comes first.
        counted.update(inside)
        draft.flops += float(flops[inside].sum())
