"""Executing, compiling and exporting the selected plan, and what that has found so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.plan_store import EXPORTS
from toast_lab.app.saver import Saver
from toast_lab.app.session import Session
from toast_lab.compare.kept_runs import KeptRun
from toast_lab.cost.problem import Cost
from toast_lab.jobs import plan_job
from toast_lab.jobs.job import Job
from toast_lab.runtime import topologies as known
from toast_lab.runtime.compiled import Compiled
from toast_lab.text import minute_text
from toast_lab.views.compare_table import of_other_machine, ratio_text, spread_text
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    quiet,
    seconds_text,
)

KINDS = ("run", "compile")
DEVICES = {
    "virtual CPU devices, of the mesh": "cpu",
    "attached GPUs": "gpu",
    "attached TPUs": "tpu",
    "any attached devices": "auto",
}
ATTACHED = "attached GPUs"
#: options of a button to the right of a field with a label
BESIDE_A_FIELD: dict[str, Any] = {"width": 84, "margin": (23, 0, 0, 6)}


class Verbs(look.Pane):
    """What can be done with the selected plan: execute, compile and export it.

    Settings stand beside the button that needs them, and those that few people change behind it.
    """

    def __init__(self, session: Session, save: Saver) -> None:
        super().__init__()
        self.session, self.save = session, save
        self.item: PlanItem | None = None
        self.execute = look.button(
            "Execute",
            lambda: self._run([self.item] if self.item else []),
            button_type="primary",
            width=84,
            stylesheets=[look.SLIM_BUTTON],
        )
        self.every = look.button(
            "Execute checked",
            lambda: self._run(session.plans.in_pictures()),
            stylesheets=[look.SLIM_BUTTON],
        )
        self.devices = pn.widgets.Select(name="execute on", options=DEVICES, **look.FIELD)
        self.repeats = pn.widgets.IntInput(
            name="repeats", value=10, start=1, end=1000, **look.FIELD
        )
        self.warmup = pn.widgets.IntInput(
            name="warm-up steps", value=2, start=1, end=100, **look.FIELD
        )
        form = look.column(self.devices, look.row(self.repeats, pn.Spacer(width=8), self.warmup))
        self.how = look.unfolds("settings", form, width=72, margin=(2, 0, 2, 6))
        session.choices.keep("run, settings", self.how)
        self._progress, self._exporting = look.text(), look.text()
        self.topology = pn.widgets.Select(name="compile for", options=[], **look.FIELD)
        self.compile = look.button(
            "Compile",
            lambda: self._act(
                lambda name: session.plans.start_compile(name, str(self.topology.value))
            ),
            **BESIDE_A_FIELD,
        )
        self.kind = pn.widgets.Select(name="export as", options=EXPORTS, **look.FIELD)
        self.export = look.button(
            "Export",
            lambda: self._act(lambda name: session.plans.start_export(name, str(self.kind.value))),
            **BESIDE_A_FIELD,
        )
        for widget in (self.devices, self.repeats, self.warmup, self.topology, self.kind):
            session.choices.keep(f"run, {widget.name}", widget)
        gap = pn.Spacer(width=6)
        self.view = look.column(
            look.row(self.execute, gap, self.every, self.how),
            form,
            self._progress,
            look.row(self.topology, self.compile),
            look.row(self.kind, self.export),
            self._exporting,
            save,
        )
        look.watch(session.work, self.show_job, "changes")
        look.watch(session.exports, self.show_job, "changes")
        # Whoever exports a plan twice wants two files, although both are equal
        session.plans.param.watch(self._save_export, "exported", onlychanged=False)
        self.show_plan(None)

    def _save_export(self, event: Any) -> None:
        if event.new is not None:
            self.save.hand_over(event.new.file, event.new.text)

    def _act(self, act: Callable[[str], None]) -> None:
        if self.item is not None:
            act(self.item.name)

    def _run(self, items: list[PlanItem]) -> None:
        names = [item.name for item in items]
        if names:
            how = plan_job.PlanExecution(
                str(self.devices.value), self.repeats.value or 10, self.warmup.value or 2
            )
            self.session.plans.start_runs(names, how)

    def show_plan(self, item: PlanItem | None) -> None:
        """Act on this plan from now on."""
        self.item = item
        if item is not None:
            options = topologies(item.problem.mesh.n_devices, item.problem.machine.name)
            if options != self.topology.options:
                chosen = (
                    self.topology.value
                    if self.topology.value in options.values()
                    else next(name for name in options.values() if known.is_installed(name))
                )
                self.topology.param.update(options=options, value=chosen)
        self.show_job()

    def show_job(self) -> None:
        """Update the buttons and the progress of running jobs."""
        session, item = self.session, self.item
        shown_count = len(session.plans.in_pictures())
        for button in (self.execute, self.compile):
            button.disabled = session.work.busy or item is None
        # An export runs beside other jobs, so neither has to wait for the other
        self.export.disabled = session.exports.busy or item is None
        self.every.disabled = session.work.busy or not shown_count
        self.every.name = f"Execute {shown_count} checked"
        job = session.work.job
        shown_job = None if job is None or job.kind not in KINDS else job
        export = session.exports.job
        export_words = join() if export is None else progress(export, str(export.message))
        idle = "In separate processes. CPU times say nothing about accelerators."
        for pane, message in (
            (
                self._progress,
                quiet(idle) if shown_job is None else progress(shown_job, _ended(session)),
            ),
            (self._exporting, export_words),
        ):
            if message != pane.object:
                pane.object = message


def progress(job: Job, ended: str) -> Safe:
    """A job's stage and progress bar while it runs; the text ``ended`` once it is over."""
    if not job.running:
        return quiet(ended)
    stage, fraction = _stage([event.data for event in job.events[-1:]])
    bar = h("div", h("div", style=f"width: {fraction:.0%}; height: 4px; {BAR}"), style=TRACK)
    return join(quiet(f"{job.title}: {stage}, {job.elapsed_s:.0f} s"), bar)


BAR = "background: var(--tl-accent, #1f6feb); border-radius: 2px; min-width: 4px"
TRACK = "background: var(--tl-line, #dfe5ec); border-radius: 2px; margin: 0 0 6px"


def topologies(n_devices: int, machine: str) -> dict[str, str]:
    """Compile targets for a plan for ``n_devices`` devices: their topologies by their titles.

    The machine that the plan is priced on comes first, then CPU and attached devices, then the
    other machines; if that machine is ``cpu``, CPU and attached devices come first.
    """
    attached = {f"{n_devices} virtual CPU devices": f"cpu:{n_devices}", ATTACHED: "gpu"}
    described = known.targets(n_devices)
    own_targets = {
        target.title: target.topology for target in described if target.machine == machine
    }
    all_targets = {target.title: target.topology for target in described}
    return (
        {**own_targets, **attached, **all_targets}
        if machine != "cpu"
        else {**attached, **all_targets}
    )


def compiled_rows(result: Any, cost: Cost, machine: str) -> Facts:
    """A compiler's findings on a plan that is priced on ``machine``, as names and values."""
    where = str(getattr(result, "topology", "") or result.devices)
    elsewhere = (
        bool(result.priced_elsewhere(machine))
        if isinstance(result, Compiled)
        else of_other_machine(where, machine)
    )
    if elsewhere:
        where += f", but priced on {machine}"
    rows: Facts = [
        ("for", where),
        ("peak", f"{bytes_text(result.peak_bytes)}, {_ratio(result.peak_bytes, cost.peak_bytes)}"),
    ]
    if getattr(result, "compute_s", None):
        # A ratio of times on two different machines says nothing about the price
        ratio = "" if elsewhere else f", {_ratio(result.compute_s, cost.compute_s)}"
        rows.append(("compute", seconds_text(result.compute_s) + ratio))
    if not isinstance(result, Compiled):
        return rows
    if result.default_memory_bytes is not None and result.device_memory_bytes is not None:
        default_text = bytes_text(result.default_memory_bytes)
        device_text = bytes_text(result.device_memory_bytes)
        fits = (
            f"yes, within the {default_text} of {device_text} that JAX reserves"
            if result.fits
            else h(
                "span",
                f"only beyond the {default_text} of {device_text} that JAX reserves",
                cls="red",
            )
            if result.fits_all_memory
            else h("span", f"no, the device has {device_text}", cls="red")
        )
        rows.append(("fits", fits))
    if result.times is not None:
        summary = (
            f"{seconds_text(result.times.compute_s)} computing, "
            f"{seconds_text(result.times.collective_s)} in collectives"
        )
        left_out = len(result.times.left_out)
        rows.append(("by XLA's tables", summary + f", {left_out} left out" * bool(left_out)))
    return [*rows, *(("note", note) for note in result.notes)]


def _stage(latest: list[Any]) -> tuple[str, float]:
    if not latest:
        return "starting", 0.0
    stage, fraction = getattr(latest[0], "stage", None), getattr(latest[0], "fraction", 0.0)
    if stage is None:
        return str(latest[0])[:120], 0.0
    return f"{stage} {fraction:.0%}" if fraction else str(stage), float(fraction or 0)


def _ended(session: Session) -> str:
    job = session.work.job
    if (
        job.kind != "run"
        or session.plans.comparison is None
        or job.result is not session.plans.comparison
    ):
        return str(job.message)
    return f"{job.message}. {session.plans.comparison.order}."


def outcome_words(item: PlanItem, kept: Sequence[KeptRun]) -> Safe:
    """What executing and compiling a plan gave, now and on earlier days."""
    cost, run, result = item.cost, item.run, item.compiler_result
    elements: list[Any] = [h("p", item.note, cls="red")] if item.note else []
    if run is not None:
        rows: Facts = [
            (
                "step",
                f"{seconds_text(run.median_s)} {spread_text(run.spread_s)}, n = "
                f"{len(run.step_times_s)}",
            ),
            ("of estimate", _of_estimate(run, item)),
            ("compile", seconds_text(run.compile_s)),
            ("devices", f"{run.devices}, {run.device_kind}"),
        ]
        if run.allocator_peak_bytes:
            rows.insert(2, ("peak, allocator", bytes_text(run.allocator_peak_bytes)))
        elements += [
            h("h2", "execution ", h("span", "measured", cls="tag measured")),
            facts(rows),
            _shared_cores(item),
            _certificate(run),
        ]
    if kept:
        elements += [
            h("h2", "kept executions ", h("span", "measured", cls="tag measured")),
            facts([(minute_text(kept_run.time_utc), _kept_text(kept_run)) for kept_run in kept]),
        ]
    if result is not None:
        rows = compiled_rows(result, cost, item.problem.machine.name)
        elements += [h("h2", "compiled ", h("span", "XLA", cls="tag")), facts(rows)]
    return join(*elements, h("h2", "price ", ESTIMATED), facts([("priced by", cost.priced_by)]))


def _kept_text(run: KeptRun) -> str:
    differs = ", DIFFERS from unsharded" if run.passed is False else ""
    return (
        f"{seconds_text(run.median_s)} {spread_text(run.spread_s)}, {run.name}, {run.devices}"
        f"{differs}"
    )


def _shared_cores(item: PlanItem) -> Safe:
    """What the time of the unsharded program on many virtual devices is not."""
    count = item.problem.mesh.n_devices
    if item.name != "unsharded" or count == 1 or not str(item.run.devices).startswith("cpu"):
        return join()
    return quiet(
        f"Each of {count} virtual devices does the whole program, all on this machine's cores: it "
        "is no time of one device, which stands among the kept executions."
    )


def _of_estimate(run: Any, item: PlanItem) -> str:
    machine = item.problem.machine.name
    if of_other_machine(str(run.devices), machine):
        return f"–, the estimate is for {machine}"
    return ratio_text(run.median_s / item.cost.time_s) if item.cost.time_s else "–"


def _ratio(measured: float | None, estimated: float) -> str:
    return f"{ratio_text(measured / estimated)} estimated" if measured and estimated else "–"


def _certificate(run: Any) -> Safe:
    certificate = getattr(run, "certificate", None)
    if certificate is None:
        return quiet("not compared with the unsharded program")
    error, limit = certificate.worst
    verdict = {
        True: "agrees with unsharded",
        False: "DIFFERS from unsharded",
        None: "not compared",
    }[certificate.passed]
    error_text = (
        "" if error is None else f": error {error:.1e} relative to unsharded, tolerance {limit:.1e}"
    )
    return join(
        h("p", h("b", verdict, cls="red" if certificate.passed is False else ""), error_text),
        *[quiet(f"checked: {subject}") for subject in certificate.checked],
        *[quiet(f"not checked: {subject}") for subject in certificate.not_checked],
    )
