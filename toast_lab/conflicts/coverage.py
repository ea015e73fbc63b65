"""The coverage report: which parts of a program no action can split, why, and how large they are.

What "blocks" means.  An op is *held whole* if it has something to split (a dim above 1, or
FLOPs) and yet none of its names is shardable, so that every device computes all of it on whole
operands, whatever the plan.  It blocks

* **FLOPs**: its own FLOPs, times its trips;
* **bytes**: its operands and results, which a device has to hold whole while the op runs.  They may
  be kept sharded before and after it, at the price of a gather and a slice.

A value is *kept whole* if no action can shard any of its dims: not only around one op, but for as
long as it lives.  These are the bytes that no mesh brings down.

Ops that can be split along some dims only (a sort keeps the sorted dim whole, the minor factor of a
merged dim stays with the major one) block none of these.  They have rows nevertheless, which name
the colours for which an action stops at them; their bytes are those of the values that the colour
does not split at these ops.  So have counts that are assumed: the FLOPs of a loop whose trips are
unknown.  Rows of ops and values held whole come
first, each kind by the share that it blocks, and only they enter the totals; values shared by
several rows enter the totals once.

Values made of constants alone are left out: a device makes the part that it needs.

Reference: TOAST section 3.1 (an op has as many ways to be split as names).  Start reading at
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
from toast_lab.text import as_html, bytes_text, few, line_text, share_text, table


class UnsplitReason(enum.Enum):
    """Why something is not split; the value is a sentence for people."""

    NO_RULE = "no sharding rule is known for this op, so all its dims stay whole"
    ALL_WHOLE = "by its rule every dim of this op must stay whole or is permuted"
    KEPT_WHOLE = (
        "no dim of this value has a colour with anything to split, so it is kept whole all along"
    )
    MINOR_FACTOR = (
        "the inner part of a merged dim stays whole: cutting it would need a strided layout"
    )
    SOME_WHOLE = "this dim of the op must stay whole, its other dims can be split"
    STACKED = "a loop takes or gives one slice of this dim in each round, so it holds the dim whole"
    UNKNOWN_TRIPS = "how often this loop runs is not known before it runs: its body is counted once"
    UNKNOWN_BRANCH = (
        "which branch runs is not known before it runs: all are counted as taken equally often"
    )


WHOLE = (UnsplitReason.NO_RULE, UnsplitReason.ALL_WHOLE, UnsplitReason.KEPT_WHOLE)


class CoverageRow(NamedTuple):
    """Ops (or the values they define) of one kind with one reason."""

    reason: UnsplitReason
    kind: str  #: op kind
    why: str  #: the reason as this op has it
    ops: tuple[int, ...]  #: the ops, in program order
    lines: tuple[tuple[str, int], ...]  #: (source line, number of these ops on it), most ops first
    #: colour groups that stop here, most ops first; empty if everything does
    colours: tuple[str, ...]
    flops: float
    bytes: float
    flops_share: float | None  #: of all FLOPs, None if the program has none that are counted
    bytes_share: float  #: of the bytes of all values

    @property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @property
    def whole(self) -> bool:
        """Are these held whole, rather than not split along some dims or counted by assumption?"""
        return self.reason in WHOLE


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The parts of a program that no action can split.

    FLOPs are those of dot products and convolutions, times trips.
    """

    rows: tuple[CoverageRow, ...]
    n_ops: int  #: ops with something to split
    n_whole_ops: int  #: of these, the ops held whole
    flops: float
    whole_flops: float  #: FLOPs of ops held whole
    bytes: float  #: bytes of all values, constants apart
    whole_bytes: float  #: bytes of values that ops held whole use or define, each value once
    kept_bytes: float  #: bytes of values that are kept whole all along
    flops_share: float | None  #: share of the FLOPs that can be split, None without FLOPs

    @property
    def complete(self) -> bool:
        """Can every op be split, every value be kept sharded, and is every count known?"""
        return all(
            row.reason
            in (UnsplitReason.MINOR_FACTOR, UnsplitReason.SOME_WHOLE, UnsplitReason.STACKED)
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
        """One sentence."""
        if not self.n_whole_ops and not self.kept_bytes:
            partly = sum(row.op_count for row in self.rows)
            some = f" ({partly:,} not along every dim)" if partly else ""
            sentence = f"every op can be split{some} and every value can be kept sharded"
        else:
            sentence = f"{self.n_whole_ops:,} of {self.n_ops:,} ops cannot be split"
            if self.flops_share is not None:
                sentence += f", with {share_text(1 - self.flops_share)} of the FLOPs"
            share = share_text(self.whole_bytes / self.bytes if self.bytes else 0.0)
            sentence += f"; {share} of the bytes must be whole around them"
            if self.kept_bytes:
                sentence += f", {bytes_text(self.kept_bytes)} are kept whole all along"
        unknown = (UnsplitReason.UNKNOWN_TRIPS, UnsplitReason.UNKNOWN_BRANCH)
        assumed = any(row.reason in unknown for row in self.rows)
        return sentence + ("; some counts are assumed" if assumed else "")

    def __repr__(self) -> str:
        return f"<Coverage: {self.headline()}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        """A table of the ops and values held whole, then one of the dims where an action stops."""
        paragraphs = [f"Coverage: {self.headline()}."]
        for title, rows in (
            ("held whole", self.whole_rows),
            ("split along some dims only", self.other_rows),
        ):
            if rows:
                columns = (title, ">ops", ">FLOPs", ">bytes", "colours", "source", "why")
                paragraphs.append(table(columns, map(row_cells, rows)))
        return "\n\n".join(paragraphs)


def row_cells(row: CoverageRow) -> tuple[object, ...]:
    """Op, count, FLOPs, bytes, colours, source and reason of a row, as a table shows them."""
    return (
        row.kind,
        row.op_count,
        share_text(row.flops_share),
        share_text(row.bytes_share),
        few(row.colours) or "all",
        few((line_text(line) for line, _ in row.lines), 2),
        row.why,
    )


def value_bytes(program: Program) -> np.ndarray:
    """[V] float64, bytes of every whole value."""
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
    # What is made of constants alone is folded away.
    flops[program.value_op[program.value_is_constant]] = 0.0
    flops_total, bytes_total = float(flops.sum()), float(nbytes.sum())
    group_of = analysis.group[analysis.colour]
    live = np.asarray([group.shardable for group in analysis.groups], dtype=bool)
    missing = dict(program.missing_rules)

    real = np.arange(program.n_ops) >= program.n_arguments
    splits = np.zeros(program.n_ops, bool)
    splits[dims.op[names.shardable[dims.major]]] = True
    has_dims = np.zeros(program.n_ops, bool)
    has_dims[dims.op[dims.size > 1]] = True
    something = real & (has_dims | (flops > 0))
    whole = something & ~splits

    touched: dict[int, set[int]] = {int(op): set() for op in np.flatnonzero(whole)}
    rows_held = whole[dims.op]
    for op, value in zip(dims.op[rows_held].tolist(), dims.value[rows_held].tolist(), strict=True):
        touched[op].add(value)
    bags = _Bags(program)
    without_rule = {op for op in missing if not splits[op]}
    for op in sorted(touched.keys() | without_rule):
        reason = UnsplitReason.NO_RULE if op in missing else UnsplitReason.ALL_WHOLE
        whole_bag = bags.of(reason, op, missing.get(op, ""))
        whole_bag.flops += float(flops[op])
        whole_bag.values.update(touched.get(op, ()))

    can = np.zeros(program.n_values, bool)
    # By its definition or by a use, as an action would find it
    can[dims.value[live[group_of[dims.major]]]] = True
    large = np.zeros(program.n_values, bool)
    large[dims.value[dims.size > 1]] = True
    kept_whole = np.flatnonzero(large & ~can)
    for value in kept_whole.tolist():
        bags.of(UnsplitReason.KEPT_WHOLE, int(program.value_op[value])).values.add(value)

    _stopped(analysis, dims, bags, splits=splits & real, live=live, group_of=group_of)
    _assumed(program, flops, bags)

    held = np.zeros(program.n_values, bool)
    held[[value for values in touched.values() for value in values]] = True
    blocked = float(flops[whole].sum())
    return Coverage(
        rows=bags.rows(analysis, nbytes, flops_total, bytes_total),
        n_ops=int(something.sum()),
        n_whole_ops=int(whole.sum()),
        flops=flops_total,
        whole_flops=blocked,
        bytes=bytes_total,
        whole_bytes=float(nbytes[held].sum()),
        kept_bytes=float(nbytes[kept_whole].sum()),
        flops_share=1 - blocked / flops_total if flops_total else None,
    )


class _Bag:
    """A row under construction."""

    def __init__(self) -> None:
        self.ops: dict[int, None] = {}
        self.values: set[int] = set()
        self.groups: Counter[int] = Counter()
        self.flops = 0.0


class _Bags:
    """The rows of a report under construction, by reason, kind of op and why."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._bags: dict[tuple[UnsplitReason, str, str], _Bag] = {}

    def of(self, reason: UnsplitReason, op: int, why: str = "") -> _Bag:
        """The row in which an op belongs for this reason; it is in it from now on."""
        kind = op_kind(self._program.kind[op]).construct or self._program.kind[op]
        bag = self._bags.setdefault((reason, kind, why or reason.value), _Bag())
        bag.ops[op] = None
        return bag

    def rows(
        self, analysis: Analysis, nbytes: np.ndarray, flops_total: float, bytes_total: float
    ) -> tuple[CoverageRow, ...]:
        """What is whole first, and of that the most work.

        Args:
            analysis: of the program.
            nbytes: [V] bytes of each value.
            flops_total: of the program.
            bytes_total: of its values.
        """
        rows = []
        for (reason, kind, why), bag in self._bags.items():
            size = float(nbytes[list(bag.values)].sum())
            row = CoverageRow(
                reason=reason,
                kind=kind,
                why=why,
                ops=tuple(bag.ops),
                lines=tuple(Counter(map(self._program.where, bag.ops)).most_common()),
                colours=tuple(analysis.group_name[group] for group, _ in bag.groups.most_common()),
                flops=bag.flops,
                bytes=size,
                flops_share=bag.flops / flops_total if flops_total else None,
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
    bags: _Bags,
    *,
    splits: np.ndarray,
    live: np.ndarray,
    group_of: np.ndarray,
) -> None:
    """Dims of ops that can be split along others: an action on their colour stops at these ops."""
    program = analysis.program
    role = program.factor_class
    stuck = (
        np.isin(role, (NEED_REPLICATION, PERMUTATION)) & (program.factor_size > 1) & live[group_of]
    )
    minor = np.zeros(program.n_factors, bool)
    merged = [i for i, factors in enumerate(dims.factors) if len(factors) > 1]
    minor[[factor for i in merged for factor in dims.factors[i][1:]]] = True

    def stop(row: int, name: int, op: int, reason: UnsplitReason, why: str = "") -> None:
        stopped = bags.of(reason, op, why)
        stopped.groups[int(group_of[name])] += 1
        stopped.values.add(int(dims.value[row]))

    for row in np.flatnonzero(splits[dims.op] & stuck[dims.major]).tolist():
        name, op = int(dims.major[row]), int(program.owner[dims.op[row]])
        if program.kind[op] == "while.enter":
            stop(row, name, op, UnsplitReason.STACKED)
        elif minor[name]:
            stop(row, name, op, UnsplitReason.MINOR_FACTOR)
        else:
            why = f"{UnsplitReason.SOME_WHOLE.value} ({FACTOR_CLASSES[role[name]]} factor)"
            stop(row, name, op, UnsplitReason.SOME_WHOLE, why=why)
    for row in merged:
        for name in dims.factors[row][1:]:
            if splits[dims.op[row]] and stuck[name]:
                stop(row, name, int(dims.op[row]), UnsplitReason.MINOR_FACTOR)


def _assumed(program: Program, flops: np.ndarray, bags: _Bags) -> None:
    """Loops whose number of rounds is unknown, and conditionals whose branch is."""
    seen: set[int] = set()
    for region in program.regions:
        if region.known or region.kind not in ("body", "branch"):
            continue
        if region.kind == "body":
            unknown = bags.of(UnsplitReason.UNKNOWN_TRIPS, program.regions[region.parent].begin)
        else:  # all branches of one conditional stand behind its index
            index = region.begin - 1
            while program.kind[index] != "case.index" or program.region[index] != region.parent:
                index -= 1
            unknown = bags.of(UnsplitReason.UNKNOWN_BRANCH, index)
        inside = [op for op in range(region.begin, region.end) if op not in seen]
        seen.update(inside)  # a loop within a loop is counted with the outer one, which comes first
        unknown.flops += float(flops[inside].sum())
