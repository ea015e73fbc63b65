"""The left side of the graph page: level, hue, search, filters, neighbourhood, colours."""

from __future__ import annotations

import panel as pn

from toast_lab.app import look
from toast_lab.conflicts.analysis import Analysis
from toast_lab.views.graph_layout import lane_groups
from toast_lab.views.graph_rows import LEVELS, scopes, start_level
from toast_lab.views.markup import h
from toast_lab.views.overlay import OVERLAYS
from toast_lab.views.program_table import colours_frame

MANY_SCOPES = 60  #: functions to choose from, at most


class GraphControls:
    """Widgets only; the page watches them."""

    def __init__(self) -> None:

        self.level = pn.widgets.Select(
            name="level", options={value: key for key, value in LEVELS.items()}, **look.FIELD
        )
        self.hue = pn.widgets.Select(
            name="hue shows", options={value: key for key, value in OVERLAYS.items()}, **look.FIELD
        )
        self.plan = pn.widgets.Select(name="of the plan", options=[], visible=False, **look.FIELD)
        self.find = pn.widgets.TextInput(
            name="find a value, op, function or colour",
            placeholder="for instance dot_general",
            **look.FIELD,
        )
        self.regex = pn.widgets.Checkbox(name="as a regular expression", **look.FIELD)
        self.found = look.text()
        self.only = pn.widgets.Checkbox(name="conflicts and their neighbours only", **look.FIELD)
        self.singles = pn.widgets.Checkbox(name="colours of a single name too", **look.FIELD)
        # MultiChoice would run HTML in a name.
        self.lanes = pn.widgets.MultiSelect(
            name="only these colours", options={}, size=4, **look.FIELD
        )
        self.scopes = pn.widgets.MultiSelect(
            name="only these functions", options=[], size=4, **look.FIELD
        )
        self.hops = pn.widgets.IntSlider(
            name="hops around the selection", value=2, start=1, end=8, **look.FIELD
        )
        self.focus = look.button("Focus on the selection")
        self.back = look.button("Show everything", visible=False)
        self.colours = look.colour_table(
            ["", "colour", "size", "names", "conflicts"],
            {"names": 58, "colour": 74, "size": 52, "conflicts": 38},
            titles={"names": "names", "conflicts": "red"},
            height=250,
        )
        #: what is about the graph alone
        self.of_graph = [
            look.column(self.level, self.hue, self.plan),
            look.column(self.hops, self.focus, self.back),
            look.column(
                look.text(h("h2", "show")), self.only, self.singles, self.lanes, self.scopes
            ),
        ]
        picture, near, filters = self.of_graph
        self.view = look.side(
            picture,
            self.find,
            self.regex,
            self.found,
            near,
            look.text(h("h2", "colours")),
            self.colours,
            filters,
            width=290,
        )

    def fill(self, analysis: Analysis, level: str = "") -> None:
        """Offer all choices of a new model, with nothing chosen.

        Only the level always has a value: ``level`` if it is valid, else the start level.
        """
        self.level.value = level if level in LEVELS else start_level(analysis)
        self.only.value = self.singles.value = False
        self.only.disabled = not analysis.conflicts
        self.found.object = ""
        self.lanes.value = []
        self.scopes.param.update(options=scopes(analysis)[:MANY_SCOPES], value=[])
        self.fill_colours(analysis)

    def fill_colours(self, analysis: Analysis) -> None:
        """List the colours by their names; those that are chosen stay chosen."""
        self.lanes.param.update(
            options={analysis.groups[group].name: group for group in lane_groups(analysis)},
            value=self.lanes.value,
        )
        self.colours.value = colours_frame(analysis).drop(
            columns=["shardable", "group", "resolutions", "mirrored"]
        )
        look.show_rows(self.colours, 250)

    def mark_colour(self, name: str | None) -> None:
        """Select a colour's row of the table."""
        rows = [i for i, colour in enumerate(self.colours.value["colour"]) if colour == name][:1]
        if self.colours.selection != rows:
            self.colours.selection = rows
