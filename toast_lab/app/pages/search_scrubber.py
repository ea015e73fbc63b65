"""A slider that shows a search as of any of its simulations."""

from __future__ import annotations

import time

import panel as pn

from toast_lab.app import look
from toast_lab.app.pace import WORDS_EVERY_S
from toast_lab.app.tree_state import TreeState


class SearchScrubber:
    """The slider, and the button that returns to the latest simulation.

    Attributes:
        view: a row with both.
        is_moved: whether the user moved the slider since this was last set to False.
    """

    def __init__(self, state: TreeState) -> None:
        self.state = state
        self.is_moved = False
        self.slider = pn.widgets.IntSlider(
            name="as of simulation",
            start=0,
            end=1,
            value=1,
            sizing_mode="stretch_width",
            margin=(0, 10, 0, 0),
            disabled=True,
            stylesheets=[look.INPUT],
        )
        self.live = look.button(
            "Live",
            lambda: self.move(None),
            width=64,
            height=30,
            margin=(2, 0),
            disabled=True,
        )
        look.watch_value(self.slider, self.move)
        self.view = look.row(self.slider, self.live)
        self._is_being_set = False
        self._shown: tuple[int, int | None] = (-1, None)
        self._shown_at = 0.0

    def move(self, at: int | None) -> None:
        """Show everything as of simulation ``at``; None shows the latest state."""
        if self._is_being_set:
            return
        self.state.at = None if at is None or at >= self.state.shown_count else max(1, at)
        self._set()
        self.is_moved = True

    def follow(self, *, is_live: bool) -> None:
        """Follow the search, at most twice a second while it is live."""
        state = self.state
        is_waiting = (
            is_live
            and state.at == self._shown[1]
            and time.monotonic() - self._shown_at < WORDS_EVERY_S
        )
        if (state.shown_count, state.at) != self._shown and not is_waiting:
            self._shown_at = time.monotonic()
            self._shown = (state.shown_count, state.at)
            self._set()

    def _set(self) -> None:
        state = self.state
        simulation_count = state.shown_count
        self._is_being_set = True
        try:
            self.slider.disabled = simulation_count < 2
            self.slider.param.update(
                start=min(1, simulation_count),
                end=max(simulation_count, 1),
                value=max(state.shown, min(1, simulation_count)),
            )
        finally:
            self._is_being_set = False
        self.live.disabled = state.at is None
        self.live.button_type = "success" if state.at is None and simulation_count else "default"
