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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    "on a value of another size: before or after a slice, a pad or a reduction, or at "
    "another precision"
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
REASONS = (
    NARROWER,
    OTHER_TIMES,
    SUM_AND_SLICE,
    SCATTERED,
    WINDOWED,
    OTHER_AXES,
    OTHER_ROUTE,
    OTHER_SIZE,
    OTHER_OP,
    SHARED,
    REASSOCIATED,
    REMATERIALISED,
    REPEATED,
    IDLE,
    REORDER,
)
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
            f"{_size(self.bytes)}{times}{' ' + self.dtype if self.dtype else ''}"
        )


class Row(NamedTuple):
    """One line of the comparison."""

    op: int
    what: str  #: kind of our op, "dot_general"
    where: str  #: source line
    predicted: Side | None
    compiled: Side | None
    status: str  #: one of STATUSES
    reason: str  #: one of REASONS, "" if none is known (or none is needed)

    def __str__(self) -> str:
        left, right = (str(side) if side else "-" for side in (self.predicted, self.compiled))
        return (
            f"%{self.op} {self.what} ({self.where}): {left} | {right} | {self.status}: "
            f"{self.reason or 'unexplained'}"
        )


@dataclasses.dataclass(frozen=True)
class CompiledDiff:
    """Every collective of a plan, priced and compiled."""

    rows: tuple[Row, ...]  #: in order of the ops
    #: says so where the price is of another machine than the program was compiled for
    machines: str = ""

    @property
    def different(self) -> list[Row]:
        """Rows on which the two sides are not equal."""
        return [row for row in self.rows if row.status != EQUAL]

    @property
    def unexplained(self) -> list[Row]:
        """Rows that differ for no known reason."""
        return [row for row in self.different if not row.reason]

    def bytes_by_kind(self) -> dict[str, tuple[float, float]]:
        """(priced, compiled) bytes of one step by kind."""
        found: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        for row in self.rows:
            for i, side in enumerate((row.predicted, row.compiled)):
                if side is not None:
                    found[side.kind][i] += side.total_bytes
        return {kind: (both[0], both[1]) for kind, both in sorted(found.items())}

    def tidy(self) -> list[dict[str, Any]]:
        """One flat dict a row, for tables and JSON; the same keys in each."""
        rows = []
        for row in self.rows:
            data: dict[str, Any] = {"op": row.op, "what": row.what, "where": row.where}
            for prefix, side in (("predicted", row.predicted), ("compiled", row.compiled)):
                for key in ("kind", "axes", "bytes", "times", "value", "dtype", "merged"):
                    found = getattr(side, key) if side is not None else None
                    data[f"{prefix}_{key}"] = ",".join(found) if isinstance(found, tuple) else found
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
        for kind, (ours, theirs) in self.bytes_by_kind().items():
            lines.append(f"  {kind:<20} priced {_size(ours):>10}   compiled {_size(theirs):>10}")
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
    """
    program = plan.program
    if isinstance(compiled, Compiled):
        if (compiled.program, compiled.plan_key) != (program.digest(), plan.key):
            raise InvalidPlan(
                f"compiled was plan {compiled.plan_key:016x} of program {compiled.program}, "
                f"this is plan {plan.key:016x} of {program.digest()}"
            )
        if compiled.refused:
            raise InvalidPlan(
                f"the compiler refused this plan, so there is nothing to compare: {compiled}"
            )
    remats, machines = set(), ""
    if isinstance(compiled, Compiled):
        remats = {r.op for r in compiled.rematerialised}
        machines = compiled.priced_elsewhere(problem.machine.name)
    found = compare(
        program, plan.mesh, predicted(problem, plan), sides(compiled.collectives), remats
    )
    return dataclasses.replace(found, machines=machines)


def compare(
    program: Program,
    mesh: Mesh,
    ours: Sequence[Side],
    theirs: Sequence[Side],
    remats: Iterable[int] = (),
) -> CompiledDiff:
    """``diff_compiled`` on two lists.

    ``remats`` are ops that the partitioner rematerialised involuntarily.
    """
    return CompiledDiff(tuple(_Matcher(program, mesh, ours, theirs, set(remats)).rows()))


def predicted(problem: Problem, plan: ShardingPlan) -> list[Side]:
    """The collectives of a plan's price."""
    trips = plan.program.trips
    return [
        Side(
            row.op,
            "collective_permute" if row.kind == "permute" else row.kind,
            row.axes,
            row.local_bytes,
            float(trips[row.op]),
            row.value,
        )
        for row in price(problem, plan).collectives
    ]


def sides(compiled: Iterable[Any]) -> list[Side]:
    """Compiled collectives (``hlo.Collective``), array by array.

    Those among single devices are none.
    """
    return [
        Side(part.op, c.kind, c.axes, float(part.bytes), c.times, "", part.dtype, len(c.parts) > 1)
        for c in compiled
        for part in c.parts
        if c.axes != ()
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
        self.found: list[Row] = []
        self.values = {name: v for v, name in enumerate(program.value_name)}
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for op in program.ops():
            for value in program.operands(op):
                self.users[value].append(op)

    def rows(self) -> list[Row]:
        """All rows, by op."""
        near = self.same_op
        self.pair(
            lambda a, b: near(a, b) and _alike(a, b) and _same_bytes(a, b) and a.times == b.times,
            UNEXPLAINED,
        )
        self.pair(lambda a, b: near(a, b) and _alike(a, b) and self.is_narrower(a, b), NARROWER)
        self.pair(lambda a, b: near(a, b) and _alike(a, b) and _same_bytes(a, b), OTHER_TIMES)
        self.pair(lambda a, b: near(a, b) and self.is_cut_more(a, b), IDLE)
        self.pair(
            lambda a, b: (
                near(a, b) and _axes(a) == _axes(b) and _kinds(a, b, "reduce_scatter", "all_reduce")
            ),
            SUM_AND_SLICE,
        )
        self.pair(
            lambda a, b: (
                near(a, b) and _axes(a) == _axes(b) and _kinds(a, b, "all_reduce", "reduce_scatter")
            ),
            SCATTERED,
        )
        self.windowed()
        # Every device's own copy of one value: what is equal but for the op is taken for the same.
        self.pair(lambda a, b: _alike(a, b) and _same_bytes(a, b) and a.times == b.times, OTHER_OP)
        self.pair(
            lambda a, b: _alike(a, b) and self.is_narrower(a, b) and self.close(a, b), NARROWER
        )
        self.pair(
            lambda a, b: (
                _axes(a) == _axes(b)
                and _kinds(a, b, "reduce_scatter", "all_reduce")
                and _same_bytes(a, b)
                and self.close(a, b)
            ),
            SUM_AND_SLICE,
        )
        self.pair(self.is_cut_more, IDLE)  # a merged one may be named after another op
        self.pair(lambda a, b: near(a, b) and _alike(a, b), OTHER_SIZE)
        self.pair(lambda a, b: near(a, b) and a.kind == b.kind, OTHER_AXES)
        self.pair(lambda a, b: near(a, b) and a.kind in _MOVES and b.kind in _MOVES, OTHER_ROUTE)
        self.found += [self.row(a, None, MISSING, self.why_missing(a)) for a in self.left]
        self.found += [self.row(None, b, EXTRA, self.why_extra(b)) for b in self.right]
        return sorted(self.found, key=lambda row: (row.op, row.status))

    def pair(self, fits: Callable[[Side, Side], bool], reason: str) -> None:
        """Take the first partner of each priced one that ``fits`` out of both lists."""
        rest = []
        for a in self.left:
            k = next((k for k, b in enumerate(self.right) if fits(a, b)), None)
            if k is None:
                rest.append(a)
                continue
            b = self.right.pop(k)
            status = CHANGED if reason else EQUAL
            self.found.append(
                self.row(a, b, status, REMATERIALISED if b.op in self.remats and reason else reason)
            )
        self.left = rest

    def row(self, a: Side | None, b: Side | None, status: str, reason: str) -> Row:
        side = a or b
        op = side.op if side is not None else -1
        if not 0 <= op < self.program.n_ops:
            return Row(-1, "", "unknown line", a, b, status, reason)
        return Row(op, self.program.kind[op], self.program.where(op), a, b, status, reason)

    def same_op(self, a: Side, b: Side) -> bool:
        return a.op == b.op

    def is_narrower(self, a: Side, b: Side) -> bool:
        """Is the compiled one of the same shape in another element type?"""
        value = self.values.get(a.value, -1)
        width = _width(b.dtype)
        if value < 0 or not width:
            return False
        own = float(self.program.itemsize[value])
        return own != width and _close(a.bytes * width / own, b.bytes) and a.times == b.times

    def is_cut_more(self, a: Side, b: Side) -> bool:
        """Is the compiled collective the same sum of a value that is cut further?

        It has the same axes; its value is cut along one more axis of the mesh.
        """
        if a.kind not in ("reduce_scatter", "all_reduce") or b.kind not in (
            "reduce_scatter",
            "all_reduce",
        ):
            return False
        idle = [
            size
            for axis, size in zip(self.mesh.axes, self.mesh.sizes, strict=True)
            if axis not in (a.axes or ())
        ]
        return _axes(a) == _axes(b) and any(
            size > 1 and _close(a.bytes, b.bytes * size) for size in idle
        )

    def close(self, a: Side, b: Side) -> bool:
        """Does one of the two ops use what the other one makes?

        There may be a few elementwise ops between them.
        """
        if not (0 <= a.op < self.program.n_ops and 0 <= b.op < self.program.n_ops):
            return False
        return bool(self.reach(a.op) & self.reach(b.op))

    def reach(self, op: int) -> set[int]:
        """The op and those that its results go to next.

        Results are followed through elementwise ops and views, four steps at most.
        """
        found, edge = {op}, {op}
        for _ in range(4):
            edge = {
                user for here in edge for v in self.program.results(here) for user in self.users[v]
            } - found
            found |= edge
            edge = {o for o in edge if self.program.op_class[o] in (p.ELEMENTWISE, p.VIEW)}
        return found

    def windowed(self) -> None:
        """Gathers before and scatters behind a matrix product that became rings of permutes."""
        rest = []
        for a in self.left:
            partners = [
                b
                for b in self.right
                if b.kind == "collective_permute" and b.op == a.op and _axes(b) <= _axes(a)
            ]
            if (
                a.kind not in ("all_gather", "reduce_scatter")
                or not partners
                or not self.is_product(a.op)
            ):
                rest.append(a)
                continue
            taken = set(map(id, partners))
            self.right = [b for b in self.right if id(b) not in taken]
            whole = partners[0]._replace(
                bytes=sum(b.total_bytes for b in partners) / partners[0].times
            )
            self.found.append(self.row(a, whole, CHANGED, WINDOWED))
        self.left = rest

    def is_product(self, op: int) -> bool:
        return 0 <= op < self.program.n_ops and self.program.op_class[op] in (p.DOT, p.CONVOLUTION)

    def partners(self, status: Iterable[str]) -> Iterator[Row]:
        return (
            row for row in self.found if row.status in status and row.predicted and row.compiled
        )

    def why_missing(self, a: Side) -> str:
        for row in self.partners((EQUAL, CHANGED)):
            b = row.predicted
            assert b is not None
            if b.kind != a.kind or _axes(b) != _axes(a) or not _close(a.bytes, b.bytes):
                continue
            if b.value == a.value:
                return SHARED
            if a.kind in ("all_reduce", "reduce_scatter") and self.reach(a.op) & self.reach(
                b.op
            ) - {a.op, b.op}:
                return REASSOCIATED
        if a.op in self.remats:
            return REMATERIALISED
        return UNEXPLAINED

    def why_extra(self, b: Side) -> str:
        if b.op in self.remats:
            return REMATERIALISED
        for row in self.partners((EQUAL, CHANGED)):
            c = row.compiled
            if (
                c is not None
                and c.op == b.op
                and c.kind == b.kind
                and _axes(c) == _axes(b)
                and _close(c.bytes, b.bytes)
            ):
                return REPEATED
        sums = any(
            a.op == b.op and a.kind in ("all_reduce", "reduce_scatter") for a in self.all_left
        )
        if b.kind == "collective_permute" and sums:
            return REORDER
        return UNEXPLAINED


def _alike(a: Side, b: Side) -> bool:
    return a.kind == b.kind and _axes(a) == _axes(b)


def _axes(side: Side) -> frozenset[str]:
    return frozenset(side.axes if side.axes is not None else ("?",))


def _kinds(a: Side, b: Side, ours: str, theirs: str) -> bool:
    return a.kind == ours and b.kind == theirs


def _same_bytes(a: Side, b: Side) -> bool:
    return _close(a.bytes, b.bytes)


def _close(x: float, y: float) -> bool:
    return abs(x - y) <= 0.01 * max(x, y)


def _width(dtype: str) -> float:
    digits = "".join(c for c in dtype.partition("e")[0] if c.isdigit()) if dtype else ""
    return 1.0 if dtype == "pred" else int(digits) / 8 if digits else 0.0


def _weight(row: Row) -> float:
    ours, theirs = (side.total_bytes if side else 0.0 for side in (row.predicted, row.compiled))
    return float(np.abs(ours - theirs))


def _size(count: float) -> str:
    for unit, scale in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
