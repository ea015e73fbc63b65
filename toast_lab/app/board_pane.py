"""The conflict board on the page: a table of all resolutions with the price of each side."""

from __future__ import annotations

from typing import Any

from toast_lab.app import look
from toast_lab.app.column_widths import PADDING_PX, column_widths
from toast_lab.app.session import Session
from toast_lab.cost.problem import Problem
from toast_lab.explain.board import Board, conflicts
from toast_lab.explain.plan_by_hand import side_on
from toast_lab.text import line_text
from toast_lab.views.by_hand_tables import board_frame
from toast_lab.views.markup import ESTIMATED, h, quiet
from toast_lab.views.text_width import text_px

MAX_TENSORS = 12
TENSOR_WIDTH = 120  #: px; longer texts wrap, as they would push prices out of view
LINE_HEIGHT = 17  #: px, of each further line in a cell
MAX_HEIGHT = 260
MOST_HEIGHT = 164  #: px, of the table; more is scrolled
DETAIL_HEIGHT = 57  #: px, of the list of a resolution's tensors; more are scrolled


class BoardPane(look.Pane):
    """A table with a row for each side of a resolution and a column for each mesh axis."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.board = Board((), 0.0, 0.0)
        self._problem: Problem | None = None
        self._resolutions: list[int] = []
        self.row: int | None = None
        self.table = look.table(
            board_frame(self.board),
            height=64,
            layout="fit_data_table",
            wraps=True,
        )
        self.table.on_click(self._clicked)
        self._detail = look.text()
        self.head = look.text(
            h(
                "p",
                ESTIMATED,
                h("span", "  each side alone; ✗ does not fit, ● is chosen", cls="quiet"),
                cls="one",
            )
        )
        self.view = look.column(self.table, self._detail)

    @property
    def height(self) -> int:
        """Height in pixels of all that is shown, at most MAX_HEIGHT; the rest is scrolled."""
        if not self.board.disputes:
            return 42
        height_below = 24 if self.row is None else DETAIL_HEIGHT + 8
        return min(MAX_HEIGHT, 20 + int(self.table.height or 64) + height_below)

    # -- showing -----------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Show the board of the session's problem, and what the plan by hand has chosen."""
        session = self.session
        if session.loaded.problem is None:
            return
        if session.loaded.problem is not self._problem:
            self._problem = session.loaded.problem
            self.board = conflicts(session.loaded.problem)
            sets = session.loaded.problem.analysis.compatibility_sets
            self._resolutions = [sets[dim.sets[0]].resolution for dim in self.board.disputes]
            self.row = None
        problem = self._problem
        actions = session.hand.actions
        chosen = {
            (i, axis): side_on(problem, actions, resolution, axis)
            for i, resolution in enumerate(self._resolutions)
            for axis in problem.mesh.split_axes
        }
        frame = board_frame(self.board, chosen)
        if not frame.equals(self.table.value):
            widths = column_widths(frame, {})
            self.table.widths = {**widths, "tensor": min(widths["tensor"], TENSOR_WIDTH)}
            self.table.value = frame
            line_px = TENSOR_WIDTH - PADDING_PX
            wrapped = sum(int(text_px(str(tensor)) // line_px) for tensor in frame["tensor"])
            self.table.height = min(
                look.rows_height(len(frame), MOST_HEIGHT) + LINE_HEIGHT * wrapped, MOST_HEIGHT
            )
        self.table.visible = bool(self.board.disputes)
        self.show_selection()

    def show_selection(self) -> None:
        """Bring the resolution of the selected names to the front, if they are in conflict."""
        if self._problem is None:
            return
        resolution = self.session.selection.resolution
        rows_of = {listed: row for row, listed in enumerate(self._resolutions)}
        self.row = None if resolution is None else rows_of.get(resolution)
        rows = [] if self.row is None else [2 * self.row, 2 * self.row + 1]
        if self.table.selection != rows:
            self.table.selection = rows
        self._show_detail()

    def _show_detail(self) -> None:
        if not self.board.disputes:
            message: Any = (
                "No tensor of this program has two dims of one colour: there is nothing to settle."
            )
            self._detail.object = quiet(message)
            return
        if self.row is None:
            self._detail.object = quiet(
                "Select a row, or a name in conflict, and choose its side on the right."
            )
            return
        dim = self.board.disputes[self.row]
        lines_of: dict[str, dict[str, None]] = {}
        for tensor in dim.tensors:
            shape, dims = ", ".join(map(str, tensor.shape)), " | ".join(map(str, tensor.dims))
            lines = lines_of.setdefault(f"{tensor.value} [{shape}] dims {dims}", {})
            lines[line_text(tensor.where)] = None
        tensors = [f"{tensor}, {', '.join(lines)}" for tensor, lines in lines_of.items()]
        more_text = f"; and {len(tensors) - MAX_TENSORS} more" if len(tensors) > MAX_TENSORS else ""
        set_numbers = ", ".join(map(str, dim.sets[:8])) + (
            f" and {len(dim.sets) - 8} more" if len(dim.sets) > 8 else ""
        )
        sets = f"set {set_numbers}" if len(dim.sets) == 1 else f"sets {set_numbers}, settled alike"
        detail = f"{sets}, side 0 | side 1 on: {'; '.join(tensors[:MAX_TENSORS])}{more_text}"
        self._detail.object = quiet(
            detail, style=f"max-height: {DETAIL_HEIGHT}px; overflow: auto; margin: 4px 0"
        )

    def _clicked(self, event: Any) -> None:
        analysis = self.session.loaded.analysis
        if analysis is None or event.row // 2 >= len(self.board.disputes):
            return
        sets = self.board.disputes[event.row // 2].sets
        self.session.selection.select(
            (),
            tuple(
                conflict
                for compatibility_set in sets
                for conflict in analysis.compatibility_sets[compatibility_set].conflicts
            ),
        )
