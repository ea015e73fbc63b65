"""The tree of a search: blocks and their table in the centre, the selected step on the right."""

from __future__ import annotations

import math
import time
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.from_search import path_to_compare, path_to_graph
from toast_lab.app.pages.search_trajectories import steps_list
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreePlace, TreeState
from toast_lab.views.action_table import action_frame
from toast_lab.views.icicle import TINTS, IciclePlot, IcicleScene
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

TABLE_EVERY_S = 3.0
TABLE_HELP = (
    "N: simulations through the action here. Q: their mean C(s). P: how much the action improved "
    "plans wherever it was taken, 1 for the best. UCT: the upper confidence bound of the tree "
    "search, worked out from these."
)
HELP = (
    "Click a block to select it, click it again to begin the picture with it; click a grey block "
    "to unfold it. Visits are simulations that went through a step or ended in it."
)


class TreePane:
    """The tree as of ``state.at``. ``refresh`` is called at each tick of the page.

    Without a session there are no buttons to the explorer's other pages.
    """

    def __init__(self, state: TreeState, session: Session | None = None) -> None:
        self.state, self._session = state, session
        self.plot = IciclePlot(self._tapped)
        common: dict[str, Any] = {"margin": (0, 8, 0, 0), "stylesheets": [look.INPUT]}
        self.tint = pn.widgets.Select(
            name="tint",
            options={value: key for key, value in TINTS.items()},
            width=132,
            description=HELP,
            **common,
        )
        self.widest = pn.widgets.IntInput(
            name="blocks a step",
            value=8,
            start=1,
            end=40,
            width=96,
            description="Children drawn for each step, the most visited first; the others share "
            "one grey block.",
            **common,
        )
        button_options: dict[str, Any] = {
            "height": 30,
            "margin": (18, 4, 0, 0),
            "stylesheets": [look.SLIM_BUTTON],
        }
        self.zoom = look.button(
            "Zoom in", lambda: self._move(state.zoom), width=74, **button_options
        )
        self.up = look.button(
            "Up one level", lambda: self._move(state.up), width=104, **button_options
        )
        self.top = look.button(
            "Whole tree", lambda: self._move(state.top), width=90, **button_options
        )
        look.watch(self.tint, self.draw, "value")
        look.watch(self.widest, self.draw, "value")
        self._way = look.text(height=22)
        self.table = look.table(
            action_frame([]),
            height=180,
            configuration={"columnDefaults": {"headerSort": True, "minWidth": 70}},
        )
        self.table.on_click(self._row)
        self._heading = look.text()
        self._children: list[int] = []
        menu = figure_menu("search tree", margin=0)
        self.centre = look.filled_column(
            pn.Row(self.tint, self.widest, self.zoom, self.up, self.top, margin=0, height=52),
            look.row(self._way, menu, height=28),
            look.figure(self.plot.figure, least_px=200),
            self._heading,
            self.table,
            stylesheets=[look.SCROLLING],
        )
        self._facts = look.text()
        self.compare = look.button("Compare this plan →")
        self.graph = look.button("Go on by hand in the graph →")
        self.compare.visible = self.graph.visible = session is not None
        if session is not None:
            self.compare.on_click(
                lambda _: path_to_compare(session, self._plan, f"{session.searches.method} step")
            )
            self.graph.on_click(lambda _: path_to_graph(session, self._plan))
        self.right = look.column(self._facts, self.compare, self.graph)
        self._plan: tuple[str, ...] = ()
        self._table_at, self._drawn, self._waiting, self._listed = 0.0, (0, 0), False, False
        self.draw()

    # -- moving ------------------------------------------------------------------------------------
    def _tapped(self, block: int) -> None:
        if self.plot.scene is not None:
            self.state.tap(self.plot.scene, block)
            self.draw()

    def _move(self, step: Any) -> None:
        step()
        self.draw()

    def _row(self, event: Any) -> None:
        # A row without a child was never tried
        if event.row < len(self._children) and self._children[event.row] >= 0:
            self.state.selected = self._children[event.row]
            self.draw()

    # -- showing -----------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Redraw if there are new simulations; show a price once it is known."""
        self.state.count()
        if self._drawn != (id(self.state.mirror), self.state.counted):
            self.draw(live=True)
        elif self._waiting:
            self._show_place()

    def draw(self, *, live: bool = False) -> None:
        """Draw the tree in its current state.

        With ``live``, the table is updated at most once every ``TABLE_EVERY_S`` seconds.
        """
        state = self.state
        self._drawn = (id(state.mirror), state.counted)
        scene = state.scene(str(self.tint.value), int(self.widest.value or 8))
        look.later(*((self.plot.show, scene) if scene is not None else (self.plot.clear,)))
        self._way.object = self._path_words(scene)
        self.up.disabled = self.top.disabled = not state.root
        self.top.disabled = not (state.root or state.opened)
        self.zoom.disabled = state.selected == state.root
        if not live or time.monotonic() - self._table_at > TABLE_EVERY_S or not state.shown_count:
            self._table_at = time.monotonic()
            self._fill()
        self._show_place()

    def _fill(self) -> None:
        """Fill the table with the selected step's actions; untried ones follow once known."""
        place = self.state.place()
        priced = None if place is None else self.state.facts(place.plan)
        self._listed = priced is not None
        self._children, rows = self.state.action_rows(priced.legal if priced is not None else ())
        self.table.value = action_frame(rows)

    def _path_words(self, scene: IcicleScene | None) -> Safe:
        if scene is None:
            return h(
                "p", "The tree grows while a search runs. Run one, or step it.", cls="quiet one"
            )
        mirror, state = self.state.mirror, self.state
        assert mirror is not None
        with mirror.lock:
            labels = [mirror.places.label(name) for name in mirror.places.chain(state.root)]
        simulations_text = f"{state.shown:,} simulations"
        if mirror.n < state.source.simulations and state.at is None and mirror.n == state.shown:
            simulations_text = f"the first {simulations_text}"
        return h(
            "p",
            h("b", " › ".join(labels)),
            h("span", f"  {simulations_text}", cls="quiet"),
            cls="one",
            title=" › ".join(labels),
        )

    def _show_place(self) -> None:
        place = self.state.place()
        self._plan = () if place is None else place.plan
        priced = None if place is None else self.state.facts(place.plan)
        self._waiting = place is not None and priced is None
        price = None if priced is None else priced.cost
        if priced is not None and not self._listed:
            self._fill()
        self.compare.disabled = (
            place is None or not place.plan or isinstance(price, str) or price is None
        )
        self.graph.disabled = self.compare.disabled or not self._has_current_mesh()
        self._facts.object = _place_words(place, priced)
        label = "unsharded" if place is None else place.label
        self._heading.object = h(
            "h2", f"actions at {label} (click a heading to sort)", title=TABLE_HELP
        )

    def _has_current_mesh(self) -> bool:
        """Does the search's problem have the mesh of the explorer's current problem?"""
        searched = self.state.source.problem
        problem = None if self._session is None else self._session.loaded.problem
        return searched is not None and problem is not None and searched.mesh == problem.mesh


def _place_words(place: TreePlace | None, priced: Any) -> Safe:
    if place is None:
        return join(h("h2", "no tree yet"), quiet(HELP))
    rows: Facts = [
        ("action", h("span", place.label, cls="mono")),
        ("depth", str(place.depth)),
        ("N, visits", f"{place.visits:,}, {place.ended:,} ended here"),
        ("Q, mean C(s)", f"{place.mean_score:.4f}"),
        ("best C(s)", f"{place.best_score:.4f}"),
    ]
    if place.prior is not None:
        rows.append(
            (
                "prior",
                f"C(s) {place.prior[1]:.4f}, mean of the action wherever taken "
                f"({place.prior[0]:,}×)",
            )
        )
    if place.method_counts is not None and math.isfinite(place.method_counts[1]):
        rows.append(
            (
                "method's own",
                f"N {place.method_counts[0]:,}, mean reward {place.method_counts[1]:.4f}",
            )
        )
    elements: list[Any] = [
        h("h2", "selected step"),
        facts(rows),
        h("h2", "plan so far ", ESTIMATED),
        steps_list(place.plan, priced),
    ]
    if priced is not None and not isinstance(priced.cost, str):
        price = priced.cost
        fits = "" if price.fits else ", does not fit"
        memory = f"{bytes_text(price.peak_bytes)} of {bytes_text(price.memory_limit_bytes)}{fits}"
        elements.append(facts([("step", seconds_text(price.time_s)), ("peak memory", memory)]))
    return join(*elements)
