"""The conflict board, and the effect of every action by hand on the program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import panel as pn

from toast_lab.app import look
from toast_lab.app.beside import BesidePane
from toast_lab.app.board_pane import BoardPane
from toast_lab.app.history_pane import HistoryPane
from toast_lab.app.items import MANUAL, PlanItem
from toast_lab.app.listing_pane import listing_pane
from toast_lab.app.pending import Pending
from toast_lab.app.session import Session
from toast_lab.app.tiles_pane import TilesPane, tensors_of
from toast_lab.cost.problem import Problem
from toast_lab.lowering.listing import ListingLine, listing_lines
from toast_lab.pipeline import replicated
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.views.by_hand_tables import collectives_frame
from toast_lab.views.local_lines import LocalLine, local_lines
from toast_lab.views.markup import h, one_line, quiet

MANY_OPS = 1500  #: above this, a thread writes the listing, since it takes more than 50 ms
LISTINGS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="listing")
COLLECTIVE_COLUMNS = ["collective", "axes", "line", "number", "action", "time", "bytes"]


class HandPage:
    """The board above; the listing of one device, costs and actions, collectives, devices below.

    It is the second view of the page that shows the graph, whose inspector chooses the sides.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._stale = True
        self._problem: Problem | None = None
        self._before: list[ListingLine] = []
        self._lines: list[ListingLine] = []
        self._shown: tuple[LocalLine, ...] = ()
        self._plan: ShardingPlan | None = None
        self._pending_listing = Pending()
        self.board = BoardPane(session)
        self.history = HistoryPane(session)
        look.watch(self.history, self._show_collectives, "at")
        self.beside = BesidePane(session)
        self.listing = listing_pane()
        look.watch_value(self.listing, self._line_picked, "picked")
        self._note = look.text()
        self.short = pn.widgets.Checkbox(
            name="collectives and changes only",
            value=False,
            margin=(0, 4),
            width=210,
            stylesheets=[look.INPUT],
        )
        look.watch(self.short, self._show_lines, "value")
        head = look.row(self._note, self.short, margin=(3, 0, 0, 0), height=24)
        self.collectives = look.table(COLLECTIVE_COLUMNS, selectable=False, layout="fit_data_table")
        self._tiles: TilesPane | None = None
        self._parts: list[tuple[str, Callable[[], list[Any]]]] = [
            ("One device's listing", lambda: [head, self.listing]),
            ("Plan by hand", lambda: [self.history]),
            ("Collectives", lambda: [self.collectives]),
            ("Devices", lambda: [self.tiles]),
            ("Beside the search", lambda: [self.beside]),
        ]
        self._bodies = [look.filled_column() for _ in self._parts]
        self.tabs = look.tabs(
            *[(title, body) for (title, _), body in zip(self._parts, self._bodies, strict=True)]
        )
        look.watch(self.tabs, self._open_tab, "active")
        session.choices.keep("hand, tab", self.tabs, "active")
        self._open_tab()
        self.upper = look.filled_column(self.board, scroll=True, stylesheets=[look.CANVAS, UPPER])
        self.lower = pn.Column(
            self.tabs,
            sizing_mode="stretch_both",
            margin=(6, 0, 0, 0),
            stylesheets=[look.CANVAS, LOWER],
        )
        self._case = look.text(visible=False, margin=(0, 4, 2, 4))
        self._wait_words = look.text(visible=False, margin=(12, 4))
        self.centre = look.filled_column(self._case, self._wait_words, self.upper, self.lower)
        look.watch(session, self._show_case, "solved")
        look.watch(session, self._changed, "step")
        look.watch(session.loaded, self._changed, "problem")
        look.watch(session.plans, self._changed, "items")
        look.watch(session.selection, self._selected, "names", "conflicts")
        look.watch(session.work, self._job_changed, "changes")
        self._show_case()
        self.refresh()
        session.choices.keep("hand, short listing", self.short)

    # -- showing -----------------------------------------------------------------------------------
    def _open_tab(self) -> None:
        """Fill the open tab; tabs that are never opened are neither built nor sent."""
        body = self._bodies[self.tabs.active]
        if not body.objects:
            body.objects = self._parts[self.tabs.active][1]()

    @property
    def tiles(self) -> TilesPane:
        """The pane with each device's part of a tensor, created on first use."""
        if self._tiles is None:
            self._tiles = TilesPane(self._plan_shown, self._tensors)
            self._show_tiles()
        return self._tiles

    def _item(self) -> PlanItem | None:
        """The plan by hand, or the unsharded program before its first action."""
        session = self.session
        return session.plans.named(MANUAL if session.hand.actions else "unsharded")

    def _plan_shown(self) -> ShardingPlan | None:
        item = self._item()
        return None if item is None else item.plan

    def _tensors(self) -> list[int]:
        selection = self.session.selection
        return tensors_of(self.session.loaded.analysis, selection.names, selection.conflicts)

    def _show_tiles(self) -> None:
        if self._tiles is not None and self._ready():
            self._tiles.refresh()

    def _show_case(self) -> None:
        """Show the question of a solved case and where its answer is."""
        case = self.session.solved
        self._case.visible = case is not None
        if case is not None:
            self._case.object = h("p", h("b", case.question), " ", case.picture)

    def _changed(self) -> None:
        """Handle a change of the problem or the plans, once the page is shown."""
        self._stale = True
        if self.session.step == "hand":
            self.refresh()

    def _job_changed(self) -> None:
        if self.session.step == "hand" and self._ready():
            self.beside.refresh()

    def refresh(self) -> None:
        """Update the whole page if it is out of date."""
        session = self.session
        if not self._stale or not self._ready():
            return
        self._stale = False
        problem, before = session.loaded.problem, self._problem
        if problem is not before:
            # Nothing of the program before may be left when the checkbox below shows lines
            self._problem, self._plan = problem, None
            self._before, self._lines = [], []
            if before is None or before.analysis.program is not problem.analysis.program:
                self.short.value = problem.analysis.program.n_ops > MANY_OPS
        is_priced = session.plans.is_priced
        for part in (self.upper, self.lower):
            part.visible = is_priced
        self._wait_words.visible = not is_priced
        if not is_priced:
            self._wait_words.object = quiet(f"Pricing {session.loaded.problem.describe()} …")
            self._stale = True  # the first price of a large program takes half a second
            return
        self.history.refresh()
        self.board.refresh()
        self._fit_board()
        self.beside.refresh()
        self._make_listing()
        self._show_collectives()
        self._show_tiles()

    def _selected(self) -> None:
        if self.session.step != "hand" or not self._ready():
            self._stale = True
            return
        self.board.show_selection()
        self._fit_board()
        self._show_tiles()
        self._mark()

    def _ready(self) -> bool:
        """Does the problem belong to the loaded program, and not to the one before it?"""
        session = self.session
        return (
            session.loaded.problem is not None
            and session.loaded.problem.analysis is session.loaded.analysis
        )

    def _fit_board(self) -> None:
        # A new style sheet would be a new Bokeh model, for which Bokeh traverses the whole page
        self.upper.styles = {"--board-height": f"{self.board.height}px"}

    def _show_collectives(self) -> None:
        session, steps = self.session, self.history.pair()
        item = self._item()
        if item is None or steps is None or session.loaded.problem is None:
            self.collectives.value = pd.DataFrame(columns=COLLECTIVE_COLUMNS)
            return
        frame = collectives_frame(session.loaded.problem, item.cost, steps[0].sent, steps[1].sent)
        position = self.history.at
        self.collectives.titles = {
            "number": "in plan",
            "action": f"by action {position}" if position else "by action",
        }
        self.collectives.value = frame[COLLECTIVE_COLUMNS]

    # -- listing -----------------------------------------------------------------------------------
    def _make_listing(self) -> None:
        session, problem = self.session, self.session.loaded.problem
        item = session.plans.named(MANUAL) if session.hand.actions else None
        plan = item.plan if item is not None else replicated(problem)
        if (
            self._plan is not None
            and plan.key == self._plan.key
            and (self._plan.actions == plan.actions)
        ):
            return
        self._plan = plan
        before = None if self._lines else session.hand.trail.before
        earlier = None if before is None else plan_of_actions(problem.space, before)
        if problem.analysis.program.n_ops > MANY_OPS:
            self.listing.put(())
            self._note.object = one_line("Writing the listing …")
            self._pending_listing.start_next(
                plan, lambda: LISTINGS.submit(_listings, problem, plan, earlier)
            )
        else:
            self._take(*_listings(problem, plan, earlier))

    def tick(self) -> None:
        """Show a listing that a thread has written; called at each tick of the page."""
        done = self._pending_listing.done()
        if done is not None and done.subject is self._plan:
            self._take(*done.future.result())

    def _take(self, lines: list[ListingLine], earlier: list[ListingLine] | None) -> None:
        self._before, self._lines = self._lines if earlier is None else earlier, lines
        self._show_lines()

    def _show_lines(self) -> None:
        analysis = self.session.loaded.analysis
        if analysis is None or not self._lines:
            return
        lines = local_lines(analysis, self._lines, self._before, short=self.short.value)
        self._shown = lines.lines
        self.listing.put((i, line.segments, line.where) for i, line in enumerate(lines.lines))
        self._note.object = one_line(lines.note)
        self._mark()

    def _mark(self) -> None:
        ops = set(self.session.selection.ops)

        self.listing.chosen = [i for i, line in enumerate(self._shown) if line.op in ops]

    def _line_picked(self, picked: list[int]) -> None:
        if picked and picked[0] < len(self._shown):
            self.session.selection.select_op(self._shown[picked[0]].op)


def _listings(
    problem: Problem, plan: ShardingPlan, earlier: ShardingPlan | None
) -> tuple[list[ListingLine], list[ListingLine] | None]:
    """The listing of a plan, and that of the plan before it, if it is not known."""
    return (
        listing_lines(problem, plan),
        None if earlier is None else listing_lines(problem, earlier),
    )


UPPER = (
    ":host { flex: 0 1 var(--board-height, 62px) !important; min-height: 60px !important; "
    "overflow-y: auto; }"
)
LOWER = ":host { flex: 1 0 180px !important; min-height: 180px !important; }"
