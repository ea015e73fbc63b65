"""Views of a program: its dimension graph, its listing, its conflicts, its colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toast_lab.app import look
from toast_lab.app.cells.view import beside, every_tick, refused, shown, table_html
from toast_lab.app.graph_inspector import chain_words
from toast_lab.app.listing_pane import listing_pane, packed
from toast_lab.app.pages.graph_page import GraphPage
from toast_lab.app.pages.understand_page import UnderstandPage
from toast_lab.app.session import Session
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidInput, did_you_mean
from toast_lab.explain.board import conflicts as conflict_board
from toast_lab.views import selection_facts
from toast_lab.views.by_hand_tables import board_frame
from toast_lab.views.graph_layout import GraphFilter, graph_layout
from toast_lab.views.graph_plot import GraphPlot, nodes_frame
from toast_lab.views.graph_rows import LEVELS, start_level
from toast_lab.views.markup import Safe, facts, h, join, quiet
from toast_lab.views.program_table import colours_frame, program_frame, program_lines
from toast_lab.views.saved_chart import chart_svg

MAX_NODES = 400  #: most nodes of a static graph; more would be unreadable at its size
SHOWN_LINES = 120  #: most lines of a static listing
#: explicit, since JupyterLab sets preformatted text in the proportional font around it
LISTING = (
    "font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; "
    "overflow: auto; max-height: 620px"
)
MOST_TABLE = 240  #: greatest height of the table of conflicts, in pixels


def graph(
    analysed: Analysis | Problem,
    *,
    level: str | None = None,
    conflicts_only: bool = False,
    inline: bool = False,
) -> Any:
    """The dimension graph.

    Colours are lanes, M is drawn as lines, conflicts are red, compatibility sets are outlined.

    A click on a name or a conflict describes it and marks its line in the listing; a click on a
    line selects its names in the graph.

    Args:
        analysed: an Analysis; or a Problem, with which colours can be sharded from the graph and
            priced.
        level: ``"names"``, ``"lines"``, ``"functions"`` or ``"colours"``; by default the one that
            suits the program's size.
        conflicts_only: show only names in conflict and their neighbours.
        inline: give a Panel object that communicates through the notebook, for a kernel on another
            machine.

    Raises:
        InvalidInput: another type, or an unknown level.
    """
    analysis, problem = _program(analysed, "graph")
    if level is not None and level not in LEVELS:
        raise InvalidInput(
            f"views.graph: no level is called {level!r}{did_you_mean(level, LEVELS)}; "
            f"{', '.join(LEVELS)}"
        )
    first_level = level or start_level(analysis)

    def make() -> Any:
        return GraphCell(_session(analysis, problem), first_level, conflicts_only)

    def layout() -> Any:
        return graph_layout(analysis, first_level, GraphFilter(conflicts_only=conflicts_only))

    def static() -> Safe:
        laid_out = layout()
        if len(laid_out.nodes) > MAX_NODES:
            laid_out = graph_layout(analysis, "colours", GraphFilter(conflicts_only=conflicts_only))
        legend = (
            "A lane is a colour, program order runs down; red dashes are conflicts between side 0 "
            "(left) and side 1 (right), an outline is a compatibility set."
        )
        if len(laid_out.nodes) > MAX_NODES:
            return join(
                h("p", f"{len(laid_out.nodes):,} nodes: too many for a picture of this size."),
                table_html(colours_frame(analysis)),
            )
        plot = GraphPlot(laid_out)
        picture = Safe(chart_svg(plot.figure, size_px=plot.size_px))
        return join(picture, h("p", h("small", legend)))

    return shown(
        inline,
        kind="graph",
        about=lambda: _about(analysis),
        make=make,
        static=static,
        height=760,
        table=lambda: nodes_frame(layout()),
    )


def listing(analysed: Analysis | Problem, *, inline: bool = False) -> Any:
    """The program's listing, with every dim in its colour (of a plan: tl.listing(problem, plan)).

    A click on a line describes its names.

    Args:
        analysed: an Analysis or a Problem.
        inline: as for ``graph``.

    Raises:
        InvalidInput: another type.
    """
    analysis, _ = _program(analysed, "listing")

    def static() -> Safe:
        lines = program_lines(analysis)
        rows = [
            join(
                *[
                    h("span", segment.text, style=f"color: {segment.hue}; font-weight: 650")
                    if segment.hue
                    else segment.text
                    for segment in line.segments
                ]
            )
            for line in lines[:SHOWN_LINES]
        ]
        remainder = (
            f"… and {len(lines) - SHOWN_LINES:,} lines more" if len(lines) > SHOWN_LINES else ""
        )
        return h(
            "pre", join(*rows, between="\n"), f"\n{remainder}" if remainder else "", style=LISTING
        )

    height = min(620, 60 + _listing_height(analysis))
    return shown(
        inline,
        kind="listing",
        about=lambda: _about(analysis),
        make=lambda: ListingCell(_session(analysis, None)),
        static=static,
        height=max(height, 300),
        table=lambda: program_frame(analysis),
    )


def conflicts(analysed: Analysis | Problem, *, inline: bool = False) -> Any:
    """The conflicts of a program.

    For a Problem this is the conflict board, where flipping a bit shows the consequences at once.

    Args:
        analysed: an Analysis (shows where the conflicts are, and the chain behind each) or a
            Problem (also shows the cost of each side of each resolution on each mesh axis, the
            listing of one device, collectives and tiles, with undo).
        inline: as for ``graph``.

    Raises:
        InvalidInput: another type.
    """
    analysis, problem = _program(analysed, "conflicts")

    def table() -> Any:
        if problem is None:
            return selection_facts.conflicts_frame(analysis)
        return board_frame(conflict_board(problem))

    def make() -> Any:
        session = _session(analysis, problem)
        return BoardCell(session) if problem is not None else conflicts_cell(session)

    def static() -> Safe:
        if not analysis.conflicts:
            return h("p", "No tensor of this program has two dims of one colour.")
        return table_html(table())

    return shown(
        inline,
        kind="conflicts",
        about=lambda: _about(analysis),
        make=make,
        static=static,
        height=_board_height(analysis) if problem is not None else _table_height(analysis),
        table=table,
    )


def colours(analysed: Analysis | Problem, *, inline: bool = False) -> Any:
    """The colours of a program, which actions can shard.

    A click on a colour lists its names and marks their lines.

    Args:
        analysed: an Analysis or a Problem.
        inline: as for ``graph``.

    Raises:
        InvalidInput: another type.
    """
    analysis, _ = _program(analysed, "colours")

    def table() -> Any:
        return colours_frame(analysis).drop(columns=["group"])

    return shown(
        inline,
        kind="colours",
        about=lambda: _about(analysis),
        make=lambda: colours_cell(_session(analysis, None)),
        static=lambda: table_html(table()),
        height=460,
        table=table,
    )


# -- pages -----------------------------------------------------------------------------------------
class Listing:
    """The listing pane, linked in both directions with a session's selection."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pane = listing_pane()
        self.pane.packed = packed(session.loaded.analysis)
        self.pane.follow(session.selection)
        look.watch(session.selection, self._mark, "names")

    def _mark(self) -> None:
        self.pane.chosen = self.session.selection.ops


class SelectionWords:
    """Describes the selection: names, or a conflict with the chain behind it."""

    def __init__(self, session: Session, hint: str) -> None:
        self.session, self.hint = session, hint
        self.pane = look.text()
        look.watch(session.selection, self._show, "names", "conflicts")
        self._show()

    def _show(self) -> None:
        session, analysis = self.session, self.session.loaded.analysis
        if session.selection.conflicts:
            conflict = session.selection.conflicts[0]
            self.pane.object = join(
                h("h2", "conflict"),
                facts(selection_facts.conflict_facts(analysis, conflict)),
                chain_words(analysis, selection_facts.chain(analysis, conflict)),
            )
        elif session.selection.names:
            name_facts = [
                join(h("h2", "name"), facts(selection_facts.name_facts(analysis, name)))
                for name in session.selection.names[:6]
            ]
            hidden_count = len(session.selection.names) - 6
            self.pane.object = join(
                *name_facts, quiet(f"and {hidden_count:,} names more") if hidden_count > 0 else ""
            )
        else:
            self.pane.object = quiet(self.hint)


class GraphCell(look.Pane):
    """The explorer's graph page, narrower: the listing below, selection and settings in tabs."""

    def __init__(self, session: Session, level: str, conflicts_only: bool) -> None:
        super().__init__()
        self.graph = GraphPage(session)
        controls = self.graph.controls
        controls.level.value, controls.only.value = level, conflicts_only
        every_tick(self.graph.tick)  # large layouts are computed in a thread
        self.listing = Listing(session)
        self._message = look.text(height=18)
        look.watch(session.notices, self._say, "messages")
        self.session = session
        side_tabs = look.tabs(
            ("Selection", self.graph.right),
            ("Show", self.graph.left),
            width=340,
            sizing_mode="stretch_height",
        )
        listing_box = look.column(self.listing.pane, height=190, stylesheets=[look.CANVAS])
        self.view = look.filled_column(
            look.filled_row(look.filled_column(self.graph.head, self.graph.centre), side_tabs),
            self._message,
            listing_box,
        )

    def _say(self) -> None:
        message = self.session.notices.messages[-1]
        self._message.object = h(
            "p",
            message.text,
            cls="red one" if message.level == "error" else "quiet one",
            title=message.text,
        )


class ListingCell(look.Pane):
    """The listing, and a description of the line that was clicked."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.listing = Listing(session)
        self.words = SelectionWords(session, "Click a line.")
        self.view = beside(look.canvas(self.listing.pane), self.words.pane, width=300)


class TableCell(look.Pane):
    """A table whose rows select names, above the listing; on the right, the selection in words."""

    def __init__(
        self,
        session: Session,
        table: Any,
        hint: str,
        clicked: Callable[[int], None],
        *,
        words_px: int = 310,
    ) -> None:
        super().__init__()
        self.session, self.table, self.clicked = session, table, clicked
        look.on_row(table, clicked)
        self.listing = Listing(session)
        self.words = SelectionWords(session, hint)
        left = look.filled_column(self.table, look.canvas(self.listing.pane))
        self.view = beside(left, self.words.pane, width=words_px)


def conflicts_cell(session: Session) -> TableCell:
    """A table with one row for each conflict."""
    frame = selection_facts.conflicts_frame(session.loaded.analysis)
    return TableCell(
        session,
        look.table(frame, height=look.rows_height(len(frame), MOST_TABLE)),
        "Click a conflict to see where it is and why both dims have one colour.",
        lambda row: session.selection.select((), (int(frame["conflict"].iloc[row]),)),
    )


def colours_cell(session: Session) -> TableCell:
    """A table with one row for each colour group."""
    frame = colours_frame(session.loaded.analysis)
    return TableCell(
        session,
        look.table(frame.drop(columns=["group"]), height=look.rows_height(len(frame), 240)),
        "Click a colour to mark its names in the listing.",
        lambda row: session.selection.select_group(int(frame["group"].iloc[row])),
        words_px=250,
    )


class BoardCell(look.Pane):
    """The explorer's page with the conflict board and the graph, the board in front.

    It has the listing of one device, collectives, devices, costs and undo.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        session.step = "hand"
        self.session = session
        self.page = UnderstandPage(session)
        every_tick(self.page.make_board().tick)
        every_tick(self.page.graph.tick)
        side_tabs = look.tabs(
            ("Selection", self.page.right),
            ("Show", self.page.left),
            width=340,
            sizing_mode="stretch_height",
            margin=(0, 0, 0, 6),
        )
        self.view = look.filled_row(self.page.centre, side_tabs)


# -- heights that fit the contents, so that no frame is mostly empty -------------------------------
def _listing_height(analysis: Analysis) -> int:
    return 20 * len(program_lines(analysis))


def _table_height(analysis: Analysis) -> int:
    """Height of the conflicts above the listing; the words beside them need some room, too."""
    table = look.rows_height(len(analysis.conflicts), MOST_TABLE)
    return max(240, min(460, table + 40 + _listing_height(analysis)))


def _board_height(analysis: Analysis) -> int:
    """Height of the conflict board, with a row for each side, above one device's listing."""
    board = look.rows_height(2 * len(analysis.compatibility_sets), MOST_TABLE)
    return max(480, min(860, board + 170 + _listing_height(analysis)))


# -- inside ----------------------------------------------------------------------------------------
def _program(analysed: object, view: str) -> tuple[Analysis, Problem | None]:
    if isinstance(analysed, Analysis):
        return analysed, None
    if isinstance(analysed, Problem):
        return analysed.analysis, analysed
    raise refused(view, "an Analysis or a Problem", analysed, f"tl.views.{view}(tl.analyse(model))")


def _session(analysis: Analysis, problem: Problem | None) -> Session:
    """A new session about this program, for one page."""
    session = Session()
    session.take(analysis, problem)
    return session


def _about(analysis: Analysis) -> str:
    program, sets = analysis.program, len(analysis.compatibility_sets)
    return (
        f"{program.name}, {analysis.names.n:,} names, {len(analysis.conflicts):,} conflicts in "
        f"{sets:,} compatibility set{'' if sets == 1 else 's'}"
    )
