"""The conflict board on the page.

A table of all resolutions, and the sides of the selected one to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toast_lab.app import assets, look
from toast_lab.app.column_widths import PADDING_PX, column_widths
from toast_lab.app.session import Session
from toast_lab.cost.problem import Problem
from toast_lab.explain.board import Board, conflicts
from toast_lab.explain.plan_by_hand import SideOption, side_on, side_options
from toast_lab.text import line_text
from toast_lab.views.by_hand_tables import board_frame
from toast_lab.views.markup import ESTIMATED, cost_text, h, quiet
from toast_lab.views.text_width import text_px

MAX_TENSORS = 12
KEPT_WHOLE = "whole"
TENSOR_WIDTH = 120  #: px; longer texts wrap, as they would push prices out of view
LINE_HEIGHT = 17  #: px, of each further line in a cell
MAX_HEIGHT = 324
MOST_HEIGHT = 164  #: px, of the table; more is scrolled
DETAIL_HEIGHT = 62  #: px, of the list of a resolution's tensors; more are scrolled


class SideSwitch(look.Pane):
    """A choice of the side of a resolution that one axis shards, with the price of each side.

    It is made together with the board and hidden until a row is selected: when a click adds models
    to the page, Bokeh walks over all models, which took three times as long as the rest of the
    click.
    """

    def __init__(self, axis: str, choose: Callable[[str, int | None], Any]) -> None:
        super().__init__()
        self._axis, self._choose, self._quiet = axis, choose, False
        self.switch = look.switch(
            options={KEPT_WHOLE: ""},
            margin=(1, 0),
            height=30,
            sizing_mode="stretch_width",
            stylesheets=[look.BUTTON + SWITCH],
        )
        look.watch_value(self.switch, self._chosen)
        name = look.text(h("p", h("b", axis)), width=70, sizing_mode="fixed", margin=(6, 0, 0, 0))
        self._why = look.text(visible=False, margin=(6, 0, 0, 0))
        self.view = look.row(name, self.switch, self._why)

    def offer(self, sides: Sequence[SideOption], now: int | None) -> None:
        """Offer the possible sides, say why others are not possible, and show the chosen one."""
        self._quiet = True
        possible = {_label(side): str(side.side) for side in sides if not side.why_not}
        self.switch.param.update(
            options={KEPT_WHOLE: "", **possible},
            value="" if now is None else str(now),
            visible=bool(possible),
        )
        self._quiet = False
        # If no side is possible, all have the same reason
        reasons = [side.why_not for side in sides if side.why_not][: 1 if not possible else None]
        self._why.visible = bool(reasons)
        text = "; ".join(reasons)
        self._why.object = h("p", text, cls="quiet one", title=text)

    def _chosen(self, side: str) -> None:
        if not self._quiet:
            self._choose(self._axis, int(side) if side else None)


class BoardPane(look.Pane):
    """A table with a row for each side of a resolution and a column for each mesh axis.

    Below it, the selected resolution has one switch per axis.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.board = Board((), 0.0, 0.0)
        self._problem: Problem | None = None
        self._resolutions: list[int] = []
        self._row_of_name: dict[int, int] = {}
        self.row: int | None = None
        self.table = look.table(
            board_frame(self.board),
            height=64,
            layout="fit_data_table",
            wraps=True,
        )
        self.table.on_click(self._clicked)
        self._detail = look.text()
        self._choices = look.column(visible=False)
        self.switches: dict[str, SideSwitch] = {}  #: by axis
        self.view = look.column(
            look.text(
                h(
                    "p",
                    h("b", "Conflict board "),
                    ESTIMATED,
                    h("span", "  each side alone; ✗ does not fit, ● is chosen", cls="quiet"),
                    cls="one",
                )
            ),
            self.table,
            self._choices,
            self._detail,
        )

    @property
    def height(self) -> int:
        """Height in pixels of all that is shown, at most MAX_HEIGHT; the rest is scrolled."""
        if not self.board.disputes:
            return 62
        height_below = (
            24 if self.row is None else DETAIL_HEIGHT + 8 + 34 * max(1, len(self._axes()))
        )
        return min(MAX_HEIGHT, 44 + int(self.table.height or 64) + height_below)

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
            row_of = {resolution: i for i, resolution in enumerate(self._resolutions)}
            self._row_of_name = {
                name: row_of[sets[conflict.set].resolution]
                for conflict in session.loaded.problem.analysis.conflicts
                for name in conflict.sides
            }
            self.row = None
            self.switches = {axis: SideSwitch(axis, self._choose) for axis in self._axes()}
            self._choices.objects = list(self.switches.values())
        problem = self._problem
        actions, axes = session.hand.actions, self._axes()
        chosen = {
            (i, axis): side_on(problem, actions, resolution, axis)
            for i, resolution in enumerate(self._resolutions)
            for axis in axes
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

    def _axes(self) -> list[str]:
        problem = self.session.loaded.problem
        return [
            axis
            for axis, size in zip(problem.mesh.axes, problem.mesh.sizes, strict=True)
            if size > 1
        ]

    def show_selection(self) -> None:
        """Bring the resolution of the selected names to the front, if they are in conflict."""
        if self._problem is None:
            return
        self.row = self._wanted_row()
        rows = [] if self.row is None else [2 * self.row, 2 * self.row + 1]
        if self.table.selection != rows:
            self.table.selection = rows
        self._show_detail()
        self._show_choices()

    def _wanted_row(self) -> int | None:
        analysis, session = self.session.loaded.analysis, self.session
        if not self.board.disputes or analysis is None:
            return None
        for index in session.selection.conflicts:
            return self._resolutions.index(
                analysis.compatibility_sets[analysis.conflicts[index].set].resolution
            )
        return next(
            (
                self._row_of_name[name]
                for name in session.selection.names
                if name in self._row_of_name
            ),
            None,
        )

    def _show_detail(self) -> None:
        if not self.board.disputes:
            message: Any = (
                "No tensor of this program has two dims of one colour: there is nothing to settle."
            )
            self._detail.object = quiet(message)
            return
        if self.row is None:
            self._detail.object = quiet(
                "Select a row, or a name in conflict, to choose its side on each axis."
            )
            return
        dim = self.board.disputes[self.row]
        tensors = [
            f"{tensor.value} [{', '.join(map(str, tensor.shape))}] dims "
            f"{' | '.join(map(str, tensor.dims))}, {line_text(tensor.where)}"
            for tensor in dim.tensors
        ]
        more_text = f"; and {len(tensors) - MAX_TENSORS} more" if len(tensors) > MAX_TENSORS else ""
        set_numbers = ", ".join(map(str, dim.sets[:8])) + (
            f" and {len(dim.sets) - 8} more" if len(dim.sets) > 8 else ""
        )
        sets = f"set {set_numbers}" if len(dim.sets) == 1 else f"sets {set_numbers}, settled alike"
        detail = f"{sets}, side 0 | side 1 on: {'; '.join(tensors[:MAX_TENSORS])}{more_text}"
        self._detail.object = quiet(
            detail, style=f"max-height: {DETAIL_HEIGHT}px; overflow: auto; margin: 4px 0"
        )

    # -- choosing ----------------------------------------------------------------------------------
    def _show_choices(self) -> None:
        session, problem = self.session, self.session.loaded.problem
        self._choices.visible = self.row is not None
        if self.row is None or problem is None:
            return
        resolution, actions = self._resolutions[self.row], session.hand.actions
        pricer = problem.pricer()
        for axis, switch in self.switches.items():
            sides = side_options(
                problem=problem, actions=actions, resolution=resolution, axis=axis, pricer=pricer
            )
            switch.offer(sides, side_on(problem, actions, resolution, axis))

    def _choose(self, axis: str, side: int | None) -> None:
        if self.row is not None:
            self.session.hand.choose_side(self._resolutions[self.row], axis, side)
            self._show_choices()  # a refused choice goes back

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


def _label(option: SideOption) -> str:
    misfit = "" if option.fits else " ✗"
    return f"side {option.side}: {cost_text(option)}{misfit}"


SWITCH = assets.sheet("switch")
