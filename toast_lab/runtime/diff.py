"""Collectives that a plan is priced with beside those that a compiler made of it, by source op.

Both are written in the same words first: a merged collective is taken apart into its arrays,
``times`` says how often one step runs each, and ``op`` is the op of ours that it serves.  Then
pairs are looked for, the surest ones first: the same op, kind and axes; the same op and another way
to do it; another op, with everything else equal.  What is left over is missing (priced, not
compiled) or extra (compiled, not priced).

A reason is given only where a check on the two sides holds, and is the likely one, not a proof;
what no check explains has the reason ``""``.  Start reading at ``diff_compiled``.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toast_lab import text
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.ir import program as p
from toast_lab.ir.program import Program
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.runtime.run import Run

EQUAL, CHANGED, MISSING, EXTRA = "equal", "changed", "missing", "extra"
STATUSES = (EQUAL, CHANGED, MISSING, EXTRA)
SHOWN = 60  #: different rows that ``str()`` writes

NARROWER = "sent in another element type: the cast was moved before the collective"
OTHER_TIMES = "run another number of times: moved out of a loop, or into one"
SUM_AND_SLICE = "an all_reduce and a local slice instead of a reduce_scatter"
SCATTERED = "scattered, since no device needs the whole sum"
WINDOWED = (
    "passed around in pieces beside the matrix product that needs or makes it (collective matmul)"
)
OTHER_AXES = "over other axes: several steps of ours in one, or one in several"
OTHER_ROUTE = "another route between the same shardings"
OTHER_SIZE = (
    "on a value of another size: before or after a slice, a pad or a reduction, or at another "
    "precision"
)
OTHER_OP = (
    "carried by another op: moved past elementwise ops, or named after its neighbour in a fusion"
)
SHARED = "the compiler has one for several: equal ones were merged"
REASSOCIATED = "summed on each device first, so that one collective serves several sums"
REMATERIALISED = "the partitioner found no efficient reshard (involuntary full rematerialization)"
REPEATED = "the compiler makes the same one again where it would have to be kept long"
IDLE = (
    "cut along an axis that the plan leaves idle there, so that each device sums only a part of it"
)
REORDER = "devices exchange shards to get into the order that a merged collective wants"
UNEXPLAINED = ""
_SUMS = ("all_reduce", "reduce_scatter")
# Kinds between which a reshard may be swapped
_MOVES = ("all_to_all", "collective_permute", "all_gather")


class Side(NamedTuple):
    """One collective on one array, as priced or as compiled."""

    op: int  #: op of ours, -1 if unknown
    kind: str
    axes: tuple[str, ...] | None  #: None: no product of mesh axes
    bytes: float  #: the larger of what one device holds before and after
    times: float  #: how often one step runs it
    value: str = ""  #: of ours; empty on the compiled side
    dtype: str = ""  #: on the wire; empty on the priced side
    merged: bool = False  #: one of several arrays of one compiled collective

    @property
    def total_bytes(self) -> float:
        """Bytes in one step."""
        return self.bytes * self.times

    def __str__(self) -> str:
        axes = "?" if self.axes is None else ",".join(self.axes)
        times = f" x{self.times:g}" if self.times != 1 else ""
        return (
            f"{self.kind} {{{axes}}} "
            f"{bytes_text(self.bytes)}{times}{' ' + self.dtype if self.dtype else ''}"
        )


class DiffRow(NamedTuple):
    """One line of the comparison."""

    op: int
    op_kind: str  #: of our op, "dot_general"
    where: str  #: source line
    predicted: Side | None
    compiled: Side | None
    status: str  #: one of STATUSES
    reason: str  #: one of the sentences above, "" if none is known (or needed)

    def __str__(self) -> str:
        left, right = (str(side) if side else "-" for side in (self.predicted, self.compiled))
        return (
            f"%{self.op} {self.op_kind} ({self.where}): {left} | {right} | {self.status}: "
            f"{self.reason or 'unexplained'}"
        )


@dataclasses.dataclass(frozen=True)
class CompiledDiff:
    """Every collective of a plan, priced and compiled."""

    rows: tuple[DiffRow, ...]  #: in order of the ops
    #: says so where the price is of another machine than the program was compiled for
    machines: str = ""

    @property
    def different(self) -> list[DiffRow]:
        """Rows on which the two sides are not equal."""
        return [row for row in self.rows if row.status != EQUAL]

    @property
    def unexplained(self) -> list[DiffRow]:
        """Rows that differ for no known reason."""
        return [row for row in self.different if not row.reason]

    def bytes_by_kind(self) -> dict[str, tuple[float, float]]:
        """(priced, compiled) bytes of one step by kind."""
        totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        for row in self.rows:
            for i, side in enumerate((row.predicted, row.compiled)):
                if side is not None:
                    totals[side.kind][i] += side.total_bytes
        return {kind: (both[0], both[1]) for kind, both in sorted(totals.items())}

    def tidy(self) -> list[JsonObject]:
        """One flat dict a row, for tables and JSON; the same keys in each."""
        rows = []
        for row in self.rows:
            data: JsonObject = {"op": row.op, "what": row.op_kind, "where": row.where}
            for prefix, side in (("predicted", row.predicted), ("compiled", row.compiled)):
                for key in Side._fields[1:]:
                    value = getattr(side, key) if side is not None else None
                    data[f"{prefix}_{key}"] = ",".join(value) if isinstance(value, tuple) else value
            rows.append({**data, "status": row.status, "reason": row.reason})
        return rows

    def __repr__(self) -> str:
        return (
            f"<CompiledDiff of {len(self.rows)} collectives, {len(self.different)} of them "
            "different>"
        )

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        counts = collections.Counter(row.status for row in self.rows)
        lines = [f"{self.machines}: compare no times"] if self.machines else []
        lines.append(", ".join(f"{counts[status]} {status}" for status in STATUSES))
        for kind, (priced, compiled) in self.bytes_by_kind().items():
            sizes = f"priced {bytes_text(priced):>10}   compiled {bytes_text(compiled):>10}"
            lines.append(f"  {kind:<20} {sizes}")
        rows = [f"  {row}" for row in sorted(self.different, key=_weight, reverse=True)]
        return text.bounded([*lines, *rows], len(lines) + SHOWN, " rows: diff.different has all")


def diff_compiled(problem: Problem, plan: ShardingPlan, compiled: Compiled | Run) -> CompiledDiff:
    """Compare the collectives of ``plan``'s price with those of a compiled program.

    Args:
        problem: the problem that the plan belongs to.
        plan: the plan that was compiled.
        compiled: what ``compile`` or ``run`` gave, on any kind of device.

    Raises:
        InvalidPlan: it was compiled from another program or plan, or refused, which leaves nothing
            to compare.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> compiled = tl.compile(model, plan, topology="cpu:4", store=False)
        >>> print(tl.diff_compiled(problem, plan, compiled))
        compiled for cpu:4, priced on the machine tpu-v5e: compare no times
        1 equal, 0 changed, 0 missing, 0 extra
          all_reduce           priced      2 KiB   compiled      2 KiB
    """
    program = plan.program
    remats: Iterable[int] = ()
    machines = ""
    if isinstance(compiled, Compiled):
        if (compiled.program, compiled.plan_key) != (program.digest(), plan.key):
            raise InvalidPlan(
                f"compiled was plan {compiled.plan_key:016x} of program {compiled.program}, this "
                f"is plan {plan.key:016x} of {program.digest()}"
            )
        if compiled.refused:
            raise InvalidPlan(
                f"the compiler refused this plan, so there is nothing to compare: {compiled}"
            )
        remats = {remat.op for remat in compiled.rematerialised}
        machines = compiled.priced_elsewhere(problem.machine.name)
    difference = compare(
        program,
        plan.mesh,
        priced=predicted(problem, plan),
        compiled=sides(compiled.collectives),
        remats=remats,
    )
    return dataclasses.replace(difference, machines=machines)


def compare(
    program: Program,
    mesh: Mesh,
    priced: Sequence[Side],
    compiled: Sequence[Side],
    remats: Iterable[int] = (),
) -> CompiledDiff:
    """``diff_compiled`` on two lists.

    ``remats`` are ops that the partitioner rematerialised involuntarily.
    """
    matcher = _Matcher(program, mesh, left=priced, right=compiled, remats=set(remats))
    return CompiledDiff(tuple(matcher.rows()))


def predicted(problem: Problem, plan: ShardingPlan) -> list[Side]:
    """The collectives of a plan's price."""
    return [
        Side(
            op=row.op,
            kind="collective_permute" if row.kind == "permute" else row.kind,
            axes=row.axes,
            bytes=row.local_bytes,
            times=row.times,
            value=row.value,
        )
        for row in price(problem, plan).collectives
    ]


def sides(compiled: Iterable[Any]) -> list[Side]:
    """Compiled collectives (``hlo.Collective``), array by array, without those of one device."""
    return [
        Side(
            op=part.op,
            kind=collective.kind,
            axes=collective.axes,
            bytes=float(part.bytes),
            times=collective.times,
            dtype=part.dtype,
            merged=len(collective.parts) > 1,
        )
        for collective in compiled
        for part in collective.parts
        if collective.axes != ()
    ]


class _Matcher:
    """Pairs the two sides; ``left`` and ``right`` shrink while pairs are found."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        left: Sequence[Side],
        right: Sequence[Side],
        remats: set[int],
    ) -> None:
        self.program, self.mesh, self.remats = program, mesh, remats
        self.left, self.right = list(left), list(right)
        self.all_left = list(left)
        self.pairs: list[DiffRow] = []
        self.values = {name: value for value, name in enumerate(program.value_name)}
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in program.ops():
            for value in program.operands(op):
                self.users[value].append(op)

    def rows(self) -> list[DiffRow]:
        """All rows, by op."""

        def same(a: Side, b: Side) -> bool:
            return a.op == b.op and _alike(a, b)

        def swapped(a: Side, b: Side, priced: str, compiled: str) -> bool:
            return _axes(a) == _axes(b) and (a.kind, b.kind) == (priced, compiled)

        self.pair(lambda a, b: same(a, b) and _same_size(a, b), UNEXPLAINED)
        self.pair(lambda a, b: same(a, b) and self.is_narrower(a, b), NARROWER)
        self.pair(lambda a, b: same(a, b) and _close(a.bytes, b.bytes), OTHER_TIMES)
        self.pair(lambda a, b: a.op == b.op and self.is_cut_more(a, b), IDLE)
        self.pair(
            lambda a, b: a.op == b.op and swapped(a, b, "reduce_scatter", "all_reduce"),
            SUM_AND_SLICE,
        )
        self.pair(
            lambda a, b: a.op == b.op and swapped(a, b, "all_reduce", "reduce_scatter"), SCATTERED
        )
        self.windowed()
        # Every device's own copy of one value: what is equal but for the op is taken for the same.
        self.pair(lambda a, b: _alike(a, b) and _same_size(a, b), OTHER_OP)
        self.pair(
            lambda a, b: _alike(a, b) and self.is_narrower(a, b) and self.close(a, b), NARROWER
        )
        self.pair(
            lambda a, b: (
                swapped(a, b, "reduce_scatter", "all_reduce")
                and _close(a.bytes, b.bytes)
                and self.close(a, b)
            ),
            SUM_AND_SLICE,
        )
        self.pair(self.is_cut_more, IDLE)  # a merged one may be named after another op
        self.pair(same, OTHER_SIZE)
        self.pair(lambda a, b: a.op == b.op and a.kind == b.kind, OTHER_AXES)
        self.pair(lambda a, b: a.op == b.op and a.kind in _MOVES and b.kind in _MOVES, OTHER_ROUTE)
        missing = [self.row(a, None, MISSING, self.why_missing(a)) for a in self.left]
        extra = [self.row(None, b, EXTRA, self.why_extra(b)) for b in self.right]
        return sorted([*self.pairs, *missing, *extra], key=lambda row: (row.op, row.status))

    def pair(self, fits: Callable[[Side, Side], bool], reason: str) -> None:
        """Take the first partner of each priced one that ``fits`` out of both lists."""
        unpaired = []
        for priced in self.left:
            compiled = next((side for side in self.right if fits(priced, side)), None)
            if compiled is None:
                unpaired.append(priced)
                continue
            self.right.remove(compiled)
            status = CHANGED if reason else EQUAL
            why = REMATERIALISED if compiled.op in self.remats and reason else reason
            self.pairs.append(self.row(priced, compiled, status, why))
        self.left = unpaired

    def row(self, priced: Side | None, compiled: Side | None, status: str, reason: str) -> DiffRow:
        side = priced or compiled
        op = side.op if side is not None and side.op < self.program.n_ops else -1
        return DiffRow(
            op=op,
            op_kind=self.program.kind[op] if op >= 0 else "",
            where=self.program.where(op) if op >= 0 else "unknown line",
            predicted=priced,
            compiled=compiled,
            status=status,
            reason=reason,
        )

    def is_narrower(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled one of the same shape in another element type?"""
        value = self.values.get(priced.value, -1)
        width = _width(compiled.dtype)
        if value < 0 or not width:
            return False
        priced_width = float(self.program.itemsize[value])
        return (
            priced_width != width
            and _close(priced.bytes * width / priced_width, compiled.bytes)
            and priced.times == compiled.times
        )

    def is_cut_more(self, priced: Side, compiled: Side) -> bool:
        """Is the compiled collective the same sum of a value that is cut further?

        It has the same axes; its value is cut along one more axis of the mesh.
        """
        if priced.kind not in _SUMS or compiled.kind not in _SUMS:
            return False
        idle = [
            size
            for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
            if axis not in (priced.axes or ())
        ]
        return _axes(priced) == _axes(compiled) and any(
            size > 1 and _close(priced.bytes, compiled.bytes * size) for size in idle
        )

    def close(self, priced: Side, compiled: Side) -> bool:
        """Does one of the two ops use what the other one makes?

        There may be a few elementwise ops between them.
        """
        if not (0 <= priced.op < self.program.n_ops and 0 <= compiled.op < self.program.n_ops):
            return False
        return bool(self.reach(priced.op) & self.reach(compiled.op))

    def reach(self, op: int) -> set[int]:
        """The op and those that its results go to next.

        Results are followed through elementwise ops and views, four steps at most.
        """
        reached, edge = {op}, {op}
        for _ in range(4):
            edge = {
                user
                for current in edge
                for value in self.program.results(current)
                for user in self.users[value]
            } - reached
            reached |= edge
            edge = {user for user in edge if self.program.op_class[user] in (p.ELEMENTWISE, p.VIEW)}
        return reached

    def windowed(self) -> None:
        """Gathers before and scatters behind a matrix product that became rings of permutes."""
        unpaired = []
        for priced in self.left:
            may_be = priced.kind in ("all_gather", "reduce_scatter") and self.is_product(priced.op)
            partners: list[Side] = []
            others: list[Side] = []
            for compiled in self.right:
                is_partner = (
                    compiled.kind == "collective_permute"
                    and compiled.op == priced.op
                    and _axes(compiled) <= _axes(priced)
                )
                (partners if may_be and is_partner else others).append(compiled)
            if not partners:
                unpaired.append(priced)
                continue
            self.right = others
            total_bytes = sum(side.total_bytes for side in partners)
            whole = partners[0]._replace(bytes=total_bytes / partners[0].times)
            self.pairs.append(self.row(priced, whole, CHANGED, WINDOWED))
        self.left = unpaired

    def is_product(self, op: int) -> bool:
        return 0 <= op < self.program.n_ops and self.program.op_class[op] in (p.DOT, p.CONVOLUTION)

    def why_missing(self, missing: Side) -> str:
        for row in self.pairs:
            priced = row.predicted
            assert priced is not None
            if not _alike(priced, missing) or not _close(priced.bytes, missing.bytes):
                continue
            if priced.value == missing.value:
                return SHARED
            common = self.reach(missing.op) & self.reach(priced.op) - {missing.op, priced.op}
            if missing.kind in _SUMS and common:
                return REASSOCIATED
        return REMATERIALISED if missing.op in self.remats else UNEXPLAINED

    def why_extra(self, extra: Side) -> str:
        if extra.op in self.remats:
            return REMATERIALISED
        for row in self.pairs:
            compiled = row.compiled
            assert compiled is not None
            same_op = compiled.op == extra.op
            if same_op and _alike(compiled, extra) and _close(compiled.bytes, extra.bytes):
                return REPEATED
        sums = any(priced.op == extra.op and priced.kind in _SUMS for priced in self.all_left)
        return REORDER if extra.kind == "collective_permute" and sums else UNEXPLAINED


def _alike(priced: Side, compiled: Side) -> bool:
    return priced.kind == compiled.kind and _axes(priced) == _axes(compiled)


def _axes(side: Side) -> frozenset[str]:
    return frozenset(side.axes if side.axes is not None else ("?",))


def _same_size(priced: Side, compiled: Side) -> bool:
    return _close(priced.bytes, compiled.bytes) and priced.times == compiled.times


def _close(first: float, second: float) -> bool:
    return abs(first - second) <= 0.01 * max(first, second)


def _width(dtype: str) -> float:
    """Bytes of an element, 0 if unknown."""
    if dtype == "pred":
        return 1.0
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) / 8 if digits else 0.0


def _weight(row: DiffRow) -> float:
    priced, compiled = (side.total_bytes if side else 0.0 for side in (row.predicted, row.compiled))
    return float(np.abs(priced - compiled))
