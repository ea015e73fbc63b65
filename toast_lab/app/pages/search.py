"""Step 4: watch a search, hold it, step it, keep what it found."""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.jobs import JobState
from toast_lab.app.markup import Safe, bytes_text, facts, h, join, seconds_text
from toast_lab.app.session import Session
from toast_lab.cost.machines import MACHINES
from toast_lab.search.methods import METHODS, SENTENCES
from toast_lab.text import gap_text
from toast_lab.views.search_curves import Point, SearchCurves, shown_frame


class SearchPage(pn.viewable.Viewer):
    """Settings and controls left, curves in the centre, the best plan right."""

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        common: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (3, 0), "stylesheets": [look.INPUT]}
        self.mesh = pn.widgets.TextInput(name="mesh (axis=size, ...)", value=session.mesh, **common)
        self.machine = pn.widgets.Select(name="machine", options=list(MACHINES), value=session.machine, **common)
        self.memory = pn.widgets.FloatInput(
            name="memory limit a device, GiB", placeholder="the machine's", value=None, start=0.0, **common
        )
        self.method = pn.widgets.Select(name="method", options=list(METHODS), value=session.method, **common)
        self._sentence = look.text()
        self.method.param.watch(lambda *_: self._describe(), "value")
        self._describe()
        self.seconds = pn.widgets.FloatInput(
            name="budget, seconds", value=session.seconds, start=0.5, end=86400.0, step=5.0, **common
        )
        self.seed = pn.widgets.IntInput(name="seed", value=session.seed, start=0, **common)
        self.run = look.button("Run the search", button_type="primary")
        self.pause = look.button("Pause", disabled=True)
        self.step = look.button("Step", description="one simulation, then stand still")
        self.round = look.button("Round", description="one round of simulations, then stand still")
        self.stop = look.button("Stop and keep the best", disabled=True)
        self.run.on_click(lambda _: self._run())
        self.pause.on_click(lambda _: session.pause_search())
        self.step.on_click(lambda _: self._step())
        self.round.on_click(lambda _: self._step(whole_round=True))
        self.stop.on_click(lambda _: session.stop_search())
        pair = pn.Row(self.seconds, pn.Spacer(width=8), self.seed, margin=0, sizing_mode="stretch_width")
        gap = pn.Spacer(width=6)
        holds = pn.Row(self.pause, gap, self.step, gap.clone(), self.round, margin=0, sizing_mode="stretch_width")
        self.left = look.side(
            look.text(h("h2", "problem")),
            self.mesh,
            self.machine,
            self.memory,
            look.text(h("h2", "search")),
            self.method,
            self._sentence,
            pair,
            self.run,
            holds,
            self.stop,
            width=290,
        )
        self._curves_pane = pn.pane.Bokeh(sizing_mode="stretch_both", margin=0, min_height=320)
        self._twin = look.table(shown_frame([]), height=190, sizing_mode="stretch_width", selectable=False)
        self._title = look.text()
        self.centre = pn.Column(
            self._title,
            self._curves_pane,
            look.text(h("h2", "improvements (the same as a table)")),
            self._twin,
            sizing_mode="stretch_both",
            stylesheets=[look.CANVAS],
            margin=0,
        )
        self._facts = look.text()
        go = look.button("Compare with other plans →")
        go.on_click(lambda _: setattr(session, "step", "compare"))
        self.right = look.side(self._facts, go, width=300)
        self._twin_at = -1
        for name, widget in (("mesh", self.mesh), ("machine", self.machine), ("memory_gib", self.memory)):
            widget.param.watch(lambda e, name=name: self._problem(name, e.new), "value")
        session.param.watch(lambda *_: self._new_problem(), "problem")
        session.param.watch(lambda *_: self.refresh(), ["job_changes", "plans"])
        self._new_problem()

    def _problem(self, name: str, value: Any) -> None:
        self.session.set_problem(**{name: value or None if name == "memory_gib" else value})
        kept = getattr(self.session, name)
        widget = {"mesh": self.mesh, "machine": self.machine, "memory_gib": self.memory}[name]
        if widget.value != kept and not (name == "memory_gib" and not kept):
            widget.value = kept  # refused: the field shows what is in force

    def _new_problem(self) -> None:
        problem = self.session.problem
        self.curves = (
            SearchCurves(problem.memory_limit_bytes, *problem.baseline) if problem is not None else SearchCurves()
        )
        self.curves.append(self.session.points)
        self._curves_pane.object = self.curves.root
        self._twin_at = -1
        self.refresh()

    def _settings(self) -> None:
        self.session.param.update(
            method=self.method.value, seconds=self.seconds.value or 20.0, seed=self.seed.value or 0
        )

    def _run(self) -> None:
        self._settings()
        self.session.start_search()
        self._new_problem()

    def _describe(self) -> None:
        self._sentence.object = h("p", SENTENCES.get(self.method.value, ""), cls="quiet")

    def _step(self, *, whole_round: bool = False) -> None:
        if not self.session.busy:
            self._settings()
            self._new_problem()
        if whole_round:
            self.session.step_round()
        else:
            self.session.step_search()

    def feed(self, points: list[Point]) -> None:
        """New simulations for the curves."""
        shown = self.curves.source.data["simulation"]
        if points and len(shown) and shown[-1] >= points[0].simulation:
            self._new_problem()  # another search, or what is shown already
        else:
            look.later(self.curves.append, points)

    def refresh(self) -> None:
        """Buttons, numbers and the table twin."""
        session, job = self.session, self.session.job
        searching = job is not None and job.kind == "search" and job.running
        paused = searching and job is not None and job.state is JobState.PAUSED
        self.run.disabled = session.busy
        self.pause.disabled = self.stop.disabled = not searching
        self.step.disabled = self.round.disabled = session.busy and not searching
        self.pause.name = "Go on" if paused else "Pause"
        problem = session.problem
        self._title.object = h(
            "p",
            h("b", problem.describe() if problem is not None else "no model"),
            " ",
            h("span", "estimated", cls="tag estimated"),
            h("span", f"  {session.simulations:,} simulations", cls="quiet"),
        )
        improved = sum(1 for p in session.points if p.improved)
        if improved != self._twin_at:
            self._twin_at = improved
            self._twin.value = shown_frame(session.points)
        self._facts.object = self._words(searching, paused)

    def _words(self, searching: bool, paused: bool) -> Safe:
        session, problem, job = self.session, self.session.problem, self.session.job
        if problem is None or not session.points:
            state = (
                "The worker starts; the first simulations come in a few seconds."
                if searching
                else (
                    "Run the search, or step it one simulation at a time. "
                    "The curves show the best plan so far; grey dots are what was tried."
                )
            )
            return join([h("h2", "search"), h("p", state, cls="quiet")])
        last = session.points[-1]
        base = problem.baseline
        state = "paused" if paused else "searching" if searching else "ended"
        rows = [
            ("state", f"{state}, {job.elapsed_s:.1f} s" if job is not None else state),
            ("simulations", f"{session.simulations:,}"),
            (
                "best step",
                f"{seconds_text(last.best_s)}, {base[0] / last.best_s:.2f}× unsharded speed" if last.best_s else "–",
            ),
            ("best peak", f"{bytes_text(last.best_bytes)} of {bytes_text(problem.memory_limit_bytes)}"),
            ("unsharded", f"{seconds_text(base[0])}, {bytes_text(base[1])}"),
        ]
        if session.search_gap is not None:
            rows.insert(1, ("proof", gap_text(session.search_gap)))
        actions = [h("li", a) for a in session.best_actions]
        return join(
            [
                h("h2", "search ", h("span", "estimated", cls="tag estimated")),
                facts(rows),
                h("h2", "actions of the best plan"),
                h("ol", *actions, cls="chain mono")
                if actions
                else h("p", "none: unsharded is the best so far", cls="quiet"),
                h("p", session.search_note, cls="quiet"),
            ]
        )

    def __panel__(self) -> Any:
        return pn.Row(self.left, self.centre, self.right)
