"""The coverage report: which parts of a program no action can split.

It says why, and how much of the program that is.

What "blocks" means here.  An op is *held whole* if it has something to split (a dim above 1, or
FLOPs) and yet none of its names is shardable, so that every device computes all of it on whole
operands, whatever the plan.  It blocks

* **FLOPs**: its own FLOPs, times its trips;
* **bytes**: its operands and results, which a device has to hold whole while the op runs.  They may
  be kept sharded before and after it, at the price of a gather and a slice.

A value is *kept whole* if no action can shard any of its dims: not only around one op, but for as
long as it lives.  These are the bytes that no mesh brings down.

Ops that can be split, only not along every one of their dims (a sort keeps the sorted dim whole,
the minor factor of a merged dim stays with the major one), block nothing of the above.  They have
rows nevertheless, which say for which colours an action stops there, and their bytes are those of
the values that the colour does not split at these ops.  The same holds for what is counted by
assumption: the FLOPs of a loop whose trips are unknown.  Rows of ops and values held whole come
first, each kind by the share that it blocks, and only they enter the totals; values shared by
several rows enter the totals once.

What is made of constants alone is left out: a device makes the part that it needs.

Reference: TOAST section 3.1 (an op has as many ways to be split as names).  Start reading at
``coverage``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from toast_lab import text
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import FACTOR_CLASSES, NEED_REPLICATION, PERMUTATION, Program


class Reason(enum.Enum):
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


WHOLE = (Reason.NO_RULE, Reason.ALL_WHOLE, Reason.KEPT_WHOLE)


class Row(NamedTuple):
    """Ops (or the values they define) of one kind with one reason."""

    reason: Reason
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
    """What of a program no action can split.

    FLOPs are those of dot products and convolutions, times trips.
    """

    rows: tuple[Row, ...]
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
            row.reason in (Reason.MINOR_FACTOR, Reason.SOME_WHOLE, Reason.STACKED)
            for row in self.rows
        )

    @property
    def whole_rows(self) -> tuple[Row, ...]:
        """Rows of ops and values held whole."""
        return tuple(row for row in self.rows if row.whole)

    @property
    def other_rows(self) -> tuple[Row, ...]:
        """Rows of dims at which an action stops, and of counts that are assumed."""
        return tuple(row for row in self.rows if not row.whole)

    def headline(self) -> str:
        """One sentence."""
        if not self.n_whole_ops and not self.kept_bytes:
            sentence = "every op can be split and every value can be kept sharded"
        else:
            sentence = f"{self.n_whole_ops:,} of {self.n_ops:,} ops cannot be split"
            if self.flops_share is not None:
                sentence += f", with {text.share_text(1 - self.flops_share)} of the FLOPs"
            share = text.share_text(self.whole_bytes / self.bytes if self.bytes else 0.0)
            sentence += f"; {share} of the bytes must be whole around them"
            if self.kept_bytes:
                sentence += f", {text.bytes_text(self.kept_bytes)} are kept whole all along"
        assumed = sum(
            1 for row in self.rows if row.reason in (Reason.UNKNOWN_TRIPS, Reason.UNKNOWN_BRANCH)
        )
        return sentence + ("; some counts are assumed" if assumed else "")

    def __repr__(self) -> str:
        return f"<Coverage: {self.headline()}>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        """A table of what is held whole, then one of where an action stops."""
        parts = [f"Coverage: {self.headline()}."]
        for title, rows in (
            ("held whole", self.whole_rows),
            ("split along some dims only", self.other_rows),
        ):
            if rows:
                columns = (title, ">ops", ">FLOPs", ">bytes", "colours", "source", "why")
                parts.append(text.table(columns, [_cells(row) for row in rows]))
        return "\n\n".join(parts)


def _cells(row: Row) -> tuple[object, ...]:
    return (
        row.kind,
        row.op_count,
        text.share_text(row.flops_share),
        text.share_text(row.bytes_share),
        text.few(row.colours) or "all",
        text.few((text.line_text(line) for line, _ in row.lines), 2),
        row.why,
    )


def value_bytes(program: Program) -> np.ndarray:
    """[V] float64, bytes of every whole value."""
    start, rank = program.shape_ptr[:-1], np.diff(program.shape_ptr)
    size = program.itemsize.astype(np.float64)
    for dim in range(int(rank.max(initial=0))):
        has = rank > dim
        size[has] *= program.shape[start[has] + dim]
    return size


class _Dims(NamedTuple):
    """Every dim of every use and definition, constants left out; rows are dims."""

    op: np.ndarray
    value: np.ndarray
    size: np.ndarray
    factors: list[tuple[int, ...]]
    major: np.ndarray


def _all_dims(program: Program) -> _Dims:
    use_op = np.repeat(np.arange(program.n_ops), np.diff(program.use_ptr))
    rank_of_use, rank = np.diff(program.use_dim_ptr), np.diff(program.shape_ptr)
    use_value = np.repeat(program.use_value, rank_of_use)
    dim = np.arange(len(use_value)) - np.repeat(program.use_dim_ptr[:-1], rank_of_use)
    value = np.concatenate([np.repeat(np.arange(program.n_values), rank), use_value]).astype(
        np.int64
    )
    op = np.concatenate([np.repeat(program.value_op, rank), np.repeat(use_op, rank_of_use)])
    size = np.concatenate([program.shape, program.shape[program.shape_ptr[use_value] + dim]])
    keep = ~program.value_is_constant[value]
    factors = [
        factors
        for factors, is_kept in zip(
            (*program.def_dim_minor, *program.use_dim_factors), keep, strict=True
        )
        if is_kept
    ]
    major = np.concatenate([program.def_dim_factor, program.use_dim_factor])[keep]
    return _Dims(op[keep], value[keep], size[keep], factors, major)


def coverage(analysis: Analysis) -> Coverage:
    """Work out the report; the module says what the numbers mean."""
    program, names = analysis.program, analysis.names
    dims, nbytes = _all_dims(program), value_bytes(program)
    nbytes[program.value_is_constant] = 0
    flops = program.flops * program.trips
    flops_total, bytes_total = float(flops.sum()), float(nbytes.sum())
    group_of = analysis.group[analysis.colour] if names.n else np.zeros(0, np.int32)
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
    for op, value in zip(
        dims.op[whole[dims.op]].tolist(), dims.value[whole[dims.op]].tolist(), strict=True
    ):
        touched[op].add(value)
    row_of: dict[tuple[Reason, str, str], _Bag] = {}

    def bag(reason: Reason, op: int, why: str = "") -> _Bag:
        kind = op_kind(program.kind[op]).construct or program.kind[op]
        row = row_of.setdefault((reason, kind, why or reason.value), _Bag())
        row.ops[op] = None
        return row

    for op in sorted(set(touched) | {op for op in missing if not splits[op]}):
        row = bag(Reason.NO_RULE, op, missing[op]) if op in missing else bag(Reason.ALL_WHOLE, op)
        row.flops += float(flops[op])
        row.values.update(touched.get(op, ()))

    can = np.zeros(program.n_values, bool)
    # By its definition or by a use, as an action would find it
    can[dims.value[live[group_of[dims.major]]]] = True
    large = np.zeros(program.n_values, bool)
    large[dims.value[dims.size > 1]] = True
    kept = np.flatnonzero(large & ~can)
    for value in kept.tolist():
        bag(Reason.KEPT_WHOLE, int(program.value_op[value])).values.add(value)

    _stopped(analysis, dims, splits & real, live, group_of, bag)
    _assumed(program, flops, bag)

    held = np.zeros(program.n_values, bool)
    held[[v for values in touched.values() for v in values]] = True
    rows = [
        Row(
            reason,
            kind,
            why,
            tuple(row.ops),
            tuple(Counter(program.where(op) for op in row.ops).most_common()),
            tuple(analysis.group_name[group] for group, _ in row.groups.most_common()),
            row.flops,
            float(nbytes[list(row.values)].sum()),
            row.flops / flops_total if flops_total else None,
            float(nbytes[list(row.values)].sum()) / bytes_total if bytes_total else 0.0,
        )
        for (reason, kind, why), row in row_of.items()
    ]
    rows.sort(key=lambda row: (not row.whole, -(row.flops_share or 0.0), -row.bytes, -len(row.ops)))
    blocked = float(flops[whole].sum())
    return Coverage(
        rows=tuple(rows),
        n_ops=int(something.sum()),
        n_whole_ops=int(whole.sum()),
        flops=flops_total,
        whole_flops=blocked,
        bytes=bytes_total,
        whole_bytes=float(nbytes[held].sum()),
        kept_bytes=float(nbytes[kept].sum()),
        flops_share=1 - blocked / flops_total if flops_total else None,
    )


class _Bag:
    """A row that is being filled."""

    def __init__(self) -> None:
        self.ops: dict[int, None] = {}
        self.values: set[int] = set()
        self.groups: Counter[int] = Counter()
        self.flops = 0.0


def _stopped(
    analysis: Analysis,
    dims: _Dims,
    splits: np.ndarray,
    live: np.ndarray,
    group_of: np.ndarray,
    row_for: Any,
) -> None:
    """Dims of ops that can be split along others: an action on their colour stops at these ops."""
    program = analysis.program
    role = program.factor_class
    stuck = (
        np.isin(role, (NEED_REPLICATION, PERMUTATION)) & (program.factor_size > 1) & live[group_of]
    )
    minor = np.zeros(program.n_factors, bool)
    merged = [dim for dim, factors in enumerate(dims.factors) if len(factors) > 1]
    minor[[f for dim in merged for f in dims.factors[dim][1:]]] = True
    for dim in np.flatnonzero(splits[dims.op] & stuck[dims.major]).tolist():
        name, op = int(dims.major[dim]), int(program.owner[dims.op[dim]])
        if program.kind[op] == "while.enter":
            _add(row_for(Reason.STACKED, op), int(group_of[name]), int(dims.value[dim]))
            continue
        why = f"{Reason.SOME_WHOLE.value} ({FACTOR_CLASSES[role[name]]} factor)"
        row = (
            row_for(Reason.MINOR_FACTOR, op) if minor[name] else row_for(Reason.SOME_WHOLE, op, why)
        )
        _add(row, int(group_of[name]), int(dims.value[dim]))
    for dim in merged:
        for name in dims.factors[dim][1:]:
            if splits[dims.op[dim]] and stuck[name]:
                _add(
                    row_for(Reason.MINOR_FACTOR, int(dims.op[dim])),
                    int(group_of[name]),
                    int(dims.value[dim]),
                )


def _add(row: _Bag, group: int, value: int) -> None:
    row.groups[group] += 1
    row.values.add(value)


def _assumed(program: Program, flops: np.ndarray, row_for: Any) -> None:
    """Loops whose number of rounds, and conditionals whose branch, the input does not tell."""
    seen: set[int] = set()
    for region in program.regions:
        if region.known or region.kind not in ("body", "branch"):
            continue
        if region.kind == "body":
            row = row_for(Reason.UNKNOWN_TRIPS, program.regions[region.parent].begin)
        else:  # all branches of one conditional stand behind its index
            index = region.begin - 1
            while program.kind[index] != "case.index" or program.region[index] != region.parent:
                index -= 1
            row = row_for(Reason.UNKNOWN_BRANCH, index)
        inside = [op for op in range(region.begin, region.end) if op not in seen]
        seen.update(inside)  # a loop within a loop is counted with the outer one, which comes first
        row.flops += float(flops[inside].sum())
