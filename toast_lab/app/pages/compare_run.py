"""The right side of the comparison page.

It executes, compiles and exports the selected plan, and shows its facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.plan_store import EXPORTS
from toast_lab.app.plan_words import plan_words
from toast_lab.app.saver import Saver
from toast_lab.app.session import Session
from toast_lab.cost.problem import Cost
from toast_lab.jobs import plan_job
from toast_lab.jobs.job import Job
from toast_lab.runtime import topologies as known
from toast_lab.runtime.compiled import Compiled
from toast_lab.views.compare_table import of_other_machine, ratio_text
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


class RunPane(look.Pane):
    """Actions on the selected plan, and its facts. ``show_plan`` brings it up to date."""

    def __init__(self, session: Session, save: Saver) -> None:
        super().__init__()
        self.session, self.save = session, save
        self.item: PlanItem | None = None
        common: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "margin": (2, 0),
            "stylesheets": [look.INPUT],
        }
        self._head = look.text()
        self.execute = look.button(
            "Execute the selected plan",
            lambda: self._run([self.item] if self.item else []),
            button_type="primary",
        )
        self.every = look.button(
            "Execute the checked plans in turns", lambda: self._run(session.plans.in_pictures())
        )
        self.devices = pn.widgets.Select(name="devices", options=DEVICES, **common)
        self.repeats = pn.widgets.IntInput(name="repeats", value=10, start=1, end=1000, **common)
        self.warmup = pn.widgets.IntInput(name="warm-up steps", value=2, start=1, end=100, **common)
        self._progress, self._exporting = look.text(), look.text()
        self.compile = look.button(
            "Compile the selected plan",
            lambda: self._act(
                lambda name: session.plans.start_compile(name, str(self.topology.value))
            ),
        )
        self.topology = pn.widgets.Select(name="compile for", options=[], **common)
        self.kind = pn.widgets.Select(name="export as", options=EXPORTS, **common)
        self.export = look.button(
            "Export the selected plan",
            lambda: self._act(lambda name: session.plans.start_export(name, str(self.kind.value))),
        )
        self.remove = look.button(
            "Remove it from the table", lambda: self._act(session.remove_plan)
        )
        for widget in (self.devices, self.repeats, self.warmup, self.topology, self.kind):
            session.choices.keep(f"run, {widget.name}", widget)
        self._facts = look.text()
        numbers = look.row(self.repeats, pn.Spacer(width=8), self.warmup)
        self.view = look.side(
            self._head,
            self.execute,
            self.every,
            self._progress,
            self.devices,
            numbers,
            look.text(h("h2", "compile only")),
            self.topology,
            self.compile,
            look.text(h("h2", "export")),
            self.kind,
            self.export,
            self._exporting,
            self._facts,
            self.remove,
            save,
            width=300,
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
        """Show a plan: its actions, and its numbers with the origin of each."""
        self.item = item
        self.remove.disabled = item is None or item.name == "unsharded"
        if item is None:
            self._head.object = quiet("Select a plan.")
            self._facts.object = ""
        else:
            self._head.object = _head(item)
            self._facts.object = _plan_words(item)
            count = item.problem.mesh.n_devices
            options = topologies(count, item.problem.machine.name)
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
        checked = "checked plan" if shown_count == 1 else f"{shown_count} checked plans in turns"
        self.every.name = f"Execute the {checked}"
        job = session.work.job
        shown_job = None if job is None or job.kind not in KINDS else job
        idle = "Runs in separate processes. CPU times say nothing about accelerators."
        for pane, message in (
            (
                self._progress,
                quiet(idle) if shown_job is None else progress(shown_job, _ended(session)),
            ),
            (self._exporting, _exported(session.exports.job)),
        ):
            if message != pane.object:
                pane.object = message


def progress(job: Job, ended: str) -> Safe:
    """A job's stage and progress bar while it runs; the text ``ended`` once it is over."""
    if not job.running:
        return quiet(ended)
    stage, fraction = _stage([event.data for event in job.events[-1:]])
    bar = h("div", h("div", style=f"width: {fraction:.0%}; height: 4px; {BAR}"), style=TRACK)
    return join([quiet(f"{job.title}: {stage}, {job.elapsed_s:.0f} s"), bar])


def _exported(job: Job | None) -> Safe:
    return join([]) if job is None else progress(job, str(job.message))


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


def _head(item: PlanItem) -> Safe:
    return join([h("h2", item.name), plan_words(item.plan)])


def _plan_words(item: PlanItem) -> Safe:
    cost, run, result = item.cost, item.run, item.compiler_result
    elements: list[Any] = [h("p", item.note, cls="red")] if item.note else []
    if run is not None:
        spread = run.spread_s or 0.0
        rows: Facts = [
            (
                "step",
                f"{seconds_text(run.median_s)} ± {seconds_text(spread / 2)}, n = "
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
    if result is not None:
        rows = compiled_rows(result, cost, item.problem.machine.name)
        elements += [h("h2", "compiled ", h("span", "XLA", cls="tag")), facts(rows)]
    free_bytes = cost.memory_limit_bytes - cost.peak_bytes
    fits: object = (
        f"yes, {bytes_text(free_bytes)} free"
        if free_bytes >= 0
        else h("span", f"no, {bytes_text(-free_bytes)} over", cls="red")
    )
    estimated: Facts = [
        ("step", f"{seconds_text(cost.time_s)} ({seconds_text(cost.overlapped_s)} with overlap)"),
        ("compute", seconds_text(cost.compute_s)),
        ("collectives", seconds_text(cost.comm_s)),
        ("priced by", cost.priced_by),
        ("peak memory", f"{bytes_text(cost.peak_bytes)} of {bytes_text(cost.memory_limit_bytes)}"),
        ("fits", fits),
        ("on", f"{item.problem.mesh} of {item.problem.machine.name}"),
    ]
    elements += [h("h2", "cost model ", ESTIMATED), facts(estimated)]
    predicted = Counter(
        "collective_permute" if collective.kind == "permute" else collective.kind
        for collective in cost.collectives
    )
    compiled = (
        Counter(collective.kind for collective in result.collectives if collective.axes != ())
        if result is not None
        else None
    )
    kinds = sorted(set(predicted) | set(compiled or {}))
    if kinds:
        heading = "collectives: estimated" + (" / compiled" if compiled is not None else "")
        counts = [
            (kind, f"{predicted[kind]}" + (f" / {compiled[kind]}" if compiled is not None else ""))
            for kind in kinds
        ]
        elements += [h("h2", heading), facts(counts)]
    return join(elements)


def _shared_cores(item: PlanItem) -> Safe:
    """What the time of the unsharded program on many virtual devices is not."""
    count = item.problem.mesh.n_devices
    if item.name != "unsharded" or count == 1 or not str(item.run.devices).startswith("cpu"):
        return join([])
    return quiet(
        f"Each of {count} virtual devices does the whole program, all on this machine's cores: it "
        "is no time of one device, which Runs has."
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
    error = certificate.max_relative_error
    verdict = {
        True: "agrees with unsharded",
        False: "DIFFERS from unsharded",
        None: "not compared",
    }[certificate.passed]
    error_text = (
        ""
        if error is None
        else (f": error {error:.1e} relative to unsharded, tolerance {certificate.tolerance:.1e}")
    )
    return join(
        [
            h("p", h("b", verdict, cls="red" if certificate.passed is False else ""), error_text),
            *[quiet(f"checked: {subject}") for subject in certificate.checked],
            *[quiet(f"not checked: {subject}") for subject in certificate.not_checked],
        ]
    )
