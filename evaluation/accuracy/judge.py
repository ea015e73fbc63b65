"""Compare our prices with the compiled programs, plan by plan.

This needs ``compiled.jsonl``, but neither libtpu nor a compiler.

Prices are judged by a time of two parts, since the compiler estimates only one of them:

* compute: the compiler's ``estimated_cycles`` times rounds of loops over the clock of the cores.
  They cover fusions, matrix products and copies; gathers, scatters and sorts run in custom fusions
  without an estimate.
* communication: the collectives that the compiled program really has, priced with our own model of
  the links, since libtpu returns no estimate of them.

So the ranking tests our compute prices and which collectives we expect, but not our model of the
links; ``compute_s`` alone is compared too.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from evaluation.accuracy import cases, dataset
from evaluation.compiled_rows import has_peak
from evaluation.row_files import Row
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.machines.collectives import collective_time_s
from toast_lab.machines.topology import LATENCY, RATE
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import diff, diff_rows
from toast_lab.sharding.step_kinds import STEP_KINDS

FEWEST = 8  # least number of plans that are ranked
REFUSED_BY = 1.10  # a plan that fits by our price may not need more than this times the memory
LEAST_BYTES = 2.0**20  # collectives of fewer bytes in a whole step are not judged


class Judged(NamedTuple):
    """One plan, priced and compiled."""

    case: str
    topology: str
    plan: str
    kind: str
    cost: Cost
    fits: bool
    time_s: float | None  #: judged time of the compiled program; None if it was refused
    compute_s: float | None
    comm_s: float | None
    peak_bytes: float | None  #: or the memory that a refused plan needs, if fully known
    #: least memory that a refused plan needs: the compiler may report only its temporaries
    least_bytes: float | None
    limit_bytes: float | None  #: memory limit that a refused plan exceeds
    differences: diff.CompiledDiff | None

    @property
    def memory_error(self) -> float | None:
        """|priced - compiled| / compiled peak."""
        return (
            None
            if not self.peak_bytes
            else abs(self.cost.peak_bytes - self.peak_bytes) / self.peak_bytes
        )

    @property
    def wrongly_fits(self) -> bool:
        """Does the plan fit by our price, but need over 10% more memory than there is?"""
        if self.fits or not self.cost.fits or not self.limit_bytes or not self.least_bytes:
            return False
        return self.least_bytes > REFUSED_BY * self.limit_bytes

    def __str__(self) -> str:
        return f"{self.case} {self.topology} {self.plan}"


class Ranked(NamedTuple):
    """How well the plans of one case on one slice are ranked; nan if there is nothing to rank."""

    case: str
    topology: str
    n: int
    time: float  #: Spearman's rank correlation
    compute: float  #: rank correlation of computing alone
    memory_error: float  #: median of all plans
    refused: int
    wrongly_fit: int


def judge() -> list[Judged]:
    """Judge every row of the data set whose program is unchanged."""
    found = []
    for row in dataset.rows():
        if "error" in row or row["program"] not in {c.name for c in cases.CASES}:
            continue
        if dataset.is_current(row):
            found.append(_judged(cases.problem_of(row["program"], row["topology"]), row))
    return found


def _judged(problem: Problem, row: Row) -> Judged:
    plan = Plan.from_actions(problem, row["actions"])
    fits, compute_s = row["fits"], row["compute_s"]
    in_loops = {op for op, _ in row["loops"]}
    theirs = [
        side
        for kind, axes, _, size, dtype, times, op in row["collectives"]
        for side in _sides(
            kind,
            axes,
            float(size),
            dtype,
            times,
            op,
            once=op in in_loops or kind.endswith("permute"),
        )
    ]
    differences = None
    if fits:
        ours = diff.predicted(problem, plan)
        differences = diff.compare(
            plan.program, plan.mesh, ours, [s for s in theirs if s.axes != ()]
        )
    comm_s = sum(link_s(problem, side) for side in theirs) if fits else None
    peak = row["peak_bytes"] if has_peak(row["topology"], row.get("reading")) else None
    needed = None if row["needed_temporaries_only"] else row["needed_bytes"]
    return Judged(
        row["program"],
        row["topology"],
        row["plan"],
        row["kind"],
        price(problem, plan),
        fits,
        None if compute_s is None or comm_s is None else compute_s + comm_s,
        compute_s,
        comm_s,
        peak if fits else needed,
        row["needed_bytes"],
        row["limit_bytes"],
        differences,
    )


def _sides(
    kind: str, axes: list[str] | None, size: float, dtype: str, times: float, op: int, *, once: bool
) -> list[diff_rows.Side]:
    """Expand a row that stands for equal collectives of one op.

    With ``once`` it stays one collective that a loop repeats.
    """
    names = None if axes is None else tuple(axes)
    if once or times != int(times):
        return [diff_rows.Side(op, kind, names, size, times, "", dtype)]
    return [diff_rows.Side(op, kind, names, size, 1.0, "", dtype)] * int(times)


def link_s(problem: Problem, side: diff_rows.Side) -> float:
    """Seconds of a compiled collective by our model of the links.

    Device groups that are not mesh axes are priced as all axes.
    """
    axes = problem.mesh.axes if side.axes is None else side.axes
    mask = sum(1 << i for i, axis in enumerate(problem.mesh.axes) if axis in axes)
    kind = "permute" if side.kind == "collective_permute" else side.kind
    if kind not in STEP_KINDS or not mask:
        return 0.0
    size = np.prod([problem.mesh.size(axis) for axis in axes])
    links = problem.prices.inputs.rates.link_shape
    sent = side.bytes / size if kind == "all_gather" else side.bytes
    if kind == "permute" and side.times > 1:
        # A ring around a matrix product passes pieces between neighbours. Other permutes may go to
        # the farthest device.
        a = min(
            (i for i in range(len(problem.mesh.axes)) if mask >> i & 1),
            key=lambda i: links[i, RATE],
        )
        return float(links[a, LATENCY] + side.bytes / links[a, RATE]) * side.times
    once = collective_time_s(STEP_KINDS.index(kind), mask, sent, links)
    return float(once) * side.times


def ranked(judged: Iterable[Judged]) -> list[Ranked]:
    """A ``Ranked`` for each case and slice."""
    groups: dict[tuple[str, str], list[Judged]] = collections.defaultdict(list)
    for plan in judged:
        groups[plan.case, plan.topology].append(plan)
    rankings = []
    for (case, topology), plans in groups.items():
        timed = [plan for plan in plans if plan.time_s is not None]
        errors = [plan.memory_error for plan in plans if plan.memory_error is not None]
        rankings.append(
            Ranked(
                case,
                topology,
                len(plans),
                spearman(
                    [plan.cost.time_s for plan in timed], [plan.time_s or 0.0 for plan in timed]
                ),
                spearman(
                    [plan.cost.compute_s for plan in timed],
                    [plan.compute_s or 0.0 for plan in timed],
                ),
                statistics.median(errors) if errors else float("nan"),
                sum(not plan.fits for plan in plans),
                sum(plan.wrongly_fits for plan in plans),
            )
        )
    return rankings


def spearman(ours: Sequence[float], theirs: Sequence[float], fewest: int = FEWEST) -> float:
    """Spearman's rank correlation.

    It is nan for fewer than ``fewest`` plans, or if one side is the same for all of them.
    """
    if len(ours) < fewest or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return float("nan")
    return float(stats.spearmanr(ours, theirs).statistic)


def collective_errors(judged: Iterable[Judged]) -> dict[str, list[float]]:
    """By kind, |priced - compiled| / compiled bytes of each plan with collectives of that kind.

    The error is 1 if only one side has the kind.
    """
    found: dict[str, list[float]] = collections.defaultdict(list)
    for plan in judged:
        if plan.differences is None:
            continue
        for kind, (ours, theirs) in plan.differences.bytes_by_kind().items():
            if max(ours, theirs) >= LEAST_BYTES:
                found[kind].append(abs(ours - theirs) / theirs if theirs else 1.0)
                found["all kinds"].append(found[kind][-1])
    return dict(sorted(found.items()))


def collective_sums(judged: Iterable[Judged]) -> dict[str, tuple[float, float]]:
    """By kind, (priced, compiled) bytes of a step, added up over all plans."""
    found: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for plan in judged:
        for kind, both in plan.differences.bytes_by_kind().items() if plan.differences else ():
            for name in (kind, "all kinds"):
                found[name][0] += both[0]
                found[name][1] += both[1]
    return {kind: (ours, theirs) for kind, (ours, theirs) in found.items()}


def reasons(judged: Iterable[Judged]) -> list[tuple[str, int, float]]:
    """(reason, rows, bytes by which the two sides differ) of every difference in collectives.

    The largest come first.
    """
    rows: collections.Counter[str] = collections.Counter()
    off: collections.Counter[str] = collections.Counter()
    for plan in judged:
        for row in plan.differences.different if plan.differences else ():
            name = f"{row.status}: {row.reason or 'no reason found'}"
            rows[name] += 1
            ours, theirs = (
                side.total_bytes if side else 0.0 for side in (row.predicted, row.compiled)
            )
            off[name] += abs(ours - theirs)  # type: ignore[assignment]
    return [(name, rows[name], float(count)) for name, count in off.most_common()]
