"""The trajectories of a search as a table, and the selected one in detail.

The details are its actions, with the price after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.from_search import path_to_compare
from toast_lab.app.plan_words import step_words
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreeState
from toast_lab.search.trace import Simulation
from toast_lab.views.action_table import trajectory_frame
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

KINDS = {"Improvements": "improvements", "Best trajectories": "best", "Last trajectories": "last"}
REFRESH_EVERY_S = 1.0
WIDTHS = {"number": 92, "after": 76, "C(s)": 66, "step": 74, "peak": 84, "fits": 64}


class TrajectoryPane:
    """The table below the curves, and on the right the details of the selected trajectory."""

    def __init__(self, session: Session, state: TreeState, on_pick: Callable[[], None]) -> None:
        self.session, self.state, self._on_pick = session, state, on_pick
        self.picked: Simulation | None = None
        self._rows: list[Simulation] = []
        self._shown: tuple[Any, ...] = ()
        self._at = 0.0
        self._waiting = False
        self.kind = look.switch(
            options=KINDS,
            value="improvements",
            margin=(4, 0, 2, 0),
            height=28,
            width=420,
        )
        session.choices.keep("trajectories, kind", self.kind)
        look.watch(self.kind, lambda: self.refresh(now=True), "value")
        self.table = look.table(
            trajectory_frame([]),
            height=150,
            widths=WIDTHS,
            configuration={"columnDefaults": {"headerSort": True, "minWidth": 50}},
        )
        look.on_row(self.table, self._pick)
        tag = look.text(ESTIMATED, margin=(8, 0, 0, 8))
        self.centre = look.column(pn.Row(self.kind, tag, margin=0, height=34), self.table)
        self._facts = look.text()
        self.tree = look.button("Show it in the tree →")
        self.compare = look.button("Compare this plan →", self._compare)
        self.back = look.button("Back to the best plan", self._forget)
        self.right = look.column(self._facts, self.tree, self.compare, self.back, visible=False)

    def _pick(self, row: int) -> None:
        if row < len(self._rows):
            self.picked = self._rows[row]
            self._show_picked()
            self._on_pick()

    def _forget(self) -> None:
        self.picked = None
        self.table.selection = []
        self._show_picked()
        self._on_pick()

    def _compare(self) -> None:
        if self.picked is not None:
            path_to_compare(self.session, self.picked.actions, f"trajectory {self.picked.index:,}")

    def refresh(self, *, now: bool = False) -> None:
        """Update the table, at most once a second while a search runs, unless ``now`` is set."""
        state = self.state
        best = state.best() if state.shown else None
        shown = (
            id(state.mirror),
            self.kind.value,
            (None if best is None else best.index)
            if self.kind.value == "improvements"
            else state.shown,
        )
        if self.picked is not None and self._shown and self._shown[0] != shown[0]:
            self._forget()  # it belongs to another search
        if shown != self._shown and (
            now or time.monotonic() - self._at > REFRESH_EVERY_S or not state.shown
        ):
            self._shown, self._at = shown, time.monotonic()
            self._rows = state.trajectories(str(self.kind.value))
            self.table.selection = []
            self.table.value = trajectory_frame(self._rows)
        if self._waiting:
            self._show_picked()

    def _show_picked(self) -> None:
        picked = self.picked
        self.right.visible = picked is not None
        if picked is None:
            self._waiting = False
            return
        priced = self.state.facts(picked.actions)
        self._waiting = priced is None
        self.compare.disabled = priced is None or isinstance(priced.cost, str)
        self._facts.object = _words(picked, priced)


def _words(picked: Simulation, priced: Any) -> Safe:
    rows: Facts = [
        ("round", f"{picked.round:,}, after {seconds_text(picked.elapsed_s)}"),
        ("C(s)", f"{picked.score:.4f}; best by then {picked.best_score:.4f}"),
        ("step", seconds_text(picked.time_s)),
        ("peak", bytes_text(picked.peak_bytes) + ("" if picked.fits else ", does not fit")),
    ]
    return join(
        h("h2", f"trajectory {picked.index:,} ", ESTIMATED),
        facts(rows),
        h("h2", "its actions"),
        steps_list(picked.actions, priced),
    )


def steps_list(actions: tuple[str, ...], priced: Any) -> Safe:
    """Actions in order, with the price after each if it is known."""
    if not actions:
        return quiet("none: unsharded")
    steps = priced.steps if priced is not None and len(priced.steps) == len(actions) else ()
    items = []
    for i, action in enumerate(actions):
        price_text = ""
        if steps:
            over_text = "" if steps[i].fits else " over"
            price_text = (
                f"  C {steps[i].score:.3f}, {seconds_text(steps[i].time_s)}, "
                f"{bytes_text(steps[i].peak_bytes)}{over_text}"
            )
        items.append(h("li", step_words(action), h("span", price_text, cls="quiet")))
    elements = [h("ol", *items, cls="chain mono")]
    if priced is None:
        elements.append(quiet("being priced …"))
    elif isinstance(priced.cost, str):
        elements.append(quiet(priced.cost))
    return join(*elements)
