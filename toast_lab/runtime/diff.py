"""Compare the collectives that a plan is priced with and those of its compiled program, op by op.

Both are first brought into one form: a merged collective is split into its arrays, ``times`` says
how often one step runs each, and ``op`` is the op of the program that it serves. Then pairs are
matched, the surest first: the same op, kind and axes; the same op and another way to communicate;
another op, with everything else equal. Whatever is left over is missing (priced, not compiled) or
extra (compiled, not priced).

A reason is given only where a check of the two sides holds; it is the likely cause, not a proof. A
difference that no check explains has the reason ``""``. Start reading at ``diff_compiled``.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab import text
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.ir.program import Program
from toast_lab.runtime import diff_pairs
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.diff_rows import EQUAL, STATUSES, DiffRow, Side
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.runtime.run import Run

SHOWN_ROWS = 60  #: most differing rows that ``str()`` writes


@dataclasses.dataclass(frozen=True)
class CompiledDiff:
    """Every collective of a plan, priced and compiled."""

    rows: tuple[DiffRow, ...]  #: in the order of the ops
    #: a sentence if the price is for another machine than the program was compiled for, else ""
    machines: str = ""

    @property
    def different(self) -> list[DiffRow]:
        """Rows whose two sides are not equal."""
        return [row for row in self.rows if row.status != EQUAL]

    @property
    def unexplained(self) -> list[DiffRow]:
        """Rows whose sides differ for no known reason."""
        return [row for row in self.different if not row.reason]

    def bytes_by_kind(self) -> dict[str, tuple[float, float]]:
        """(priced, compiled) bytes of one step, by kind of collective."""
        totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        for row in self.rows:
            for i, side in enumerate((row.predicted, row.compiled)):
                if side is not None:
                    totals[side.kind][i] += side.total_bytes
        return {kind: (pair[0], pair[1]) for kind, pair in sorted(totals.items())}

    def tidy(self) -> list[JsonObject]:
        """Each row as a flat dict with the same keys, for tables and JSON."""
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
        lines = [f"{self.machines}: do not compare times"] if self.machines else []
        lines.append(", ".join(f"{counts[status]} {status}" for status in STATUSES))
        for kind, (priced, compiled) in self.bytes_by_kind().items():
            sizes = f"priced {bytes_text(priced):>10}   compiled {bytes_text(compiled):>10}"
            lines.append(f"  {kind:<20} {sizes}")
        rows = [f"  {row}" for row in sorted(self.different, key=_weight, reverse=True)]
        return text.bounded(
            [*lines, *rows], len(lines) + SHOWN_ROWS, " rows: diff.different has all of them"
        )


def diff_compiled(problem: Problem, plan: ShardingPlan, compiled: Compiled | Run) -> CompiledDiff:
    """Compare the collectives of ``plan``'s price with those of a compiled program.

    Args:
        problem: the problem that the plan belongs to.
        plan: the plan that was compiled.
        compiled: the result of ``compile`` or ``run``, for any kind of device.

    Raises:
        InvalidPlan: ``compiled`` belongs to another program or plan, or was refused, which leaves
            nothing to compare.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> compiled = tl.compile(model, plan, topology="cpu:4", store=False)
        >>> print(tl.diff_compiled(problem, plan, compiled))
        compiled for cpu:4, priced on the machine tpu-v5e: do not compare times
        1 equal, 0 changed, 0 missing, 0 extra
          all_reduce           priced      2 KiB   compiled      2 KiB
    """
    program = plan.program
    remats: Iterable[int] = ()
    machines = ""
    if isinstance(compiled, Compiled):
        if (compiled.program, compiled.plan_key) != (program.digest(), plan.key):
            raise InvalidPlan(
                f"this was compiled from plan {compiled.plan_key:016x} of program "
                f"{compiled.program}, but the plan given is {plan.key:016x} of {program.digest()}; "
                f"compile this plan, for the platform of its problem's machine "
                f"({problem.machine.compiler.upper()}): JAX may make other programs for others"
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
    """``diff_compiled`` for two lists of collectives.

    ``remats`` are the ops that the partitioner rematerialised involuntarily.
    """
    return CompiledDiff(
        tuple(diff_pairs.pair_up(program, mesh, priced=priced, compiled=compiled, remats=remats))
    )


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
    """Compiled collectives (``hlo.Collective``) array by array, except those of a single device."""
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


def _weight(row: DiffRow) -> float:
    priced, compiled = (side.total_bytes if side else 0.0 for side in (row.predicted, row.compiled))
    return float(np.abs(priced - compiled))
