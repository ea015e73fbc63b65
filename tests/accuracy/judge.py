"""Our prices beside the compiled programs, plan by plan.

Needs ``compiled.csv`` and neither libtpu nor a compiler.

The time that prices are judged by is put together from two parts, since the compiler estimates only
one of them:

* compute: its ``estimated_cycles`` times rounds of loops over the clock of the cores.  These cover
  fusions, matrix products and copies; gathers, scatters and sorts run in custom fusions without an
  estimate.
* communication: the collectives that are really in the compiled program, priced with our own model
  of the links.  No estimate of them is to be found in what libtpu returns.

So the ranking tests our compute prices and which collectives we expect, not our model of the links;
``compute_s`` alone is compared too.
"""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tests.accuracy import cases, dataset
from tests.readings import has_peak
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.machines.collectives import collective_time_s
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import diff, diff_rows
from toast_lab.sharding.step_kinds import STEP_KINDS

FEWEST = 8  # plans that can be ranked
REFUSED_BY = 1.10  # a plan that we call fitting must not need this much more than there is
LEAST_BYTES = 2.0**20  # collectives of less in a whole step are not judged


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
    peak_bytes: float | None  #: or what a refused one needs, if that is known in full
    #: what a refused one needs at least: the compiler may name its temporaries alone
    least_bytes: float | None
    limit_bytes: float | None  #: of a refused one
    differences: diff.CompiledDiff | None

    @property
    def memory_error(self) -> float | None:
        """|priced - compiled| / compiled."""
        return (
            None
            if not self.peak_bytes
            else abs(self.cost.peak_bytes - self.peak_bytes) / self.peak_bytes
        )

    @property
    def wrongly_fits(self) -> bool:
        """Did we call a plan fitting that needs over 10% more than there is?"""
        if self.fits or not self.cost.fits or not self.limit_bytes or not self.least_bytes:
            return False
        return self.least_bytes > REFUSED_BY * self.limit_bytes

    def __str__(self) -> str:
        return f"{self.case} {self.topology} {self.plan}"


class Ranked(NamedTuple):
    """How well plans of one case on one slice are ranked; nan where there is nothing to rank."""

    case: str
    topology: str
    n: int
    time: float  #: Spearman's rank correlation
    compute: float  #: of computing alone
    memory_error: float  #: median
    refused: int
    wrongly_fit: int


def judge() -> list[Judged]:
    """Every row of the data set whose program is still the same."""
    found = []
    for row in dataset.rows():
        if row["error"] or row["case"] not in {c.name for c in cases.CASES}:
            continue
        if dataset.is_current(row):
            found.append(_judged(cases.problem_of(row["case"], row["topology"]), row))
    return found


def _judged(problem: Problem, row: dict[str, str]) -> Judged:
    plan = Plan.from_actions(problem, json.loads(row["actions"]))
    fits, compute_s = bool(int(row["fits"])), _number(row["compute_s"])
    in_loops = {op for op, _ in json.loads(row["loops"])}
    theirs = [
        side
        for kind, axes, _, size, dtype, times, op in json.loads(row["collectives"])
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
    peak = _number(row["peak_bytes"]) if has_peak(row["topology"], row["reading"]) else None
    needed = None if int(row["needed_temporaries_only"]) else _number(row["needed_bytes"])
    return Judged(
        row["case"],
        row["topology"],
        row["plan"],
        row["kind"],
        price(problem, plan),
        fits,
        None if compute_s is None or comm_s is None else compute_s + comm_s,
        compute_s,
        comm_s,
        peak if fits else needed,
        _number(row["needed_bytes"]),
        _number(row["limit_bytes"]),
        differences,
    )


def _sides(
    kind: str, axes: str | None, size: float, dtype: str, times: float, op: int, *, once: bool
) -> list[diff_rows.Side]:
    """Collectives of a row, in which equal ones of one op were added up.

    With ``once`` they stay one, which a loop repeats.
    """
    names = None if axes is None else tuple(a for a in axes.split(",") if a)
    if once or times != int(times):
        return [diff_rows.Side(op, kind, names, size, times, "", dtype)]
    return [diff_rows.Side(op, kind, names, size, 1.0, "", dtype)] * int(times)


def _number(text: str) -> float | None:
    return float(text) if text else None


def link_s(problem: Problem, side: diff_rows.Side) -> float:
    """Seconds that our model of the links gives a compiled collective.

    Groups that are no axes count as all of them.
    """
    axes = problem.mesh.axes if side.axes is None else side.axes
    mask = sum(1 << i for i, axis in enumerate(problem.mesh.axes) if axis in axes)
    kind = "permute" if side.kind == "collective_permute" else side.kind
    if kind not in STEP_KINDS or not mask:
        return 0.0
    size = np.prod([problem.mesh.size(axis) for axis in axes])
    rates = problem.prices.inputs.rates
    sent = side.bytes / size if kind == "all_gather" else side.bytes
    if kind == "permute" and side.times > 1:
        # A ring around a matrix product: neighbours pass pieces on.  Others may go to the farthest
        # device.
        a = min(
            (i for i in range(len(problem.mesh.axes)) if mask >> i & 1),
            key=lambda i: rates.link_bytes_per_s[i],
        )
        return float(rates.link_latency_s[a] + side.bytes / rates.link_bytes_per_s[a]) * side.times
    once = collective_time_s(
        STEP_KINDS.index(kind),
        mask,
        sent,
        problem.mesh.array(),
        rates.link_bytes_per_s,
        rates.link_latency_s,
        rates.switched,
        rates.link_shape,
    )
    return float(once) * side.times


def ranked(judged: Iterable[Judged]) -> list[Ranked]:
    """One line for each case and slice."""
    groups: dict[tuple[str, str], list[Judged]] = collections.defaultdict(list)
    for one in judged:
        groups[one.case, one.topology].append(one)
    found = []
    for (case, topology), here in groups.items():
        timed = [one for one in here if one.time_s is not None]
        errors = [one.memory_error for one in here if one.memory_error is not None]
        found.append(
            Ranked(
                case,
                topology,
                len(here),
                spearman([one.cost.time_s for one in timed], [one.time_s or 0.0 for one in timed]),
                spearman(
                    [one.cost.compute_s for one in timed], [one.compute_s or 0.0 for one in timed]
                ),
                statistics.median(errors) if errors else float("nan"),
                sum(not one.fits for one in here),
                sum(one.wrongly_fits for one in here),
            )
        )
    return found


def spearman(ours: Sequence[float], theirs: Sequence[float], fewest: int = FEWEST) -> float:
    """Rank correlation.

    It is nan for fewer than ``fewest`` plans, or if one side is the same for all of them.
    """
    if len(ours) < fewest or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return float("nan")
    return float(stats.spearmanr(ours, theirs).statistic)


def collective_errors(judged: Iterable[Judged]) -> dict[str, list[float]]:
    """By kind, |priced - compiled| / compiled bytes of each plan that has the kind.

    It is 1 where only one side has it.
    """
    found: dict[str, list[float]] = collections.defaultdict(list)
    for one in judged:
        if one.differences is None:
            continue
        for kind, (ours, theirs) in one.differences.bytes_by_kind().items():
            if max(ours, theirs) >= LEAST_BYTES:
                found[kind].append(abs(ours - theirs) / theirs if theirs else 1.0)
                found["all kinds"].append(found[kind][-1])
    return dict(sorted(found.items()))


def collective_sums(judged: Iterable[Judged]) -> dict[str, tuple[float, float]]:
    """By kind (priced, compiled) bytes of a step, added up over all plans."""
    found: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for one in judged:
        for kind, both in one.differences.bytes_by_kind().items() if one.differences else ():
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
    for one in judged:
        for row in one.differences.different if one.differences else ():
            name = f"{row.status}: {row.reason or 'no reason found'}"
            rows[name] += 1
            ours, theirs = (
                side.total_bytes if side else 0.0 for side in (row.predicted, row.compiled)
            )
            off[name] += abs(ours - theirs)  # type: ignore[assignment]
    return [(name, rows[name], float(count)) for name, count in off.most_common()]
