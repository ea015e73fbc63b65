"""Step 2: the coloured dimension graph and its conflicts."""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.action_buttons import ActionButtons
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.markup import Safe, bytes_text, facts, h, join, seconds_text
from toast_lab.app.session import Session
from toast_lab.views import inspect
from toast_lab.views.graph_layout import LEVELS, graph_layout, lane_groups, op_label, start_level
from toast_lab.views.graph_plot import GraphPlot
from toast_lab.views.program_table import colours_frame


class GraphPage(pn.viewable.Viewer):
    """Levels and filters left, lanes in the centre, the selection right."""

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.plot: GraphPlot | None = None
        self._focus: tuple[int, ...] = ()
        self._drawing = False
        common: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (3, 0), "stylesheets": [look.INPUT]}
        self.level = pn.widgets.Select(name="level", options={v: k for k, v in LEVELS.items()}, **common)
        self.find = pn.widgets.TextInput(
            name="find a value, op or colour", placeholder="for instance dot_general", **common
        )
        self.hops = pn.widgets.IntSlider(name="hops around the selection", value=2, start=1, end=8, **common)
        self.only = pn.widgets.Checkbox(name="conflicts and their neighbours only", **common)
        self.singles = pn.widgets.Checkbox(name="colours of a single name too", **common)
        self.focus = look.button("Focus on the selection")
        self.back = look.button("Show everything", visible=False)
        self.colours = look.table(
            colours_frame_empty(),
            height=250,
            sizing_mode="stretch_width",
            layout="fit_data_table",
            widths={"": 24, "colour": 84, "size": 48, "names": 56, "conflicts": 50},
            titles={"conflicts": "confl."},
        )
        self.left = look.side(
            look.text(h("h2", "show")),
            self.level,
            self.only,
            self.singles,
            self.find,
            look.text(h("h2", "neighbourhood")),
            self.hops,
            self.focus,
            self.back,
            look.text(h("h2", "colours")),
            self.colours,
            width=290,
        )
        self._note = look.text()
        self._pane = pn.pane.Bokeh(sizing_mode="stretch_both", margin=0, min_height=320)
        head = pn.Row(
            self._note, figure_menu("dimension graph", "dimension graph"), sizing_mode="stretch_width", margin=0
        )  # fmt: skip
        self.centre = pn.Column(head, self._pane, sizing_mode="stretch_both", stylesheets=[look.CANVAS], margin=0)
        self._facts = look.text()
        self._actions = ActionButtons(session)
        self._manual = look.text()
        self._undo = look.button("Undo the last change", visible=False)
        self._undo.on_click(lambda _: self.session.undo_action())
        self._why = look.text()
        self.right = look.side(self._facts, self._actions, self._manual, self._undo, self._why, width=330)
        self.level.param.watch(lambda e: self._level_chosen(e.new), "value")
        session.param.watch(lambda e: self._show_level(e.new), "level")
        for widget in (self.level, self.only, self.singles):
            widget.param.watch(lambda _: self.draw(), "value")
        self.hops.param.watch(lambda *_: self._hops_changed(), "value_throttled")
        self.find.param.watch(lambda e: self._find(e.new), "value")
        self.focus.on_click(lambda _: self._refocus(tuple(self.session.names)))
        self.back.on_click(lambda _: self._refocus(()))
        self.colours.on_click(self._colour_clicked)
        session.param.watch(lambda *_: self.show_model(), "analysis")
        session.param.watch(lambda *_: self.show_selection(), ["names", "conflicts"])
        session.param.watch(lambda *_: self.show_actions(), ["problem", "plans"])
        self.show_model()

    # -- drawing ------------------------------------------------------------------------------------
    def show_model(self) -> None:
        """A new model: start at the level that suits it."""
        analysis = self.session.analysis
        if analysis is None:
            return
        self._drawing = True
        self._focus = ()
        self.back.visible = False
        kept = self.session.level
        self.level.value = kept if kept in self.level.options.values() else start_level(analysis)
        self.only.value = self.singles.value = False
        self.only.disabled = not analysis.conflicts
        self._drawing = False
        self.colours.value = colours_frame(analysis).drop(columns=["shardable", "group", "resolutions", "mirrored"])
        self.draw()
        self.show_selection()

    def _level_chosen(self, level: str) -> None:
        """The link has it; a level that the page chose by itself is none."""
        if not self._drawing:
            self.session.level = level

    def _show_level(self, level: str) -> None:
        if level in self.level.options.values():
            self.level.value = level

    def draw(self) -> None:
        """Lay out and draw what the controls ask for."""
        analysis = self.session.analysis
        if analysis is None or self._drawing:
            return
        layout = graph_layout(
            analysis,
            self.level.value,
            focus=self._focus,
            hops=int(self.hops.value or 1),
            conflicts_only=self.only.value,
            singles=self.singles.value,
        )
        self.plot = GraphPlot(layout, on_select=lambda names, conflicts: self.session.select(names, conflicts))
        self.plot.select(self.session.names, self.session.conflicts)
        self._pane.object = self.plot.figure
        self._note.object = h(
            "p", h("b", f"{len(layout.nodes):,} nodes"), h("span", f" · {layout.note}", cls="quiet"), cls="one"
        )

    def _refocus(self, names: tuple[int, ...]) -> None:
        if not names and not self._focus:
            self.session.say("Select a name, a conflict or a listing line first, then focus on it.")
            return
        self._focus = names
        self.back.visible = bool(names)
        self._drawing = True
        if names and self.level.value == "colours":
            self.level.value = "names"
        self._drawing = False
        self.draw()

    def _hops_changed(self) -> None:
        if self._focus:
            self.draw()

    def _find(self, text: str) -> None:
        analysis = self.session.analysis
        word = text.strip().casefold()
        if analysis is None or not word:
            return
        program = analysis.program
        ops = [o for o in range(program.n_ops) if word in op_label(analysis, o).casefold() or word in program.kind[o]]
        names = [n for o in ops for n in program.factors(o)]
        names += [n for n in range(analysis.dims.n) if word in analysis.dim_text(n).casefold()]
        if not names:
            self.session.say(
                f'Nothing is called "{text.strip()}". Try a value, an op such as dot_general, or a colour.'
            )
            return
        self.session.select(tuple(dict.fromkeys(names)))

    def _colour_clicked(self, event: Any) -> None:
        analysis = self.session.analysis
        if analysis is None:
            return
        group = analysis.group_index(str(self.colours.value.iloc[event.row]["colour"]))
        self.session.select(tuple(int(n) for c in analysis.groups[group].colours for n in analysis.colours[c].names))

    # -- inspector ----------------------------------------------------------------------------------
    def show_selection(self) -> None:
        """Selected names and conflicts, in the picture and in words."""
        session, analysis = self.session, self.session.analysis
        if analysis is None:
            return
        if self.plot is not None:
            look.later(self.plot.select, session.names, session.conflicts)
        self._facts.object, self._why.object = self._words(), self._chain()
        self.focus.disabled = not session.names
        self.show_actions()

    def _words(self) -> Safe:
        session, analysis = self.session, self.session.analysis
        assert analysis is not None
        if session.conflicts:
            k = session.conflicts[0]
            more = len(session.conflicts) - 1
            more_text = f" (and {more} more)" if more else ""
            return join([h("h2", f"conflict{more_text}"), facts(inspect.conflict_facts(analysis, k))])
        if len(session.names) == 1:
            return join([h("h2", "dimension name"), facts(inspect.name_facts(analysis, session.names[0]))])
        if session.names:
            group = analysis.groups[session.selected_group or 0]
            return join([h("h2", f"{len(session.names)} names"), facts(_group_facts(analysis, group))])
        return join(
            [
                h("h2", "nothing selected"),
                h(
                    "p",
                    "Click a marker, a red conflict, a line of the listing or a row of the conflict table below.",
                    cls="quiet",
                ),
                h("h2", "how to read it"),
                h(
                    "p",
                    "A lane is a colour: dims that are cut alike. Program order runs down, as does M, the thin lines.",
                    cls="quiet",
                ),
                h(
                    "p",
                    h("span", "Red dashes", cls="red"),
                    " are conflicts: two dims of one colour on one tensor. The lane splits there into ",
                    "side 0 (left) and side 1 (right); an outline is a compatibility set, settled by one bit.",
                    cls="quiet",
                ),
                h("p", "Numbers count the names in a marker, or tell them apart.", cls="quiet"),
            ]
        )

    def _chain(self) -> Safe:
        analysis = self.session.analysis
        if not self.session.conflicts or analysis is None:
            return Safe("")
        names = inspect.chain(analysis, self.session.conflicts[0])
        steps = [h("li", f"{analysis.name_text[n]}  {op_label(analysis, int(analysis.dims.op[n]))}") for n in names]
        rest = h("p", f"… {len(steps) - 14} more", cls="quiet") if len(steps) > 14 else ""
        return join([h("h2", "why both dims have one colour"), h("ol", *steps[:14], cls="chain mono"), rest])

    def show_actions(self) -> None:
        """What sharding the selected colour would cost, and the manual plan so far."""
        self._actions.refresh()
        self._show_manual()

    def _show_manual(self) -> None:
        session = self.session
        item = session.plan_named("manual")
        base = session.plan_named("unsharded")
        lines: list[Any] = [h("h2", "manual plan")]
        if item is not None and base is not None and item.plan.actions:
            lines.append(h("ol", *[h("li", a) for a in item.plan.actions], cls="chain mono"))
            ratio = base.cost.time_s / item.cost.time_s if item.cost.time_s else 0
            speed = f"{seconds_text(item.cost.time_s)} a step ({ratio:.2f}× unsharded speed)"
            cost = f"{speed}, {bytes_text(item.cost.peak_bytes)} a device"
            lines.append(h("p", cost, " ", h("span", "estimated", cls="tag estimated")))
        else:
            lines.append(h("p", "Empty. Shard a selected colour on a mesh axis to begin one.", cls="quiet"))
        self._manual.object = join(lines)
        self._undo.visible = bool(session.trail.past)

    def __panel__(self) -> Any:
        return pn.Row(self.left, self.centre, self.right)


def _group_facts(analysis: Any, group: Any) -> list[tuple[str, str]]:
    n = sum(1 for c in analysis.conflicts if analysis.group[c.colour] == group.index)
    arguments = [analysis.program.value_name[a] for a in group.arguments]
    return [
        ("colour", group.name),
        ("size", str(group.size)),
        ("names", f"{group.n_names:,}"),
        ("mirrored colours", str(len(group.colours))),
        ("conflicts", f"{n}, {len(group.resolutions)} independent bits"),
        (
            "arguments",
            ", ".join(arguments[:8]) + (f" and {len(arguments) - 8} more" if len(arguments) > 8 else "") or "none",
        ),
        ("lane", "shown" if group.index in lane_groups(analysis) else "hidden"),
    ]


def colours_frame_empty() -> Any:
    """The colour table before a model is loaded."""
    import pandas as pd

    return pd.DataFrame({k: pd.Series(dtype="object") for k in ("", "colour", "size", "names", "conflicts")})
