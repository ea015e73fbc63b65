"""Two plans of one program side by side: tensors, collectives, time and memory.

Repeated layers share a row: rows are told apart by source line and kind, not by the number of the
layer. Times and bytes are the evaluator's (``tl.price``). Start reading at ``difference``.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.sharding.plan import ShardingPlan, Spec, spec_text
from toast_lab.text import as_html, bytes_text, line_text, table


class TensorRow(NamedTuple):
    """Values at one place in the program that the two plans keep differently."""

    #: its name; for several values the op kind, or the path of an argument with "*" for numbers
    value: str
    places: int  #: how many values
    where: str  #: source line of the op that defines it, "argument" for arguments
    before: Spec
    after: Spec
    before_bytes: float  #: of all these values, on one device
    after_bytes: float


class CollectiveDifference(NamedTuple):
    """Collectives of one kind over the same axes at one source line."""

    kind: str
    axes: tuple[str, ...]
    where: str
    before: int  #: number of collectives in the first plan
    after: int
    before_time_s: float
    after_time_s: float
    before_bytes: float
    after_bytes: float

    @property
    def time_s(self) -> float:
        """Seconds by which the second plan takes longer."""
        return self.after_time_s - self.before_time_s


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two plans; ``str()`` is a report."""

    before: Cost
    after: Cost
    tensors: tuple[TensorRow, ...]  #: in program order
    #: the largest change of time first; those that did not change are left out
    collectives: tuple[CollectiveDifference, ...]
    #: (source line, seconds before, seconds after), the largest change first
    compute: tuple[tuple[str, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        totals = {
            key: [getattr(self.before, key), getattr(self.after, key)]
            for key in ("time_s", "compute_s", "comm_s", "peak_bytes", "fits", "score")
        }
        return {
            **totals,
            "tensors": [row._asdict() for row in self.tensors],
            "collectives": [row._asdict() for row in self.collectives],
            "compute": [list(row) for row in self.compute],
        }

    def __repr__(self) -> str:
        return (
            f"<Difference in {len(self.tensors)} tensors and {len(self.collectives)} collectives>"
        )

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        before, after = self.before, self.after
        fits = ""
        if before.fits != after.fits:
            fits = ", fits now" if after.fits else ", does not fit any more"
        lines = [
            f"time    {_ms(before.time_s, after.time_s)} ms "
            f"(compute {_ms(before.compute_s, after.compute_s)}, "
            f"collectives {_ms(before.comm_s, after.comm_s)})",
            f"memory  {bytes_text(before.peak_bytes)} -> {bytes_text(after.peak_bytes)} "
            f"a device{fits}",
        ]
        if not (self.tensors or self.collectives or self.compute):
            return "\n".join([*lines, "The plans are the same."])
        if self.collectives:
            rows = [
                (
                    f"{row.kind} {{{','.join(row.axes)}}}",
                    line_text(row.where),
                    f"{row.before} -> {row.after}",
                    _ms(row.before_time_s, row.after_time_s),
                )
                for row in self.collectives
            ]
            lines += ["", table(("collective", "line", "count", "ms"), rows)]
        if self.tensors:
            rows = [
                (
                    row.value + (f" x{row.places}" if row.places > 1 else ""),
                    line_text(row.where),
                    spec_text(row.before),
                    spec_text(row.after),
                )
                for row in self.tensors
            ]
            lines += ["", table(("tensor", "line", "before", "after"), rows)]
        return "\n".join(lines)


def _ms(before_s: float, after_s: float) -> str:
    return f"{before_s * 1e3:.3f} -> {after_s * 1e3:.3f}"


def difference(problem: Problem, before: ShardingPlan, after: ShardingPlan) -> Difference:
    """Compare two plans of a problem's program and mesh.

    Raises:
        InvalidPlan: a plan belongs to another program or mesh.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> plan = tl.Plan.from_actions(problem, ["S@0->data"])
        >>> change = tl.diff(problem, tl.replicated(problem), plan)
        >>> [row for row in str(change).splitlines() if row.startswith("x ")]
        ['x       argument         whole   [data, -]']
    """
    costs = price(problem, before), price(problem, after)
    return Difference(
        *costs,
        tensors=tuple(_tensors(problem, before, after)),
        collectives=tuple(_collectives(costs)),
        compute=tuple(_compute(costs)),
    )


def _tensors(problem: Problem, before: ShardingPlan, after: ShardingPlan) -> list[TensorRow]:
    program, mesh = problem.analysis.program, problem.mesh
    by_place: dict[tuple[Any, ...], list[int]] = collections.defaultdict(list)
    specs = zip(before.value_specs(), after.value_specs(), strict=True)
    for value, (old, new) in enumerate(specs):
        if old != new and not program.value_is_constant[value]:
            op = int(program.value_op[value])
            name, where = program.kind[op], program.where(op)
            if op < program.n_arguments:
                name, where = re.sub(r"\d+", "*", program.value_name[value]), "argument"
            by_place[name, where, program.dims(value), old, new].append(value)
    rows = []
    for (name, where, _, old, new), values in by_place.items():
        total = sum(map(program.nbytes, values))
        rows.append(
            TensorRow(
                value=program.value_name[values[0]] if len(values) == 1 else name,
                places=len(values),
                where=where,
                before=old,
                after=new,
                before_bytes=total / mesh.ways(chain(*old)),
                after_bytes=total / mesh.ways(chain(*new)),
            )
        )
    return rows


def _collectives(costs: tuple[Cost, Cost]) -> list[CollectiveDifference]:
    # (count, seconds, bytes) x (before, after)
    totals: dict[tuple[str, tuple[str, ...], str], np.ndarray] = {}
    for plan_index, cost in enumerate(costs):
        for row in cost.collectives:
            figures = totals.setdefault((row.kind, row.axes, row.where), np.zeros((3, 2)))
            figures[:, plan_index] += 1, row.time_s, row.local_bytes
    rows = [
        CollectiveDifference(*key, *map(int, figures[0]), *figures[1:].ravel().tolist())
        for key, figures in totals.items()
        if (figures[:, 0] != figures[:, 1]).any()
    ]
    return sorted(rows, key=lambda row: -abs(row.time_s))


def _compute(costs: tuple[Cost, Cost]) -> list[tuple[str, float, float]]:
    by_line: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for plan_index, cost in enumerate(costs):
        for op in cost.ops:
            by_line[op.where][plan_index] += op.time_s
    threshold_s = 1e-9 * max(cost.time_s for cost in costs)
    rows = [
        (where, old, new) for where, (old, new) in by_line.items() if abs(old - new) > threshold_s
    ]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))
