"""``ReportSubject``: the plans that a report is about, with their stored results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.compare import provenance
from toast_lab.compare.comparison_store import ComparisonStore
from toast_lab.compare.result import Comparison
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidInput, StoreError, ToastError, join_offenders
from toast_lab.plan_verbs import Plan, Written
from toast_lab.runtime.compile import located
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_store import CompiledStore
from toast_lab.runtime.run import Run
from toast_lab.search.action_path import PathStep
from toast_lab.search.contract import SearchResult
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.compare_table import PlanEntry

Planned = ShardingPlan | SearchResult[Any]
Measured = Run | Comparison | Mapping[str, Run]


class KeptRun(NamedTuple):
    """A stored measurement, with the fields of a ``Run`` that the tables of plans read."""

    median_s: float | None
    spread_s: float | None
    step_times_s: tuple[float, ...]
    #: peak memory of the compiled program, in bytes
    peak_bytes: int | None
    #: peak of an accelerator's allocator, in bytes
    allocator_peak_bytes: int | None
    max_relative_error: float | None
    devices: str
    device_kind: str
    time_utc: str


@dataclasses.dataclass(frozen=True, eq=False)
class ReportSubject:
    """The plan that a report explains, the plans it is compared with, and their origin.

    Attributes:
        problem: the problem of all plans.
        plans: the explained plan, then the others.
        entries: name, price, compiled result and measurement of each plan, in the same order.
        results: results of the searches that found plans, by plan name.
        command: the command that made the report; empty if it was made from Python.
        time_utc: when the report was made, ISO 8601.
    """

    problem: Problem
    plans: tuple[ShardingPlan, ...]
    entries: tuple[PlanEntry, ...]
    results: Mapping[str, SearchResult[Any]]
    command: str
    time_utc: str
    #: the explained plan as people write it; None: it was not asked for, or cannot be written
    written: Written | None = None
    not_written: str = ""  #: why it cannot

    @property
    def plan(self) -> ShardingPlan:
        """The plan that is explained."""
        return self.plans[0]

    @property
    def title_name(self) -> str:
        """Name of the explained plan in titles: "plan mcts", but not "plan plan 1"."""
        name = self.entry.name
        return name if name.startswith("plan ") else f"plan {name}"

    @property
    def entry(self) -> PlanEntry:
        """The explained plan with its price."""
        return self.entries[0]

    @property
    def cost(self) -> Cost:
        """Price of the explained plan."""
        cost: Cost = self.entry.cost
        return cost

    @property
    def others(self) -> list[tuple[ShardingPlan, PlanEntry]]:
        """The plans that the explained one is compared with."""
        return list(zip(self.plans[1:], self.entries[1:], strict=True))

    @functools.cached_property
    def where(self) -> list[str]:
        """Source line of each op, without the folder of its file."""
        return self.problem.analysis.program.source_lines()


def make_subject(
    problem: Problem,
    planned: Mapping[str, Planned],
    *,
    compiled: Sequence[Compiled] = (),
    measured: Measured | None = None,
    kept: bool = True,
    written: bool = True,
    command: str = "",
    time_utc: str = "",
) -> ReportSubject:
    """Price the plans, and collect the compiled results and measurements of each.

    Args:
        problem: the problem of the plans.
        planned: at least one plan by name, the explained one first.
        compiled: results of ``tl.compile`` for any of the plans.
        measured: see ``report.report``.
        kept: also look up stored compiled results and measurements.
        written: write the first plan, which takes seconds.
        command: the command that makes the report.
        time_utc: the current time, ISO 8601.

    Raises:
        InvalidPlan: a plan belongs to another program or mesh.
        InvalidInput: a compiled result or a run belongs to none of the plans.
    """
    plans: dict[str, ShardingPlan] = {
        name: given.plan if isinstance(given, SearchResult) else given
        for name, given in planned.items()
    }
    costs = {name: price(problem, plan) for name, plan in plans.items()}
    builds: dict[str, Compiled | None] = {}
    runs: dict[str, Any] = {}
    if kept:
        builds = {name: _kept_compiled(problem, plan) for name, plan in plans.items()}
        runs = {name: _kept_run(problem, plan) for name, plan in plans.items()}
    builds |= _compiled_of(plans, compiled)
    runs |= _runs_of(plans, measured)
    entries = [
        PlanEntry(
            name=name,
            actions=plan.history,
            cost=costs[name],
            run=runs.get(name),
            compiled=builds.get(name),
            number=number,
            machine=problem.machine.name,
        )
        for number, (name, plan) in enumerate(plans.items())
    ]
    results = {name: given for name, given in planned.items() if isinstance(given, SearchResult)}
    text, not_written = None, ""
    if written:
        text, not_written = _written(problem, next(iter(planned.values())))
    return ReportSubject(
        problem=problem,
        plans=tuple(plans.values()),
        entries=tuple(entries),
        results=results,
        command=command,
        time_utc=time_utc,
        written=text,
        not_written=not_written,
    )


def _written(problem: Problem, given: Planned) -> tuple[Written | None, str]:
    """A plan as people write it, or why that cannot be done."""
    path: tuple[PathStep, ...] = ()
    plan: ShardingPlan
    if isinstance(given, SearchResult):
        plan, path, problem = given.plan, given.path, given.problem or problem
    else:
        plan = given
    try:
        return Plan.of(plan).written(problem=problem, path=path), ""
    except ToastError as error:
        return None, str(error)


# -- given by the caller ---------------------------------------------------------------------------
def _compiled_of(
    plans: Mapping[str, ShardingPlan], compiled: Iterable[Compiled]
) -> dict[str, Compiled]:
    builds: dict[str, Compiled] = {}
    offenders = []
    for build in compiled:
        names = [name for name, plan in plans.items() if _is_of(build, plan)]
        builds.update(dict.fromkeys(names, build))
        if not names:
            offenders.append(
                f"plan {build.plan_key:016x} of program {build.program}, for {build.topology}"
            )
    if offenders:
        raise InvalidInput(
            "compiled results of plans that are not in this report:\n"
            f"{join_offenders(offenders)}\nIts plans:\n{_keys(plans)}\n"
            "Give their plans as well, or leave them out"
        )
    return builds


def _is_of(build: Compiled, plan: ShardingPlan) -> bool:
    return build.plan_key == plan.key and build.program == plan.program.digest()


def _keys(plans: Mapping[str, ShardingPlan]) -> str:
    return join_offenders(
        f"{name}: plan {plan.key:016x} of program {plan.program.digest()}"
        for name, plan in plans.items()
    )


def _runs_of(plans: Mapping[str, ShardingPlan], measured: Measured | None) -> dict[str, Any]:
    if measured is None:
        return {}
    if isinstance(measured, Run):
        return {next(iter(plans)): measured}
    if isinstance(measured, Comparison):
        rows = {
            provenance.plan_digest(row.plan): row
            for row in measured.all_rows
            if row.status == "ok" and row.plan is not None
        }
        digests = {name: _digest(plan) for name, plan in plans.items()}
        runs = {name: rows[digest] for name, digest in digests.items() if digest in rows}
        if rows and not runs:
            raise InvalidInput(
                f"the comparison executed {', '.join(row.name for row in rows.values())}, none of "
                f"which is a plan of this report; its plans are {', '.join(plans)}. Give a "
                "comparison of these, or leave it out"
            )
        return runs
    if unknown := [name for name in measured if name not in plans]:
        raise InvalidInput(
            f"measured has runs for {', '.join(unknown)}, which are not plans of this report; its "
            f"plans are {', '.join(plans)}"
        )
    return dict(measured)


def _digest(plan: ShardingPlan) -> str:
    return provenance.plan_digest(plan_file.to_json(plan))


# -- kept from before ------------------------------------------------------------------------------
def _kept_compiled(problem: Problem, plan: ShardingPlan) -> Compiled | None:
    """The newest stored result for this plan, preferably for the problem's own machine."""
    digest, key = problem.analysis.program.digest(), f"{plan.key:016x}"
    # A report does not need stored results, so it does without a store that cannot be read
    with contextlib.suppress(StoreError), CompiledStore(read_only=True) as store:
        rows = [
            row
            for row in store.rows(problem.analysis.model.name)
            if (row["program"], row["plan"]) == (digest, key) and plan.key
        ]
        rows.sort(key=lambda row: row["machine"] != problem.machine.name)
        if rows:
            return located(store.get(rows[0]["id"])[1], plan.program)
    return None


def _kept_run(problem: Problem, plan: ShardingPlan) -> KeptRun | None:
    """The newest stored measurement of this plan, preferably on accelerators and not on CPUs."""
    digest = problem.analysis.program.digest()
    with contextlib.suppress(StoreError), ComparisonStore(read_only=True) as store:
        plan_digest = _digest(plan)
        rows = [
            row
            for row in store.rows(problem.analysis.model.name)
            if (row["program_digest"], row["plan_digest"]) == (digest, plan_digest)
            and row["status"] == "ok"
        ]
        rows.sort(key=lambda row: row["device_kind"] == "cpu")
        if rows:
            row = store.get(rows[0]["id"])
            batches = row["measured"].get("batches_s") or ()
            fields: dict[str, Any] = {name: row.get(name) for name in KeptRun._fields}
            fields["step_times_s"] = tuple(time_s for batch in batches for time_s in batch)
            return KeptRun(**fields)
    return None
