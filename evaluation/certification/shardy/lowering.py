"""Shardy's own lowering of a plan, in the form of our steps.

The annotated program goes through Shardy's passes (propagation, explicit reshards, reshards to
collectives) in a child process, since a failed check in a pass aborts it. The resulting collectives
are read with mesh axes, bytes and the value that they work on, and compared with the steps that the
listing shows and the cost model prices.

For the comparison an op carries the sharding that its operands imply, and a constraint behind the
op says how its result is kept (``annotate(..., scattered=False)``). Given the final sharding at
once, Shardy may compute an op along other factors than the plan's, which is another plan.

Start reading at ``lower_with_shardy``; ``routes.py`` has the comparison and the reasons for
differences.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from evaluation.certification.shardy.collectives import (
    RawCollective,
    read_collectives,
    run_lowering,
)
from toast_lab import _jaxlib, isolate
from toast_lab.errors import RunFailed
from toast_lab.ir import canonical
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import OP_NUMBER, annotate
from toast_lab.sharding import steps as st
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS

if TYPE_CHECKING:
    from toast_lab.ir.model import Model


class Transfer(NamedTuple):
    """One collective, ours or Shardy's; slices move no data and are not collectives."""

    #: the value of the program that it works on, -1: a value that Shardy's passes added
    value: int
    kind: str  #: "all_gather", "all_reduce", "reduce_scatter", "all_to_all" or "permute"
    axes: tuple[str, ...]  #: in mesh order; part of an axis as "m:(1)2"
    bytes: float  #: the larger of a device's bytes before and after

    def __str__(self) -> str:
        return f"{self.kind} {{{','.join(self.axes)}}} of {self.bytes:g} bytes"


class Lowered(NamedTuple):
    """The child's result for one plan."""

    collectives: list[RawCollective]
    #: (op, result) of the values that are reshaped by an op that the program does not have
    reshaped: list[tuple[int, int]]
    failure: str  #: the error of a pass, or how the process died; empty if neither


def lower_with_shardy(
    model: Model, plans: Sequence[ShardingPlan], *, time_limit_s: float = 300.0
) -> list[Lowered]:
    """Shardy's lowering of several plans of one model.

    If the child dies at a plan, its ``failure`` says so, and a new child continues with the others.
    """
    return lower_texts(
        [annotate(model, p, scattered=False, numbered=True) for p in plans],
        time_limit_s=time_limit_s,
    )


def lower_texts(texts: Sequence[str], *, time_limit_s: float = 300.0) -> list[Lowered]:
    """Shardy's lowering of annotated and numbered modules."""
    done: list[Lowered] = []
    while len(done) < len(texts):
        failure = ""
        try:
            isolate.run_in_child(
                "evaluation.certification.shardy.lowering:_lower_all",
                list(texts[len(done) :]),
                on_event=done.append,
                time_limit_s=time_limit_s,
                activity="lowering with Shardy",
            )
        except RunFailed as error:
            failure = str(error)
        if failure:
            done.append(Lowered([], [], failure))
    return done


def _lower_all(texts: list[str]) -> None:
    for text in texts:
        context = _jaxlib.make_context()
        module = _jaxlib.parse_module(context, text)
        try:
            run_lowering(module)
        except Exception as error:  # MLIRError; a failed check ends the process instead
            isolate.report(Lowered([], [], f"{type(error).__name__}: {error}"[:500]))
            continue
        found = read_collectives(canonical.main_function(module), OP_NUMBER)
        isolate.report(Lowered(*found, ""))


def shardy_collectives(model: Model, plan: ShardingPlan) -> list[Transfer]:
    """The collectives of Shardy's own lowering of ``plan``, in program order.

    Raises:
        RunFailed: a pass failed or crashed.
    """
    (lowered,) = lower_with_shardy(model, [plan])
    if lowered.failure:
        raise RunFailed(f"Shardy cannot lower this plan of {model.name}: {lowered.failure}")
    return [t for _, t in theirs(plan, lowered.collectives)]


def theirs(plan: ShardingPlan, rows: Sequence[RawCollective]) -> Iterator[tuple[int, Transfer]]:
    """(row, Transfer) of every row that moves data."""
    roots = root_values(plan.program, rows)
    for i, row in enumerate(rows):
        if row.kind == "all_slice":
            continue
        whole = math.prod(row.shape) * _itemsize(plan.program, roots[i], row.element)
        local = max(whole / ways(row.before, plan.mesh), whole / ways(row.after, plan.mesh))
        kind = "permute" if row.kind == "collective_permute" else row.kind
        yield i, Transfer(roots[i], kind, in_mesh_order(row_axes(row), plan.mesh), local)


def root_values(program: Program, rows: Sequence[RawCollective]) -> list[int]:
    """For each row, the value of the program at the start of its chain of collectives.

    It is -1 if the chain starts at no value of the program.
    """
    roots: list[int] = []
    for row in rows:
        if row.parent >= 0:
            roots.append(roots[row.parent])
        elif row.op >= 0 and row.result < 0:
            roots.append(program.results(int(program.owner[row.op - 1 - row.result]))[0])
        else:
            roots.append(int(program.result_ptr[row.op]) + row.result if row.op >= 0 else -1)
    return roots


def row_axes(row: RawCollective) -> tuple[str, ...]:
    """The axes of a row.

    For a permute they are all axes, whole ones, of the dims that it changes.
    """
    if row.kind != "collective_permute":
        return tuple(dict.fromkeys(row.axes))
    moved: dict[str, None] = {}
    for before, after in zip(row.before, row.after, strict=True):
        if before != after:
            moved |= dict.fromkeys(axis.partition(":")[0] for axis in (*before, *after))
    return tuple(moved)


def in_mesh_order(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Sort axes and parts of axes; an axis whose parts are all present is written whole."""
    parts: dict[str, list[str]] = {}
    for axis in axes:
        parts.setdefault(axis.partition(":")[0], []).append(axis)
    found: list[str] = []
    for axis in mesh.axes:
        own = parts.get(axis, [])
        size = math.prod(axis_size(a, mesh) for a in own)
        found += [axis] if own and size == mesh.size(axis) else sorted(own)
    return tuple(found)


def axis_size(axis: str, mesh: Mesh) -> int:
    """Size of a mesh axis, or of a part of one: "m:(1)2" is 2."""
    name, _, part = axis.partition(":")
    return int(part.partition(")")[2]) if part else mesh.size(name)


def ways(dims: Sequence[Sequence[str]], mesh: Mesh) -> int:
    """Number of pieces that axes per dim cut a tensor into."""
    return math.prod(axis_size(a, mesh) for axes in dims for a in axes)


def _itemsize(program: Program, value: int, element: str) -> float:
    if value >= 0:
        return float(program.itemsize[value])
    digits = "".join(c for c in element if c.isdigit())
    return max(1, int(digits or 8) // 8)


def ours(plan: ShardingPlan) -> Iterator[tuple[int, Transfer]]:
    """(step, Transfer) of every step of the plan that moves data.

    These are the steps that the listing shows and the cost model prices.
    """
    steps = st.lower(plan.program, plan.op_factor, plan.value_dim, plan.mesh.array())
    for i in range(len(steps.kind)):
        kind = int(steps.kind[i])
        if kind in (COMPUTE, SLICE):
            continue
        axes = tuple(a for j, a in enumerate(plan.mesh.axes) if int(steps.axes[i]) >> j & 1)
        size = float(max(steps.in_bytes[i], steps.out_bytes[i]))
        yield i, Transfer(int(steps.value[i]), STEP_KINDS[kind], axes, size)


def by_value(transfers: Iterator[tuple[int, Transfer]]) -> dict[int, list[Transfer]]:
    """Group transfers by the value that they work on."""
    found: dict[int, list[Transfer]] = collections.defaultdict(list)
    for _, transfer in transfers:
        found[transfer.value].append(transfer)
    return found
