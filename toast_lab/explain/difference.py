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
    found: dict[tuple[Any, ...], list[int]] = collections.defaultdict(list)
    for v in range(program.n_values):
        a, b = specs[0][v], specs[1][v]
        if a != b and not program.value_is_constant[v]:
            op = int(program.value_op[v])
            given = op < program.n_arguments
            name = re.sub(r"\d+", "*", program.value_name[v]) if given else program.kind[op]
            found[name, "argument" if given else program.where(op), program.dims(v), a, b].append(v)
    rows = []
    for (name, where, _, a, b), values in found.items():
        first = program.value_name[values[0]]
        total = sum(program.nbytes(v) for v in values)
        rows.append(
            TensorRow(
                first if len(values) == 1 else name,
                len(values),
                where,
                a,
                b,
                total / mesh.ways(chain(*a)),
                total / mesh.ways(chain(*b)),
            )
        )
    return rows


def _collectives(costs: tuple[Cost, Cost]) -> list[CollectiveRow]:
    found: dict[tuple[str, tuple[str, ...], str], list[list[float]]] = {}
    for side, cost in enumerate(costs):
        for c in cost.collectives:
            row = found.setdefault((c.kind, c.axes, c.where), [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[
                side
            ]
            row[0] += 1
            row[1] += c.time_s
            row[2] += c.local_bytes
    rows = [
        CollectiveRow(*key, int(a[0]), int(b[0]), a[1], b[1], a[2], b[2])
        for key, (a, b) in found.items()
        if a != b
    ]
    return sorted(rows, key=lambda r: -abs(r.time_s))


def _compute(costs: tuple[Cost, Cost]) -> list[tuple[str, float, float]]:
    found: dict[str, list[float]] = {}
    for side, cost in enumerate(costs):
        for op in cost.ops:
            found.setdefault(op.where, [0.0, 0.0])[side] += op.time_s
    least = 1e-9 * max(c.time_s for c in costs)
    rows = [(where, a, b) for where, (a, b) in found.items() if abs(a - b) > least]
    return sorted(rows, key=lambda r: -abs(r[2] - r[1]))
