"""The plans of a page, and the work on them: compiling, executing, exporting as code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import param

from toast_lab.app.items import Level, PlanItem
from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.compare.kept_runs import ONE_DEVICE
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, ToastError
from toast_lab.explain.why import CollectiveReason, why
from toast_lab.files import file_name
from toast_lab.jobs import plan_job
from toast_lab.jobs.job import Job, Watch
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan, Written
from toast_lab.search.usual_plans import data_parallel, usual_plans
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.views.compare_table import PlanEntry
from toast_lab.written.written_front import WITHIN

if TYPE_CHECKING:
    from toast_lab.runtime.compiled import Compiled

ANSWERS = ThreadPoolExecutor(1, "about a plan")
MAX_ACTIONS_TYPED = 64
REPORT = "report"
EXPORTS = {**plan_job.EXPORTS, "Report (HTML)": REPORT}


def export_report(
    plan: Plan, problem: Problem, name: str, compiled: Compiled | None, *, watch: Watch
) -> plan_job.Exported:
    """Write the report on a plan, in a job's thread, with what is kept of its executions."""
    from toast_lab.report.report import report

    plan_job.write(plan, problem, watch=watch)  # kept by the plan, for the report
    watch.on_event("drawing the report")
    content = report(problem, {name: plan}, compiled=[compiled] if compiled else []).html
    remark = "It opens in any browser, without a server or a network."
    return plan_job.Exported(f"{file_name(name)}_report.html", content, (remark,))


class PlanStore(StatePart):
    """Plans by name, in the order in which they came."""

    items: Any = param.List(default=[], doc="PlanItems")
    hidden: Any = param.Parameter(
        default=frozenset(), doc="names of plans that are not in the pictures"
    )
    wanted: Any = param.String(default="", doc="name of the plan to be looked at next")
    looked_at: Any = param.String(default="", doc="name of the plan that page 4 is about")
    exported: Any = param.Parameter(default=None, doc="the last plan_job.Exported")
    comparison: Any = param.Parameter(
        default=None, doc="the last toast_lab.compare.result.Comparison"
    )
    priced: Any = param.Parameter(default=None, doc="the Problem that plans were last priced for")
    for_writing: Any = param.Dict(
        default={}, doc="by problem and key, the Plan that keeps how it is written"
    )

    kept: Any = param.Dict(default={}, doc="KeptRuns of each plan, by its name")

    def __init__(self, loaded: LoadedState, notices: Notices, work: Work, exports: Work) -> None:
        super().__init__()
        self._loaded, self._notices, self._work = loaded, notices, work
        self._exports = exports
        work.handle("run", Handler(self._executed))
        work.handle("compile", Handler(self._compiled))
        exports.handle("export", Handler(self._take_export))
        exports.handle("write", Handler(self._take_written))

    # -- reading -----------------------------------------------------------------------------------
    @property
    def is_priced(self) -> bool:
        """Has the loaded problem been priced? Until then, all plans belong to another one."""
        return self.priced is self._loaded.problem

    def named(self, name: str) -> PlanItem | None:
        """A plan by its name."""
        return next((item for item in self.items if item.name == name), None)

    def in_pictures(self) -> list[PlanItem]:
        """The plans that are shown in the pictures."""
        return [item for item in self.items if item.name not in self.hidden]

    def entries(self) -> list[PlanEntry]:
        """All plans as the comparison takes them, each with its last execution."""
        return [
            self._with_run(item).entry(
                number, item.name not in self.hidden, self.written_size(item)
            )
            for number, item in enumerate(self.items)
        ]

    def _with_run(self, item: PlanItem) -> PlanItem:
        """A plan that was not executed here, with its last execution of an earlier day, if any."""
        runs = [run for run in self.kept.get(item.name, ()) if run.name != ONE_DEVICE]
        if item.run is not None or not runs:
            return item
        dated = f"{runs[0].devices}, {runs[0].time_utc[:10]}"
        return item._replace(run=runs[0]._replace(devices=dated))

    def searched(self) -> list[PlanItem]:
        """Plans that searches found for this mesh and machine."""
        problem = self._loaded.problem
        return [
            item
            for item in self.items
            if item.origin == "search"
            and item.problem.mesh == problem.mesh
            and item.problem.machine == problem.machine
        ]

    def free_name(self, name: str, between: str = " ") -> str:
        """``name``, numbered if another plan already has it."""
        candidate, number = name, 2
        while self.named(candidate) is not None:
            candidate, number = f"{name}{between}{number}", number + 1
        return candidate

    def _chosen(self, names: Sequence[str]) -> list[PlanItem]:
        chosen = [item for item in self.items if item.name in names]
        if not chosen or self._loaded.model is None:
            raise ToastError("Select a plan in the table first.")
        return chosen

    # -- adding ------------------------------------------------------------------------------------
    def add(self, name: str, origin: str, plan: ShardingPlan) -> PlanItem:
        """Price a plan of the problem and add it, or replace the plan of the same name.

        Measurements of an equal plan are kept.
        """
        problem = self._loaded.problem
        item = PlanItem(name, origin, plan, problem, cost=price(problem, plan))
        old = self.named(name)
        if old is None:
            self.items = [*self.items, item]
            return item
        if (
            old.plan.key == plan.key
            and old.problem.mesh == problem.mesh
            and old.problem.machine == problem.machine
        ):
            item = item._replace(run=old.run, compiled=old.compiled, note=old.note)
        self.items = [item if other.name == name else other for other in self.items]
        return item

    def bring(self, *items: PlanItem) -> None:
        """Add plans that were priced elsewhere, or replace those of the same names.

        Their actions get the names that colours have by now.
        """
        analysis, names = self._loaded.analysis, {item.name for item in items}
        others = [item for item in self.items if item.name not in names]
        named = [
            item.named_as_in(analysis) if item.plan.program is analysis.program else item
            for item in items
        ]
        self.items = [*others, *named]

    def change_names(self, named: Callable[[Problem], Problem]) -> None:
        """Give colours, in all plans and in what was written of them, the names of ``named``."""
        written = {
            (named(problem), key): plan.renamed(named(problem).analysis, named)
            for (problem, key), plan in self.for_writing.items()
            if problem.analysis.program is self._loaded.analysis.program
        }
        self.for_writing = {**self.for_writing, **written}
        self.items = [
            item._replace(
                plan=item.plan.named_as_in(named(item.problem).analysis),
                problem=named(item.problem),
            )
            for item in self.items
        ]

    def add_unsharded(self) -> None:
        """Add the plan without actions."""
        self.priced = self._loaded.problem
        self.add("unsharded", "every device does everything", replicated(self._loaded.problem))

    def add_typed(self, text: str, name: str = "") -> None:
        """Add a plan from an action list such as ``batch->data, hidden->model``."""
        problem = self._loaded.problem
        if problem is None:
            return
        action_texts = text.replace("\n", ",").replace(";", ",").split(",")
        actions = [action_text.strip() for action_text in action_texts if action_text.strip()]
        with self._notices.guarded():
            if not actions:
                raise InvalidPlan(
                    'type actions as "colour->axis", separated by commas; for instance batch->data'
                )
            if len(actions) > MAX_ACTIONS_TYPED:
                raise InvalidPlan(
                    f"{len(actions)} actions are too many: at most {MAX_ACTIONS_TYPED} are allowed"
                )
            plan = plan_of_actions(problem.space, actions)
            item = self.add(self.free_name(name.strip() or "typed"), "typed", plan)
            listed = ", ".join(item.plan.actions)
            self._notices.say(f"Added the plan {item.name}: {listed}", "good")

    def add_data_parallel(self) -> None:
        """Add the plan with the batch dim along every mesh axis that divides it."""
        problem = self._loaded.problem
        if problem is None:
            return
        with self._notices.guarded():
            plan = plan_of_actions(problem.space, data_parallel(problem))
            self.add("data parallel", "batch dimension", plan)

    def add_usual_plans(self) -> None:
        """Add the plans that experts would try first, and say which of them do not exist."""
        problem = self._loaded.problem
        if problem is None:
            return
        with self._notices.guarded():
            usual = usual_plans(problem)
            for name, actions in usual.items():
                self.add(name, "usual plan", plan_of_actions(problem.space, actions))
            absent = "; ".join(f"no {name} plan: {why}" for name, why in usual.missing.items())
            added = ", ".join(usual) or "none"
            self._notices.say(f"Usual plans added: {added}. {absent}".strip(), "good")

    def remove(self, name: str) -> None:
        """Forget a plan."""
        self.items = [item for item in self.items if item.name != name]

    def toggle(self, name: str) -> None:
        """Show a plan in the pictures, or hide it."""
        self.hidden = self.hidden ^ {name}

    # -- execute -----------------------------------------------------------------------------------

    def start_runs(self, names: Sequence[str], how: plan_job.PlanExecution | None = None) -> None:
        """Execute plans in turns, beside the unsharded program; rows are kept in the store."""
        how = how or plan_job.PlanExecution()
        with self._notices.guarded():
            items = self._chosen(names)
            title = items[0].name if len(items) == 1 else f"{len(items)} plans in turns"
            self._work.start(
                "run",
                f"executing {title} on {how.devices}",
                plan_job.execute,
                self._loaded.model,
                {item.name: item.plan for item in items},
                items[0].problem,
                how,
                context=tuple(items),
            )

    def _executed(self, job: Job) -> None:
        comparison = job.result
        keys = {item.name: item.plan.key for item in self._work.context}
        measured, failed, items = [], [], []
        for item in self.items:
            if keys.get(item.name) == item.plan.key:
                row = comparison[item.name]
                if row.status == "ok":
                    item = item._replace(run=row, note="")
                    measured.append(row)
                else:
                    item = item._replace(note=f"{row.status}: {row.message}")
                    failed.append(row)
            items.append(item)
        self.param.update(items=items, comparison=comparison)
        lines = []
        if measured:
            row_numbers = ", ".join(map(str, comparison.stored_as))
            noun = "rows" if len(comparison.stored_as) > 1 else "row"
            stored = f" Kept as {noun} {row_numbers}." if row_numbers else ""
            names = ", ".join(row.name for row in measured)
            lines.append(f"{names}: executed on {measured[0].devices}.{stored}")
        lines += [
            f"{row.name}: {row.status}: {row.message} Earlier measurements are kept."
            for row in failed
        ]
        level: Level = "good"
        if failed:
            level = "info" if all(row.status == "cancelled" for row in failed) else "error"
        self._notices.say("\n".join([*lines, *comparison.notes]), level)

    # -- compile -----------------------------------------------------------------------------------
    def start_compile(self, name: str, topology: str = "") -> None:
        """Compile a plan for virtual devices, attached GPUs or a TPU slice.

        The TPU slice need not be attached.
        """
        with self._notices.guarded():
            item = self._chosen([name])[0]
            topology = topology or f"cpu:{item.problem.mesh.n_devices}"
            self._work.start(
                "compile",
                f"compiling {name} for {topology}",
                plan_job.compile_one,
                self._loaded.model,
                item.plan,
                topology,
                context=item,
            )

    def _compiled(self, job: Job) -> None:
        compiled, item = job.result, self._work.context
        if compiled.refused:
            note = f"refused by the compiler: {compiled.refusal[:300]}"
        else:
            note = "" if compiled.fits else f"does not fit: {compiled}"
        self.items = [
            other._replace(compiled=compiled, note=note)
            if other.name == item.name and other.plan.key == item.plan.key
            else other
            for other in self.items
        ]
        compile_note = (
            "taken from the cache" if compiled.cached else f"in {compiled.compile_s:.1f} s"
        )
        if compiled.fits:
            elsewhere = compiled.priced_elsewhere(item.problem.machine.name)
            remark = f" It is {elsewhere}." if elsewhere else ""
            self._notices.say(
                f"{item.name}: compiled for {compiled.topology}, {compile_note}.{remark}", "good"
            )
        else:
            self._notices.say(f"{item.name}: {note}", "error")

    # -- export ------------------------------------------------------------------------------------
    def start_export(self, name: str, kind: str) -> None:
        """Write a plan as one of ``EXPORTS``; the result is put into ``exported``.

        It may take a while, during which other work can be started, too.
        """
        with self._notices.guarded():
            if kind not in EXPORTS.values():
                raise InvalidProblem(
                    f"no export is called {kind!r}; there are {', '.join(EXPORTS.values())}"
                )
            item = self._chosen([name])[0]
            is_report = kind == REPORT
            self._exports.start(
                "export",
                f"exporting {name}: {kind}",
                export_report if is_report else plan_job.export,
                self._as_plan(item),
                item.problem,
                name,
                item.compiled if is_report else kind,
            )

    def start_writing(self, name: str) -> None:
        """Find the rules and constraints of a plan; ``written`` gives them then."""
        with self._notices.guarded():
            item = self._chosen([name])[0]
            self._exports.start(
                "write", f"writing {name}", plan_job.write, self._as_plan(item), item.problem
            )

    def written(self, item: PlanItem) -> Written | None:
        """A plan as it is written, if that has been asked for."""
        front = self._as_plan(item).known_front(item.problem)
        return None if front is None else front.within(WITHIN)

    def written_size(self, item: PlanItem) -> int | None:
        """Rules and constraints of a plan as it is written; None if it was not written yet."""
        written = self.written(item)
        return None if written is None else written.size.total

    def _as_plan(self, item: PlanItem) -> Plan:
        """The same plan each time, which keeps what has been written."""
        plan: Plan = self.for_writing.setdefault((item.problem, item.plan.key), Plan.of(item.plan))
        return plan

    def _take_written(self, job: Job) -> None:
        self._notices.say(f"Written: {job.result.size}.", "good")
        self.param.trigger("items")

    def _take_export(self, job: Job) -> None:
        self.exported = job.result
        message = "\n".join(job.result.remarks)
        self._notices.say(
            f"Exported {job.result.file}{': ' if message else ''}{message or '.'}", "good"
        )
        self.param.trigger("items")

    # -- questions ---------------------------------------------------------------------------------
    def ask_why(self, name: str, number: int) -> Future[list[CollectiveReason]] | None:
        """Why a plan has the collective ``number`` of its price, computed in a thread."""
        item = self.named(name)
        return None if item is None else ANSWERS.submit(why, item.problem, item.plan, number)
