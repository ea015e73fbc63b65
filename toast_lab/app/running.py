"""What is done with plans after they were found: compile, execute, write as code.

A part of the session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import param

from toast_lab.app import after_plan
from toast_lab.app.items import PlanItem
from toast_lab.app.jobs import Job
from toast_lab.errors import InvalidProblem, ToastError
from toast_lab.explain.why import Reason, why

RUN_LIMIT_S = 1800.0
ANSWERS = ThreadPoolExecutor(1, "about a plan")


class Running(param.Parameterized):
    """Compiled, executed and exported plans, and which of them are in the pictures."""

    hidden = param.Parameter(default=frozenset(), doc="names of plans that are not in the pictures")
    exported = param.Parameter(default=None, doc="the last toast_lab.app.after_plan.Exported")
    comparison = param.Parameter(default=None, doc="the last toast_lab.compare.result.Comparison")

    plans: Any
    model: Any
    say: Callable[..., None]
    guarded: Callable[[], AbstractContextManager[None]]
    plan_named: Callable[[str], PlanItem | None]
    _start: Callable[..., None]

    def toggle(self, name: str) -> None:
        """Take a plan into the pictures, or out of them."""
        self.hidden = self.hidden ^ {name}

    def in_pictures(self) -> list[PlanItem]:
        """The plans that are shown."""
        return [p for p in self.plans if p.name not in self.hidden]

    def _named(self, names: Sequence[str]) -> list[PlanItem]:
        found = [p for p in self.plans if p.name in names]
        if not found or self.model is None:
            raise ToastError("Select a plan in the table first.")
        return found

    # -- execute -----------------------------------------------------------------------------------
    def start_run(
        self, name: str, devices: str = "cpu", repeats: int = 10, warmup: int = 2
    ) -> None:
        """Execute one plan on virtual or attached devices."""
        self.start_runs([name], devices, repeats, warmup)

    def start_runs(
        self, names: Sequence[str], devices: str = "cpu", repeats: int = 10, warmup: int = 2
    ) -> None:
        """Execute plans in turns, beside the unsharded program; rows are kept in the store."""
        with self.guarded():
            items = self._named(names)
            title = items[0].name if len(items) == 1 else f"{len(items)} plans in turns"
            self._start(
                "run",
                f"executing {title} on {devices}",
                functools.partial(self._executed, tuple(items)),
                after_plan.execute,
                self.model,
                {p.name: p.plan for p in items},
                items[0].problem,
                devices,
                repeats,
                warmup,
                RUN_LIMIT_S,
            )

    def _executed(self, items: tuple[PlanItem, ...], job: Job) -> None:
        found = job.result
        keys = {p.name: p.plan.key for p in items}
        went_well, others = [], []
        plans = []
        for p in self.plans:
            if keys.get(p.name) == p.plan.key:
                row = found[p.name]
                if row.status == "ok":
                    p = p._replace(run=row, note="")
                    went_well.append(row)
                else:
                    others.append(row)
                    p = p._replace(note=f"{row.status}: {row.message}")
            plans.append(p)
        with param.parameterized.batch_call_watchers(self):
            self.plans, self.comparison = plans, found
        rows = ", ".join(map(str, found.stored_as))
        kept = f" Kept as {'rows' if len(found.stored_as) > 1 else 'row'} {rows}." if rows else ""
        names = ", ".join(r.name for r in went_well)
        lines = [f"{names}: executed on {r.devices}.{kept}" for r in went_well[:1]]
        lines += [
            f"{r.name}: {r.status}: {r.message} What was measured before stays." for r in others
        ]
        level = (
            "good"
            if not others
            else "info"
            if all(r.status == "cancelled" for r in others)
            else "error"
        )
        self.say("\n".join([*lines, *found.notes]), level)

    # -- compile -----------------------------------------------------------------------------------
    def start_compile(self, name: str, topology: str = "") -> None:
        """Compile a plan for virtual devices, attached GPUs, a TPU slice or described GPUs.

        Neither the slice nor the described GPUs need be there.
        """
        with self.guarded():
            item = self._named([name])[0]
            topology = topology or f"cpu:{item.problem.mesh.n_devices}"
            self._start(
                "compile",
                f"compiling {name} for {topology}",
                functools.partial(self._compiled, item),
                after_plan.compile_one,
                self.model,
                item.plan,
                topology,
            )

    def _compiled(self, item: PlanItem, job: Job) -> None:
        made = job.result
        note = (
            f"refused by the compiler: {made.refusal[:300]}"
            if made.refused
            else ""
            if made.fits
            else f"does not fit: {made}"
        )
        self.plans = [
            p._replace(compiled=made, note=note)
            if p.name == item.name and p.plan.key == item.plan.key
            else p
            for p in self.plans
        ]
        how = "taken from the cache" if made.cached else f"in {made.compile_s:.1f} s"
        words = f"{item.name}: compiled for {made.topology}, {how}."
        if elsewhere := made.priced_elsewhere(item.problem.machine.name):
            words += f" It is {elsewhere}."
        self.say(words if made.fits else f"{item.name}: {note}", "good" if made.fits else "error")

    # -- export ------------------------------------------------------------------------------------
    def start_export(self, name: str, kind: str) -> None:
        """Write a plan as one of ``after_plan.EXPORTS``; it ends up in ``exported``."""
        with self.guarded():
            if kind not in after_plan.EXPORTS.values():
                raise InvalidProblem(
                    f"no export is called {kind!r}; there are "
                    f"{', '.join(after_plan.EXPORTS.values())}"
                )
            item = self._named([name])[0]
            self._start(
                "export",
                f"exporting {name}: {kind}",
                self._export_made,
                after_plan.export,
                self.model,
                item.plan,
                name,
                kind,
            )

    def _export_made(self, job: Job) -> None:
        self.exported = job.result
        self.say("\n".join([f"Made {job.result.file}.", *job.result.words]), "good")

    # -- questions ---------------------------------------------------------------------------------
    def ask_why(self, name: str, number: int) -> Future[list[Reason]] | None:
        """Why a plan has a collective of its price, worked out in a thread."""
        item = self.plan_named(name)
        return None if item is None else ANSWERS.submit(why, item.problem, item.plan, number)
