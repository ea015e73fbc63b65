"""Two plans of one program side by side: tensors, collectives, time and memory, layers together.

Rows of repeated layers are one, told apart by where they are in the source and what they are, not
by the number of the layer.  Numbers are the evaluator's (``tl.price``).  Start reading at
``difference``.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from itertools import chain
from typing import Any, NamedTuple

from toast_lab import text
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.sharding.plan import ShardingPlan, Spec, spec_text


class TensorRow(NamedTuple):
    """Values that the two plans keep differently, of one place in the program."""

    value: str  #: name of the first, numbers in it as "*" if there are several
    places: int  #: how many values
    where: str  #: source line of the op that makes it, "argument" for arguments
    before: Spec
    after: Spec
    before_bytes: float  #: of all of them, on one device
    after_bytes: float


class CollectiveRow(NamedTuple):
    """Collectives of one kind over the same axes at one source line."""

    kind: str
    axes: tuple[str, ...]
    where: str
    before: int  #: how many
    after: int
    before_time_s: float
    after_time_s: float
    before_bytes: float
    after_bytes: float

    @property
    def time_s(self) -> float:
        """What the second plan takes more."""
        return self.after_time_s - self.before_time_s


@dataclasses.dataclass(frozen=True)
class Difference:
    """What changes from one plan to another; ``str()`` is a report."""

    before: Cost
    after: Cost
    tensors: tuple[TensorRow, ...]  #: in program order
    #: what changes time the most first; those that are the same are left out
    collectives: tuple[CollectiveRow, ...]
    #: (source line, seconds before, after), the largest change first
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
        return text.as_html(self)

    def __str__(self) -> str:
        a, b = self.before, self.after
        lines = [
            f"time    {a.time_s * 1e3:.3f} -> {b.time_s * 1e3:.3f} ms "
            f"(compute {a.compute_s * 1e3:.3f} -> {b.compute_s * 1e3:.3f}, "
            f"collectives {a.comm_s * 1e3:.3f} -> {b.comm_s * 1e3:.3f})",
            f"memory  {text.bytes_text(a.peak_bytes)} -> {text.bytes_text(b.peak_bytes)} a device"
            + ("" if a.fits == b.fits else ", fits now" if b.fits else ", does not fit any more"),
        ]
        if not (self.tensors or self.collectives or self.compute):
            return "\n".join([*lines, "The plans are the same."])
        if self.collectives:
            rows = [
                (
                    f"{r.kind} {{{','.join(r.axes)}}}",
                    text.line_text(r.where),
                    f"{r.before} -> {r.after}",
                    f"{r.before_time_s * 1e3:.3f} -> {r.after_time_s * 1e3:.3f}",
                )
                for r in self.collectives
            ]
            lines += ["", text.table(("collective", "line", "count", "ms"), rows)]
        if self.tensors:
            rows = [
                (
                    r.value + (f" x{r.places}" if r.places > 1 else ""),
                    text.line_text(r.where),
                    spec_text(r.before),
                    spec_text(r.after),
                )
                for r in self.tensors
            ]
            lines += ["", text.table(("tensor", "line", "before", "after"), rows)]
        return "\n".join(lines)


def difference(problem: Problem, before: ShardingPlan, after: ShardingPlan) -> Difference:
    """Compare two plans of a problem's program and mesh.

    Raises:
        InvalidPlan: a plan belongs to another program or mesh.
    """
    costs = price(problem, before), price(problem, after)
    return Difference(
        *costs,
        tuple(_tensors(problem, before, after)),
        tuple(_collectives(costs)),
        tuple(_compute(costs)),
    )


def _tensors(problem: Problem, before: ShardingPlan, after: ShardingPlan) -> list[TensorRow]:
    program, mesh = problem.analysis.program, problem.mesh
    specs = before.value_specs(), after.value_specs()
    changed: dict[tuple[Any, ...], list[int]] = collections.defaultdict(list)
    for value in range(program.n_values):
        spec_before, spec_after = specs[0][value], specs[1][value]
        if spec_before != spec_after and not program.value_is_constant[value]:
            op = int(program.value_op[value])
            given = op < program.n_arguments
            name = re.sub(r"\d+", "*", program.value_name[value]) if given else program.kind[op]
            changed[
                name,
                "argument" if given else program.where(op),
                program.dims(value),
                spec_before,
                spec_after,
            ].append(value)
    rows = []
    for (name, where, _, spec_before, spec_after), values in changed.items():
        first = program.value_name[values[0]]
        total = sum(program.nbytes(value) for value in values)
        rows.append(
            TensorRow(
                first if len(values) == 1 else name,
                len(values),
                where,
                spec_before,
                spec_after,
                total / mesh.ways(chain(*spec_before)),
                total / mesh.ways(chain(*spec_after)),
            )
        )
    return rows


def _collectives(costs: tuple[Cost, Cost]) -> list[CollectiveRow]:
    totals: dict[tuple[str, tuple[str, ...], str], list[list[float]]] = {}
    for side, cost in enumerate(costs):
        for collective in cost.collectives:
            row = totals.setdefault(
                (collective.kind, collective.axes, collective.where),
                [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
            )[side]
            row[0] += 1
            row[1] += collective.time_s
            row[2] += collective.local_bytes
    rows = [
        CollectiveRow(*key, int(first[0]), int(second[0]), first[1], second[1], first[2], second[2])
        for key, (first, second) in totals.items()
        if first != second
    ]
    return sorted(rows, key=lambda row: -abs(row.time_s))


def _compute(costs: tuple[Cost, Cost]) -> list[tuple[str, float, float]]:
    seconds_at: dict[str, list[float]] = {}
    for side, cost in enumerate(costs):
        for op in cost.ops:
            seconds_at.setdefault(op.where, [0.0, 0.0])[side] += op.time_s
    least = 1e-9 * max(cost.time_s for cost in costs)
    rows = [
        (where, first, second)
        for where, (first, second) in seconds_at.items()
        if abs(first - second) > least
    ]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))
