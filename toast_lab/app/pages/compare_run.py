"""The right side of the comparison.

Execute, compile, export, and what is known of the selected plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.after_plan import EXPORTS
from toast_lab.app.items import PlanItem
from toast_lab.app.markup import Safe, bytes_text, facts, h, join, seconds_text
from toast_lab.app.saver import Saver
from toast_lab.app.session import Session
from toast_lab.cost.problem import Cost
from toast_lab.runtime import gpu_target
from toast_lab.runtime import topologies as known
from toast_lab.runtime.compiled import Compiled

KINDS = ("run", "compile", "export")
DEVICES = {
    "virtual CPU devices, as many as the mesh has": "cpu",
    "attached GPUs": "gpu",
    "attached TPUs": "tpu",
    "whatever is attached": "auto",
}
ATTACHED = "attached GPUs"


class RunPane(pn.viewable.Viewer):
    """Acts on the selected plan.  ``show_plan`` brings it up to date."""

    def __init__(self, session: Session, save: Saver, **params: Any) -> None:
        super().__init__(**params)
        self.session, self.save = session, save
        self.item: PlanItem | None = None
        common: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "margin": (2, 0),
            "stylesheets": [look.INPUT],
        }
        self._head = look.text()
        self.execute = look.button("Execute the selected plan", button_type="primary")
        self.every = look.button("Execute the checked plans in turns")
        self.devices = pn.widgets.Select(name="devices", options=DEVICES, **common)
        self.repeats = pn.widgets.IntInput(name="repeats", value=10, start=1, end=1000, **common)
        self.warmup = pn.widgets.IntInput(name="warm-up steps", value=2, start=1, end=100, **common)
        self._progress = look.text()
        self.compile = look.button("Compile the selected plan")
        self.topology = pn.widgets.Select(name="compile for", options=[], **common)
        self.kind = pn.widgets.Select(name="export as", options=EXPORTS, **common)
        self.export = look.button("Export the selected plan")
        self.remove = look.button("Remove it from the table")
        self._facts = look.text()
        self.execute.on_click(lambda _: self._run([self.item] if self.item else []))
        self.every.on_click(lambda _: self._run(session.in_pictures()))
        self.compile.on_click(
            lambda _: self._act(lambda name: session.start_compile(name, str(self.topology.value)))
        )
        self.export.on_click(
            lambda _: self._act(lambda name: session.start_export(name, str(self.kind.value)))
        )
        self.remove.on_click(lambda _: self._act(session.remove_plan))
        numbers = pn.Row(
            self.repeats, pn.Spacer(width=8), self.warmup, margin=0, sizing_mode="stretch_width"
        )
        self._view = look.side(
            self._head,
            self.execute,
            self.every,
            self._progress,
            self.devices,
            numbers,
            look.text(h("h2", "compile, not run")),
            self.topology,
            self.compile,
            look.text(h("h2", "take it home")),
            self.kind,
            self.export,
            self._facts,
            self.remove,
            save,
            width=300,
        )
        session.param.watch(lambda *_: self.show_job(), "job_changes")
        session.param.watch(
            lambda e: self.save.hand_over(e.new.file, e.new.text) if e.new else None, "exported"
        )
        self.show_plan(None)

    def _act(self, what: Callable[[str], None]) -> None:
        if self.item is not None:
            what(self.item.name)

    def _run(self, items: list[PlanItem]) -> None:
        names = [p.name for p in items]
        if names:
            self.session.start_runs(
                names, str(self.devices.value), self.repeats.value or 10, self.warmup.value or 2
            )

    def show_plan(self, item: PlanItem | None) -> None:
        """Show a plan: its actions, and its numbers, each with where it comes from."""
        self.item = item
        self.remove.disabled = item is None or item.name == "unsharded"
        if item is None:
            self._head.object = h("p", "Select a plan.", cls="quiet")
            self._facts.object = ""
        else:
            self._head.object = _head(item)
            self._facts.object = _plan_words(item)
            n = item.problem.mesh.n_devices
            options = topologies(n, item.problem.machine.name)
            if options != self.topology.options:
                kept = (
                    self.topology.value
                    if self.topology.value in options.values()
                    else next(t for t in options.values() if known.is_installed(t))
                )
                self.topology.param.update(options=options, value=kept)
        self.show_job()

    def show_job(self) -> None:
        """Buttons, and the progress of what runs."""
        session, job, item = self.session, self.session.job, self.item
        shown = len(session.in_pictures())
        for button in (self.execute, self.compile, self.export):
            button.disabled = session.busy or item is None
        self.every.disabled = session.busy or not shown
        self.every.name = f"Execute the {shown} checked plans in turns"
        if job is None or job.kind not in KINDS:
            words: Safe = h(
                "p",
                "Runs in processes of its own; CPU times say nothing about accelerators.",
                cls="quiet",
            )
        elif job.running:
            stage, fraction = _stage([e.data for e in job.events[-1:]])
            bar = h(
                "div", h("div", style=f"width: {fraction:.0%}; height: 4px; {BAR}"), style=TRACK
            )
            words = join([h("p", f"{job.title}: {stage}, {job.elapsed_s:.0f} s", cls="quiet"), bar])
        else:
            words = h("p", _ended(session), cls="quiet")
        if words != self._progress.object:
            self._progress.object = words

    def __panel__(self) -> Any:
        return self._view


BAR = "background: var(--tl-accent, #1f6feb); border-radius: 2px; min-width: 4px"
GPUS_PER_HOST = 8  # as in the boards that are sold
TRACK = "background: var(--tl-line, #dfe5ec); border-radius: 2px; margin: 0 0 6px"


def topologies(n_devices: int, machine: str) -> dict[str, str]:
    """What a plan for so many devices can be compiled for, by what people read.

    First what is the machine that the plan is priced on, then what is here, then the others.
    """
    here = {f"{n_devices} virtual CPU devices": f"cpu:{n_devices}", ATTACHED: "gpu"}
    there: dict[str, tuple[str, str]] = {}
    for name, chip in known.CHIPS.items():
        for dims in chip.slices:
            if known.devices_in(chip, dims) == n_devices:
                there[f"TPU {name}, {dims} chips"] = f"tpu:{name}:{dims}", chip.machine
    for name in gpu_target.NAMES:
        hosts, rest = divmod(n_devices, GPUS_PER_HOST)
        several = hosts > 1 and not rest
        words = f"{n_devices} {name.upper()}" + (f" in {hosts} hosts" if several else "")
        shape = f"{hosts}x{GPUS_PER_HOST}" if several else f"{n_devices}"
        there[words] = f"gpu:{name}:{shape}", gpu_target.find(name).machine
    own = {words: topology for words, (topology, its) in there.items() if its == machine}
    others = {words: topology for words, (topology, _) in there.items()}
    return {**own, **here, **others} if machine != "cpu" else {**here, **others}


def compiled_rows(made: Any, cost: Cost, machine: str) -> list[tuple[str, object]]:
    """What a compiler says of a plan whose price is of this machine, each with its name."""
    where = getattr(made, "topology", "") or made.devices
    if isinstance(made, Compiled) and made.priced_elsewhere(machine):
        where += f", but priced on {machine}"
    rows: list[tuple[str, object]] = [
        ("for", where),
        ("peak", f"{bytes_text(made.peak_bytes)}, {_ratio(made.peak_bytes, cost.peak_bytes)}"),
    ]
    if getattr(made, "compute_s", None):
        rows.append(
            ("compute", f"{seconds_text(made.compute_s)}, {_ratio(made.compute_s, cost.compute_s)}")
        )
    if not isinstance(made, Compiled):
        return rows
    if made.default_memory_bytes is not None and made.device_memory_bytes is not None:
        default, whole = bytes_text(made.default_memory_bytes), bytes_text(made.device_memory_bytes)
        fits = (
            f"yes, into the {default} that JAX takes of {whole}"
            if made.fits
            else h("span", f"only with more than JAX takes, {default} of {whole}", cls="red")
            if made.fits_all_memory
            else h("span", f"no, there are {whole}", cls="red")
        )
        rows.append(("fits", fits))
    if made.times is not None:
        words = (
            f"{seconds_text(made.times.compute_s)} computing, "
            f"{seconds_text(made.times.collective_s)} in collectives"
        )
        left_out = len(made.times.left_out)
        rows.append(("by XLA's tables", words + f", {left_out} left out" * bool(left_out)))
    return rows + [("note", note) for note in made.notes]


def _stage(last: list[Any]) -> tuple[str, float]:
    if not last:
        return "starting", 0.0
    stage, fraction = getattr(last[0], "stage", None), getattr(last[0], "fraction", 0.0)
    if stage is None:
        return str(last[0])[:120], 0.0
    tried = getattr(last[0], "tried", None)
    words = f"{stage} {fraction:.0%}" if fraction else str(stage)
    return words + (
        f", {last[0].units} left of {tried} sets tried" if tried is not None else ""
    ), float(fraction or 0)


def _ended(session: Session) -> str:
    job = session.job
    if job.kind != "run" or session.comparison is None or job.result is not session.comparison:
        return str(job.message)
    return f"{job.message}. {session.comparison.order}."


def _head(item: PlanItem) -> Safe:
    actions = (
        h("ol", *[h("li", a) for a in item.plan.actions[:40]], cls="chain mono")
        if item.plan.actions
        else h("p", "no action", cls="quiet")
    )
    return join([h("h2", item.name), actions])


def _plan_words(item: PlanItem) -> Safe:
    cost, run, made = item.cost, item.run, item.made
    parts: list[Any] = [h("p", item.note, cls="red")] if item.note else []
    if run is not None:
        spread = run.spread_s or 0.0
        rows: list[tuple[str, object]] = [
            (
                "step",
                f"{seconds_text(run.median_s)} ± {seconds_text(spread / 2)}, n = "
                f"{len(run.step_times_s)}",
            ),
            ("of estimate", f"{run.median_s / cost.time_s:.3g}×" if cost.time_s else "–"),
            ("compile", seconds_text(run.compile_s)),
            ("devices", f"{run.devices}, {run.device_kind}"),
        ]
        if run.allocator_peak_bytes:
            rows.insert(2, ("peak, allocator", bytes_text(run.allocator_peak_bytes)))
        parts += [
            h("h2", "execution ", h("span", "measured", cls="tag measured")),
            facts(rows),
            _certificate(run),
        ]
    if made is not None:
        rows = compiled_rows(made, cost, item.problem.machine.name)
        parts += [h("h2", "compiled ", h("span", "XLA", cls="tag")), facts(rows)]
    room = cost.memory_limit_bytes - cost.peak_bytes
    fits: object = (
        f"yes, {bytes_text(room)} free"
        if room >= 0
        else h("span", f"no, {bytes_text(-room)} over", cls="red")
    )
    estimated: list[tuple[str, object]] = [
        ("step", f"{seconds_text(cost.time_s)} ({seconds_text(cost.overlapped_s)} with overlap)"),
        ("compute", seconds_text(cost.compute_s)),
        ("collectives", seconds_text(cost.comm_s)),
        ("peak memory", f"{bytes_text(cost.peak_bytes)} of {bytes_text(cost.memory_limit_bytes)}"),
        ("fits", fits),
        ("on", f"{item.problem.mesh} of {item.problem.machine.name}"),
    ]
    parts += [h("h2", "cost model ", h("span", "estimated", cls="tag estimated")), facts(estimated)]
    predicted = Counter(
        "collective_permute" if c.kind == "permute" else c.kind for c in cost.collectives
    )
    compiled = (
        Counter(c.kind for c in made.collectives if c.axes != ()) if made is not None else None
    )
    kinds = sorted(set(predicted) | set(compiled or {}))
    if kinds:
        heading = "collectives: estimated" + (" / compiled" if compiled is not None else "")
        counts = [
            (k, f"{predicted[k]}" + (f" / {compiled[k]}" if compiled is not None else ""))
            for k in kinds
        ]
        parts += [h("h2", heading), facts(counts)]
    return join(parts)


def _ratio(made: float | None, estimated: float) -> str:
    return "–" if not made or not estimated else f"{made / estimated:.3g}× estimated"


def _certificate(run: Any) -> Safe:
    found = getattr(run, "certificate", None)
    if found is None:
        return h("p", "not compared with the unsharded program", cls="quiet")
    error = found.max_relative_error
    words = {True: "agrees with unsharded", False: "DIFFERS from unsharded", None: "not compared"}[
        found.passed
    ]
    size = (
        ""
        if error is None
        else (f": error {error:.1e} relative to unsharded, tolerance {found.tolerance:.1e}")
    )
    return join(
        [
            h("p", h("b", words, cls="red" if found.passed is False else ""), size),
            *[h("p", f"checked: {c}", cls="quiet") for c in found.checked],
            *[h("p", f"not checked: {c}", cls="quiet") for c in found.not_checked],
        ]
    )
