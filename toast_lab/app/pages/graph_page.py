"""The coloured dimension graph and its conflicts."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import panel as pn

from toast_lab.app import graph_search, look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.graph_controls import GraphControls
from toast_lab.app.graph_inspector import GraphInspector
from toast_lab.app.pending import Pending, PendingWork
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.views.graph_layout import GraphFilter, GraphLayout, graph_layout
from toast_lab.views.graph_plot import GraphPlot
from toast_lab.views.graph_rows import FOLDED_LEVELS, LEVELS
from toast_lab.views.markup import h, quiet
from toast_lab.views.overlay import PLAN_OVERLAYS, Overlay, overlay

MANY_NAMES = 4000  #: above this, a thread computes the layout, since it takes more than 50 ms
LAYOUTS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="layout")
ALL = "*"
TELL_AFTER_MS = 50


class GraphPage:
    """Levels and filters on the left, lanes in the centre, the selection on the right."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.plot: GraphPlot | None = None
        self._focus: tuple[int, ...] = ()
        self._unfolded: set[str] = set()
        self._drawing = self._words_are_due = False
        self._drawn: Any = None  #: the analysis that is drawn
        self._pending_layout, self._pending_matches = Pending(), Pending()
        self.controls = GraphControls()
        self.inspector = GraphInspector(session)
        self.left, self.right = self.controls.view, self.inspector.view
        self._note = look.text()
        self._pane = look.figure(least_px=300)
        self.zoom = _small("Zoom to selection", self._zoom)
        self.reset = _small("Reset view", lambda: self._see("reset"))
        self.whole = _small("All rows", lambda: self._see("show_all_rows"))
        self.unfold = _small("Unfold", self._unfold_selected)
        self.fold = _small("Fold", self._fold_selected)
        bar = look.row(
            self.zoom, self.reset, self.whole, self.unfold, self.fold, margin=(2, 0), height=26
        )
        self.head = look.row(self._note, figure_menu("dimension graph"), align="center")
        self.centre = look.canvas(bar, self._pane)
        self._watch()
        self._shown()
        self.show_model()

    def _watch(self) -> None:
        controls, session = self.controls, self.session
        look.watch_value(controls.level, self._level_chosen)
        look.watch_value(session.selection, self._show_level, "level")
        for widget in (
            controls.level,
            controls.only,
            controls.singles,
            controls.lanes,
            controls.scopes,
        ):
            look.watch(widget, self.draw, "value")
        look.watch(controls.hue, self.show_hues, "value")
        look.watch(controls.plan, self.show_hues, "value")
        look.watch(controls.hops, self._hops_changed, "value_throttled")
        controls.find.param.watch(lambda event: self._find(event.new or ""), "value")
        look.watch(controls.regex, lambda: self._find(controls.find.value or ""), "value")
        controls.focus.on_click(lambda _: self._refocus(tuple(self.session.selection.names)))
        controls.back.on_click(lambda _: self._refocus(()))
        controls.colours.on_click(self._colour_clicked)

        look.watch(session, self._shown, "step")
        look.watch(session.loaded, self._new_model, "analysis")
        look.watch(session.selection, self.show_selection, "names", "conflicts")
        look.watch(session.loaded, self.show_plans, "problem")
        look.watch(session.plans, self.show_plans, "items")

    # -- drawing -----------------------------------------------------------------------------------
    def _new_model(self) -> None:
        """Handle a new model or new names; a hidden page shows them once the page is visible."""
        if self.session.loaded.analysis is self._drawn:
            return
        if not self._is_renamed():
            self._drawn = self.plot = None
        self._pending_layout.drop()
        self._shown()

    def _is_renamed(self) -> bool:
        """Is the program that is loaded drawn, perhaps with earlier names of its colours?"""
        return (
            self._drawn is not None and self._drawn.program is self.session.loaded.analysis.program
        )

    def _shown(self) -> None:
        step = self.session.step
        for part in self.controls.of_graph:
            part.visible = step != "hand"
        if self.session.loaded.analysis is not self._drawn and step in ("graph", "hand"):
            self.show_model()
        elif self.plot is None and step == "graph":
            self.draw()

    def show_model(self) -> None:
        """Show a new model, starting at the level that suits its size, or new names of colours."""
        analysis = self.session.loaded.analysis
        if analysis is None:
            return
        is_renamed, self._drawn, self._drawing = self._is_renamed(), analysis, True
        if is_renamed:
            self.controls.fill_colours(analysis)
        else:
            self._focus, self._unfolded = (), set()
            self.controls.back.visible = False
            self.controls.fill(analysis, self.session.selection.level)
        self._drawing = False
        self.draw()
        self.show_selection()

    def _level_chosen(self, level: str) -> None:
        """Keep a level that the user chose, for the link; ignore one that the page itself chose."""
        if not self._drawing:
            self.session.selection.level = level

    def _show_level(self, level: str) -> None:
        if level in LEVELS:
            self.controls.level.value = level

    def draw(self) -> None:
        """Lay out and draw the graph with the settings of the controls.

        A large graph is laid out in a thread, and ``tick`` draws the result. While the board is
        shown instead, the picture is dropped, and drawn once it is shown again.
        """
        analysis, controls = self.session.loaded.analysis, self.controls
        if analysis is None or self._drawing:
            return
        if self.session.step == "hand":
            self.plot = self._pane.object = None
            return
        graph_filter = GraphFilter(
            focus=self._focus,
            hops=int(controls.hops.value or 1),
            conflicts_only=controls.only.value,
            singles=controls.singles.value,
            groups=list(controls.lanes.value) or None,
            scopes=list(controls.scopes.value) or None,
        )
        lay_out = functools.partial(
            graph_layout,
            analysis,
            controls.level.value,
            graph_filter,
            unfolded=frozenset(self._unfolded),
        )
        if (
            analysis.names.n > MANY_NAMES
            and controls.level.value == "names"
            and pn.state.curdoc is not None
        ):
            self._note.object = h("p", h("b", "laying out …"), cls="one")
            self._pending_layout.start(analysis, LAYOUTS.submit(lay_out))
        else:
            self._pending_layout.drop()
            self._take(lay_out())

    def _take(self, layout: GraphLayout) -> None:
        shown = self._overlay(layout)
        self.plot = GraphPlot(
            layout, on_select=self.session.selection.select, on_row=self._toggle_row, overlay=shown
        )
        self.plot.select(
            self.session.selection.names, self.session.selection.conflicts, self.inspector.chain()
        )
        self.plot.figure.tags.append("page")
        self._pane.object = self.plot.figure
        self._note.object = h(
            "p",
            h("b", f"{len(layout.nodes):,} nodes"),
            h("span", f" · {layout.note}", cls="quiet", title=layout.note),
            cls="one",
        )
        self.inspector.show_legend(layout.level != "names", shown)
        self._enable()

    def tick(self) -> None:
        """Process the results of threads; called at each tick of the page."""
        done = self._pending_layout.done()
        if done is not None and done.subject is self.session.loaded.analysis:
            self._take(done.future.result())
        matches = self._pending_matches.done()
        if matches is not None:
            self._show_matches(matches)

    # -- focus, folds, view ------------------------------------------------------------------------
    def _refocus(self, names: tuple[int, ...]) -> None:
        controls = self.controls
        if not names and not self._focus:
            self.session.notices.say(
                "Select a name, a conflict or a listing line first, then focus on it."
            )
            return
        self._focus = names
        controls.back.visible = bool(names)
        self._drawing = True
        if names and controls.level.value == "colours":
            controls.level.value = "names"
        self._drawing = False
        self.draw()

    def _hops_changed(self) -> None:
        if self._focus:
            self.draw()

    def _selected_rows(self) -> set[str]:
        """Keys of the foldable rows on which the selected names lie."""
        if self.plot is None:
            return set()
        layout = self.plot.layout
        nodes = {int(layout.node_of[name]) for name in self.session.selection.names} - {-1}
        return {layout.rows[layout.nodes[node].y].key for node in nodes} - {""}

    def _unfold_selected(self) -> None:
        keys = self._selected_rows() - self._unfolded
        self._unfolded |= keys or {ALL}
        self.draw()

    def _fold_selected(self) -> None:
        keys = self._selected_rows() & self._unfolded
        self._unfolded = self._unfolded - keys if keys and ALL not in self._unfolded else set()
        self.draw()

    def _toggle_row(self, key: str) -> None:
        if ALL in self._unfolded and self.plot is not None:
            self._unfolded = {row.key for row in self.plot.layout.rows if row.key}
        self._unfolded ^= {key}
        self.draw()

    def _zoom(self) -> None:
        if self.plot is not None:
            names = self.session.selection.names
            if any(self.plot.layout.node_of[name] >= 0 for name in names):
                look.later(self.plot.zoom_to, names)
            else:
                self.session.notices.say(
                    "None of the selected names is shown here: select others, or show more (level, "
                    "filters, focus)."
                )

    def _see(self, view: str) -> None:
        if self.plot is not None:
            look.later(getattr(self.plot, view))

    def _enable(self) -> None:
        """Enable only buttons that have an effect, and name them by it."""
        rows = self.plot.layout.rows if self.plot is not None else ()
        can_fold = self.controls.level.value in FOLDED_LEVELS
        keys = self._selected_rows()
        some_folded = bool(keys - self._unfolded) and ALL not in self._unfolded
        self.unfold.disabled = not can_fold or not any(row.key and row.run < 0 for row in rows)
        self.unfold.name = "Unfold the selected rows" if some_folded else "Unfold all rows"
        self.fold.disabled = not can_fold or not self._unfolded
        self.fold.name = "Fold the selected rows" if keys & self._unfolded else "Fold all rows"
        self.zoom.disabled = self.controls.focus.disabled = not self.session.selection.names

    # -- hues --------------------------------------------------------------------------------------
    def _overlay(self, layout: GraphLayout) -> Overlay | None:
        controls, session = self.controls, self.session
        item = (
            session.plans.named(controls.plan.value)
            if controls.hue.value in PLAN_OVERLAYS and controls.plan.value
            else None
        )
        plan, cost = (None, None) if item is None else (item.plan, item.cost)
        return overlay(
            analysis=session.loaded.analysis,
            layout=layout,
            subject=controls.hue.value,
            plan=plan,
            cost=cost,
        )

    def show_plans(self) -> None:
        """Handle a change of the plans: update prices, and hues that depend on a plan."""
        session, controls = self.session, self.controls
        self.inspector.show_actions()
        names = [
            item.name
            for item in session.plans.items
            if session.loaded.problem is not None and item.plan.mesh == session.loaded.problem.mesh
        ]
        preferred = "manual" if "manual" in names else names[-1] if names else None
        self._drawing = True
        if names != controls.plan.options:
            chosen = (
                controls.plan.value
                if controls.plan.value in names and controls.plan.value != "unsharded"
                else preferred
            )
            controls.plan.param.update(options=names, value=chosen)
        self._drawing = False
        if controls.hue.value in PLAN_OVERLAYS:
            self.show_hues()

    def show_hues(self) -> None:
        """Colour the markers by the chosen subject, without a new layout."""
        controls = self.controls
        controls.plan.visible = controls.hue.value in PLAN_OVERLAYS
        if self.plot is None or self._drawing or self.session.loaded.analysis is None:
            return
        shown = self._overlay(self.plot.layout)
        look.later(self.plot.colour_by, shown)
        self.inspector.show_legend(self.plot.layout.level != "names", shown)

    # -- selection ---------------------------------------------------------------------------------
    def show_selection(self) -> None:
        """Show the selected names and conflicts in the picture and in words."""
        session = self.session
        if session.loaded.analysis is None:
            return
        if self.plot is not None:
            look.later(self._mark)
        document = pn.state.curdoc
        if document is None or document.session_context is None:
            self._tell()
        elif not self._words_are_due:
            self._words_are_due = True
            document.add_timeout_callback(self._tell, TELL_AFTER_MS)

    def _tell(self) -> None:
        """Show the selection's words and prices, after the picture: the page is laid out anew."""
        self._words_are_due = False
        session = self.session
        if session.loaded.analysis is not None:
            group = session.selection.group
            self.controls.mark_colour(
                session.loaded.analysis.groups[group].name if group is not None else None
            )
            self.inspector.show_selection()
            self._enable()

    def _mark(self) -> None:
        """Mark the current selection, which may have changed since this call was deferred."""
        if self.plot is not None:
            self.plot.select(
                self.session.selection.names,
                self.session.selection.conflicts,
                self.inspector.chain(),
            )

    def _colour_clicked(self, event: Any) -> None:
        analysis = self.session.loaded.analysis
        if analysis is None:
            return
        colour = self.controls.colours.value["colour"].iloc[event.row]
        self.session.selection.select_group(analysis.group_index(colour))

    # -- search ------------------------------------------------------------------------------------
    def _find(self, typed: str) -> None:
        analysis, controls = self.session.loaded.analysis, self.controls
        pattern = typed if controls.regex.value else typed.strip()
        if analysis is None or not pattern:
            controls.found.object = ""
            return
        controls.found.object = quiet("searching …")
        future = graph_search.start(analysis, pattern, regex=controls.regex.value)
        self._pending_matches.start(pattern, future)
        if pn.state.curdoc is None:
            concurrent.futures.wait([future])
        self.tick()

    def _show_matches(self, matches: PendingWork) -> None:
        try:
            names = matches.future.result()
        except ToastError as error:
            self.controls.found.object = h("p", str(error), cls="red", role="alert")
            return
        if not names:
            advice = (
                f'Nothing is called "{matches.subject}". Try a value, an op such as dot_general, '
                "or a colour."
            )
            self.controls.found.object = quiet(advice, role="status")
            return
        shown_count = (
            0
            if self.plot is None
            else sum(1 for name in names if self.plot.layout.node_of[name] >= 0)
        )
        hidden = (
            ""
            if shown_count == len(names)
            else f", {len(names) - shown_count:,} of them not shown here"
        )
        self.controls.found.object = quiet(f"{len(names):,} names{hidden}", role="status")
        self.session.selection.select(names)


def _small(name: str, act: Callable[[], None]) -> Any:
    return look.button(
        name, act, sizing_mode="fixed", height=26, margin=(0, 4, 0, 0), width_policy="fit"
    )
