"""The sides of the selected resolution to choose from, one switch for each mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toast_lab.app import assets, look
from toast_lab.app.session import Session
from toast_lab.cost.problem import Problem
from toast_lab.explain.plan_by_hand import SideOption, side_on, side_options
from toast_lab.views.markup import ESTIMATED, bytes_text, h, seconds_text

KEPT_WHOLE = "whole"


class SideSwitch(look.Pane):
    """A choice of the side of a resolution that one axis shards, with the price of each side."""

    def __init__(self, axis: str, choose: Callable[[str, int | None], Any]) -> None:
        super().__init__()
        self._axis, self._choose, self._quiet = axis, choose, False
        self.switch = look.switch(
            options={KEPT_WHOLE: ""},
            margin=(1, 0),
            height=44,
            sizing_mode="stretch_width",
            stylesheets=[look.BUTTON + SWITCH],
        )
        look.watch_value(self.switch, self._chosen)
        name = look.text(h("p", h("b", axis)), width=56, sizing_mode="fixed", margin=(12, 0, 0, 0))
        self._why = look.text(visible=False, margin=(12, 0, 0, 0))
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


class SidesPane(look.Pane):
    """A switch for each axis, for the resolution of the selected conflict or name."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._problem: Problem | None = None
        self.switches: dict[str, SideSwitch] = {}  #: by axis
        self.view = look.column(visible=False)

    @property
    def offers_all(self) -> bool:
        """Do the switches offer every action on the selected colour?"""
        session, group = self.session, self.session.selection.group
        if not self.view.visible or group is None:
            return False
        return len(session.loaded.analysis.groups[group].resolutions) == 1

    def refresh(self) -> None:
        """Price the sides of the selected resolution beside the plan by hand."""
        session, problem = self.session, self.session.loaded.problem
        if problem is None or problem.analysis is not session.loaded.analysis:
            self.view.visible = False
            return
        if problem is not self._problem:
            # Made before one is selected: when a click adds models to the page, Bokeh walks over
            # all models, which took three times as long as the rest of the click
            self._problem = problem
            axes = problem.mesh.split_axes
            self.switches = {axis: SideSwitch(axis, self._choose) for axis in axes}
            head = look.text(h("h2", "choose a side  ", ESTIMATED))
            self.view.objects = [head, *self.switches.values()]
        resolution, actions = session.selection.resolution, session.hand.actions
        self.view.visible = resolution is not None and session.plans.is_priced
        if resolution is None or not session.plans.is_priced:
            return
        pricer = problem.pricer()
        for axis, switch in self.switches.items():
            sides = side_options(
                problem=problem, actions=actions, resolution=resolution, axis=axis, pricer=pricer
            )
            switch.offer(sides, side_on(problem, actions, resolution, axis))

    def _choose(self, axis: str, side: int | None) -> None:
        resolution = self.session.selection.resolution
        if resolution is not None:
            self.session.hand.choose_side(resolution, axis, side)
            self.refresh()  # a refused choice goes back


def _label(option: SideOption) -> str:
    misfit = "" if option.fits else " ✗"
    price = f"{seconds_text(option.time_s)}\n{bytes_text(option.peak_bytes)}"
    return f"side {option.side}: {price}{misfit}"


SWITCH = assets.sheet("switch")
