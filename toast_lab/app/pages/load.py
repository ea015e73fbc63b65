"""Step 1: choose a model, see what it is made of."""

from __future__ import annotations

from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.markup import Safe, facts, h, join
from toast_lab.app.session import Session
from toast_lab.models import registry
from toast_lab.views.graph_layout import graph_layout
from toast_lab.views.graph_plot import GraphPlot
from toast_lab.views.summary import arguments_frame, coverage_notes, program_facts

SHOWN_SIZES = 14


class LoadPage(pn.viewable.Viewer):
    """Gallery left, program in the centre, what to know about it right."""

    def __init__(self, session: Session, offered: str = "", refusal: str = "", **params: Any) -> None:
        super().__init__(**params)
        self.session, self.offered = session, offered
        self._which = ""
        self._inputs: dict[str, Any] = {}
        self._cards = {name: self._card(name, text) for name, (_, text) in registry.MODELS.items()}
        own: list[Any] = [look.text(h("h2", "your own model"))]
        if offered:
            self._cards[offered] = self._card(offered, "the model that this server was started with")
            own.append(self._cards[offered])
        else:
            own.append(look.text(h("p", refusal or OWN_HELP, cls="quiet")))
        self._sizes = pn.Column(sizing_mode="stretch_width", margin=0)
        self._apply = look.button("Load with these sizes", button_type="primary", visible=False)
        self._apply.on_click(lambda _: self.session.load(self._which, self.chosen_sizes()))
        gallery = [self._cards[name] for name in registry.MODELS]
        self.left = look.side(look.text(h("h2", "gallery")), *gallery, *own, self._sizes, self._apply, width=290)
        self._graph = pn.pane.Bokeh(sizing_mode="stretch_both", margin=0, min_height=320)
        self._title = look.text()
        self._arguments = look.table(_empty(), height=170, sizing_mode="stretch_width", selectable=False)
        self.centre = pn.Column(
            self._title, self._graph, self._arguments, sizing_mode="stretch_both", stylesheets=[look.CANVAS], margin=0
        )
        self._facts = look.text()
        go = look.button("Open the graph and its conflicts →", button_type="primary")
        go.on_click(lambda _: setattr(self.session, "step", "graph"))
        self.right = look.side(self._facts, go, width=300)
        session.param.watch(lambda *_: self.refresh(), ["analysis", "problem"])
        self.refresh()

    def _card(self, name: str, text: str) -> pn.widgets.Button:
        card = look.button(f"{name} — {text}", left=True, button_style="outline", button_type="default")
        card.on_click(lambda _: self._choose(name))
        return card

    def _choose(self, name: str) -> None:
        self._which = name
        if ":" in name:
            self._sizes.objects, self._apply.visible = [], False
        else:
            self._show_sizes(name)
        self.session.load(name)

    def _show_sizes(self, name: str, current: dict[str, Any] | None = None) -> None:
        self._which = name
        self._inputs = {}
        known = registry.choices(name)
        for key, value in list(registry.sizes(name).items())[:SHOWN_SIZES]:
            value = (current or {}).get(key, value)
            common: dict[str, Any] = {
                "name": key,
                "sizing_mode": "stretch_width",
                "margin": (1, 3),
                "stylesheets": [look.INPUT],
            }
            if key in known:
                self._inputs[key] = pn.widgets.Select(value=value, options=list(known[key]), **common)
            elif isinstance(value, bool):  # before whole numbers, since Python counts it among them
                self._inputs[key] = pn.widgets.Checkbox(value=value, **common)
            elif isinstance(value, int):
                self._inputs[key] = pn.widgets.IntInput(value=value, start=1, **common)
            else:
                self._inputs[key] = pn.widgets.TextInput(value=str(value), **common)
        widgets = list(self._inputs.values())
        rows = [pn.Row(*widgets[i : i + 2], margin=0, sizing_mode="stretch_width") for i in range(0, len(widgets), 2)]
        self._sizes.objects = [look.text(h("h2", f"sizes of {name}")), *rows]
        self._apply.visible = True

    def chosen_sizes(self) -> dict[str, Any]:
        """What the size fields say."""
        return {key: widget.value for key, widget in self._inputs.items()}

    def refresh(self) -> None:
        """Show what is loaded."""
        session = self.session
        analysis, model = session.analysis, session.model
        if analysis is None or model is None:
            self._title.object = h("p", "Choose a model from the gallery.", cls="quiet")
            return
        if not self._inputs and model.name in registry.MODELS:
            self._show_sizes(model.name)
        for name, card in self._cards.items():
            card.button_type = "primary" if name in (model.name, model.source) else "default"
        layout = graph_layout(analysis)
        self._title.object = h(
            "p", h("b", model.name), h("span", f"  dimension graph · {layout.note}", cls="quiet"), cls="one"
        )
        self._graph.object = GraphPlot(layout).figure
        self._arguments.value = arguments_frame(analysis)
        self._facts.object = join([h("h2", "program"), facts(program_facts(analysis, model.source)), self._notes()])

    def _notes(self) -> Safe:
        problem = self.session.problem
        sizes = dict(zip(problem.mesh.axes, problem.mesh.sizes, strict=True)) if problem is not None else {}
        notes = coverage_notes(self.session.analysis, sizes) if self.session.analysis is not None else []
        if not notes:
            return h(
                "p",
                f"Every op has a sharding rule and every colour divides on mesh {problem.mesh if problem else ''}.",
                cls="quiet",
            )
        return join([h("h2", "worth knowing"), h("ul", *[h("li", n) for n in notes], cls="log")])

    def __panel__(self) -> Any:
        return pn.Row(self.left, self.centre, self.right)


OWN_HELP = "Start the server with it: toast-lab serve my.module:make, where make() returns (fn, args)."


def _empty() -> Any:
    import pandas as pd

    return pd.DataFrame({k: pd.Series(dtype="object") for k in ("argument", "type", "colours", "size", "donated")})
