"""Style sheets and small layout helpers of the explorer.

Fonts are the system's; nothing is fetched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pandas as pd
import panel as pn
from bokeh.models import CustomJS, Tabs
from panel.io import JSCode
from panel.models.tabulator import CellClickEvent

from toast_lab.app import assets
from toast_lab.app.column_widths import column_widths
from toast_lab.views.chart_scale import SCALES
from toast_lab.views.race_curves import QUANTITY_TITLES

TEXT = assets.sheet("text")

HEADER = TEXT + assets.sheet("header")

STATUS = TEXT + assets.sheet("status")

CARD = assets.sheet("card")
CANVAS = assets.sheet("canvas")
#: for a pane that takes the room that others leave
FILL = assets.sheet("fill")
#: the same for one that scrolls where its charts would get too low
SCROLLING = assets.sheet("scrolling")
CHART = assets.sheet("chart")
#: the same for the page's body, which on a narrow screen grows with its content
GROWING = assets.sheet("growing")
BODY = assets.sheet("body")
#: the same for a page with one side column, which may be as wide as a narrow screen
BODY_OF_ONE = BODY + "@media (max-width: 1100px) { :host { --side-width: 100%; } }"
SIDE = CARD + assets.sheet("side")
MIDDLE = assets.sheet("middle")
ROOT = assets.sheet("root")
BUTTON = assets.sheet("button")
SLIM_BUTTON = BUTTON + ".bk-btn { padding: 2px 8px; }"
LEFT_BUTTON = BUTTON + (
    ".bk-btn { text-align: left; padding: 6px 10px; white-space: pre-line; "
    "overflow-wrap: anywhere; }"
)
INPUT = assets.sheet("input")
TABS = assets.sheet("tabs")
TABLE = assets.sheet("table")
WRAP = assets.sheet("wrap")
TALL = "@media (max-width: 1100px) { :host { height: var(--rows-height) !important; } }"
#: options of a widget that is as wide as its column
FIELD: dict[str, Any] = {
    "sizing_mode": "stretch_width",
    "margin": (3, 0),
    "stylesheets": [INPUT],
}


class Pane(pn.viewable.Viewer):
    """A component of a page.

    Attributes:
        view: its layout, which the page shows.
    """

    view: Any

    def __panel__(self) -> Any:
        return self.view


def watch(source: Any, act: Callable[[], Any], *names: str) -> None:
    """Call ``act`` whenever one of the named parameters of ``source`` changes."""
    source.param.watch(lambda *_: act(), list(names))


def watch_value(source: Any, act: Callable[[Any], Any], name: str = "value") -> None:
    """Call ``act`` with each new value of a parameter of ``source``."""
    source.param.watch(lambda event: act(event.new), name)


def later(change: Callable[..., Any], *args: Any) -> None:
    """Change Bokeh models of a page that is already shown, once its document may be changed.

    Panel runs the events of some components outside the document's lock, where Bokeh refuses
    changes, and so it runs a click that comes while another change waits. And Panel has its own
    queue of messages to the browser: a change that bypasses the queue would overtake the message
    that brings the very models that it changes.
    """
    pn.state.execute(functools.partial(_in_turn, change, *args), schedule=True)


def next_turn(act: Callable[[], None]) -> None:
    """Call ``act`` once the browser has been told of all changes so far."""
    pn.state.execute(act, schedule=True)


def tell_again(widget: Any, name: str) -> None:
    """Send a property of a widget's model to the browser, though the server did not change it.

    If both sides change it at the same time, the messages cross, and each side ends up with the
    other's value.
    """
    for model, _ in widget._models.values():
        model.trigger(name, getattr(model, name), getattr(model, name))


def _in_turn(change: Callable[..., Any], *args: Any) -> None:
    with pn.io.unlocked():
        change(*args)


def text(content: Any = "", **kwargs: Any) -> pn.pane.HTML:
    """An HTML pane for content made by ``markup``, as wide as its column unless it has a width."""
    sizing = {} if "width" in kwargs else {"sizing_mode": "stretch_width"}
    return pn.pane.HTML(content, **{"stylesheets": [TEXT], "margin": 0, **sizing, **kwargs})


def button(
    name: str, act: Callable[[], Any] | None = None, *, left: bool = False, **kwargs: Any
) -> pn.widgets.Button:
    """A button that calls ``act``, as wide as its column unless it has a width; plain text."""
    sizing = "fixed" if "width" in kwargs else "stretch_width"
    sheet = LEFT_BUTTON if left else BUTTON
    defaults = {"sizing_mode": sizing, "margin": (2, 0), "stylesheets": [sheet]}
    button = pn.widgets.Button(name=name, **{**defaults, **kwargs})
    if act is not None:
        button.on_click(lambda _: act())
    return button


def switch(**kwargs: Any) -> pn.widgets.RadioButtonGroup:
    """A row of buttons of which one is pressed."""
    defaults = {"button_type": "default", "margin": 0, "stylesheets": [BUTTON]}
    if "width" in kwargs:
        defaults["sizing_mode"] = "fixed"
    return pn.widgets.RadioButtonGroup(**{**defaults, **kwargs})


def unfolds(name: str, form: Any, **kwargs: Any) -> pn.widgets.Toggle:
    """A button that shows ``form`` while it is pressed."""
    toggle = pn.widgets.Toggle(
        name=name, **{"sizing_mode": "fixed", "stylesheets": [SLIM_BUTTON], **kwargs}
    )
    form.visible = False
    watch_value(toggle, lambda pressed: form.param.update(visible=pressed))
    return toggle


def scale_switch(act: Callable[[], Any]) -> pn.widgets.RadioButtonGroup:
    """A switch for the scale of a chart's y axis; ``act`` redraws the chart."""
    scale = switch(
        options=list(SCALES),
        value=SCALES[0],
        width=180,
        height=28,
        stylesheets=[BUTTON + ".bk-btn { padding: 2px 8px; }"],
    )
    watch(scale, act, "value")
    return scale


def quantity_switch(act: Callable[[], Any]) -> pn.widgets.RadioButtonGroup:
    """A switch for the quantity that a chart of a race shows; ``act`` redraws the chart."""
    options = {title: name for name, title in QUANTITY_TITLES.items()}
    kind = switch(options=options, value="score", margin=(0, 0, 4, 0))
    watch(kind, act, "value")
    return kind


def tabs(*titled: tuple[str, Any], **kwargs: Any) -> pn.Tabs:
    """Tabs that fill their container."""
    defaults = {"sizing_mode": "stretch_both", "margin": 0, "stylesheets": [TABS]}
    return pn.Tabs(*titled, **{**defaults, **kwargs})


def withhold(layout: pn.Column, make: Callable[[], list[Any]]) -> pn.Column:
    """Fill ``layout`` with what ``make`` gives when it is shown for the first time.

    Hidden content costs a new page as much as visible content: the server makes and sends it, and
    the browser draws it.
    """

    def fill() -> None:
        if layout.visible:
            layout.param.unwatch(watcher)
            layout.objects = make()

    watcher = layout.param.watch(lambda _: fill(), "visible")
    fill()
    return layout


def figure(shown: Any = None, *, least_px: int) -> pn.pane.Bokeh:
    """A Bokeh figure that fills its container, and is at least ``least_px`` high."""
    return pn.pane.Bokeh(
        shown, sizing_mode="stretch_both", margin=0, min_height=least_px, stylesheets=[CHART]
    )


def table(content: Any, *, wraps: bool = False, **kwargs: Any) -> pn.widgets.Tabulator:
    """A read-only table of a frame, or of column names alone; cells show names as plain text.

    It fills its container; with a height, only in width. Columns are as wide as their texts, or as
    ``widths``, up to a limit; they grow with their values, can be dragged, and a tooltip has texts
    that are still cut off. With ``wraps`` they keep their widths, and longer texts take more lines.
    """
    frame = pd.DataFrame(columns=content) if isinstance(content, list) else content
    columns = {
        "headerSort": False,
        "minWidth": 20,
        # By default Tabulator takes the text as HTML, and anybody may have written it
        "tooltip": JSCode(assets.script("table_tip").strip()),
        "headerTooltip": JSCode(assets.script("table_tip").strip()),
        # Between cells, a handle would take clicks that are meant for the row
        "resizable": "header",
    }
    settings = kwargs.pop("configuration", {})
    settings = {**settings, "columnDefaults": {**columns, **settings.get("columnDefaults", {})}}
    defaults = {
        "sizing_mode": "stretch_width" if "height" in kwargs else "stretch_both",
        "selectable": 1,
        # In a stretched table, the last column would be cut to the room that is left
        "layout": "fit_data_fill",
        # Panel would divide more than 200 rows into pages, of one row each in a low pane; Tabulator
        # draws only the rows in view
        "pagination": None,
        "configuration": settings,
        "stylesheets": [TABLE + WRAP if wraps else TABLE],
    }
    table = FittedTable(
        frame,
        show_index=False,
        disabled=True,
        theme="simple",
        text_align="left",
        margin=0,
        formatters={column: {"type": "plaintext"} for column in frame.columns},
        **{**defaults, **kwargs},
    )
    if not wraps:
        sorts = bool(settings["columnDefaults"]["headerSort"])
        watch(table, lambda: widen(table, sorts=sorts), "value", "titles")
        widen(table, sorts=sorts)
    return table


class FittedTable(pn.widgets.Tabulator):
    """A table whose columns may change at any time, and whose rows are not redrawn for new widths.

    Panel hands changed columns to the browser's table at once. A table that is still being built
    fails at them, and so does everything else in the same message; it drops changed rows. So the
    list of columns in the browser never changes: widths and titles change inside it, and
    ``refit.js`` waits until there is a table to show them and the rows; for other columns a new
    table is made.
    """

    _clicked_row: int | None = None

    def _process_event(self, event: Any) -> None:
        """Treat a click beside the last column as a click on its row, which follows it."""
        clicked_row, self._clicked_row = self._clicked_row, None
        if event.event_name == "cell-click":
            self._clicked_row = event.row
        elif event.event_name == "selection-change" and event.indices not in ([], [clicked_row]):
            event = CellClickEvent(event.model, column="", row=event.indices[-1])
        super()._process_event(event)

    def _get_model(self, doc: Any, root: Any = None, parent: Any = None, comm: Any = None) -> Any:
        model: Any = super()._get_model(doc, root, parent, comm)
        for changed, name, part in (
            (model, "tags", "columns"),
            (model.source, "data", "rows"),
            (model, "height", "height"),
        ):
            args = {"table": model, "part": part}
            changed.js_on_change(name, CustomJS(args=args, code=assets.script("refit")))
        return model

    def _manual_update(
        self, events: Any, model: Any, doc: Any, root: Any, parent: Any, comm: Any
    ) -> None:
        # Since this call was put off, another model may have replaced this one
        model = self._models.get(root.ref["id"], (model,))[0]
        if [column.field for column in model.columns] == self._get_fields():
            super()._manual_update(events, model, doc=doc, root=root, parent=parent, comm=comm)
        else:
            self._replace(model, doc, root, parent=parent, comm=comm)

    def _update_columns(self, event: Any, model: Any) -> None:
        if event.name in ("widths", "titles"):
            for column, fresh in zip(model.columns, self._get_columns(), strict=True):
                column.update(title=fresh.title, width=fresh.width)
            model.tags = [(model.tags or [0])[0] + 1]
        else:
            super()._update_columns(event, model)

    def _replace(self, model: Any, doc: Any, root: Any, parent: Any, comm: Any) -> None:
        """Replace ``model`` with a table of the current columns."""
        fresh = self._get_model(doc, root, parent, comm)
        if isinstance(parent, Tabs):
            tabs: Any = parent.tabs
            next(tab for tab in tabs if tab.child is model).child = fresh
        else:
            parent.children = [fresh if child is model else child for child in parent.children]
        viewable = pn.state._views[root.ref["id"]][0]
        viewable._preprocess(root, self)


def widen(table: pn.widgets.Tabulator, *, sorts: bool) -> None:
    """Give columns the width that their texts need; none gets narrower."""
    needed = column_widths(table.value, table.titles, sorts=sorts)
    widths = {column: max(table.widths.get(column, 0), width) for column, width in needed.items()}
    if widths != table.widths:
        table.widths = widths


def on_row(table: pn.widgets.Tabulator, act: Callable[[int], Any]) -> None:
    """Call ``act`` with the number of the row that is clicked."""
    table.on_click(lambda event: act(int(event.row)))


def rows_height(n_rows: int, at_most: int) -> int:
    """Height in px of a table that shows all its rows, or scrolls them above ``at_most``."""
    return min(38 + 25 * max(n_rows, 1), at_most)


def colour_table(columns: list[str], widths: dict[str, int], **kwargs: Any) -> pn.widgets.Tabulator:
    """A table of colours in a side column: long names wrap, so that every column is in sight."""
    fitted = table(
        columns,
        layout="fit_data_table",
        widths={"": 26, "colour": 104, "size": 62, **widths},
        wraps=True,
        **kwargs,
    )
    fitted.stylesheets = [*fitted.stylesheets, TALL]
    return fitted


def show_rows(table: pn.widgets.Tabulator, at_most: int) -> None:
    """Make a table of a side column as high as its rows, up to a limit.

    On a narrow page, where side columns grow with their content, the limit is four times as high.
    """
    count = len(table.value)
    table.height = rows_height(count, at_most)
    table.styles = {"--rows-height": f"{rows_height(count, 4 * at_most)}px"}


def row(*objects: Any, **kwargs: Any) -> pn.Row:
    """Objects beside each other, as wide as their container."""
    return pn.Row(*objects, **{"sizing_mode": "stretch_width", "margin": 0, **kwargs})


def column(*objects: Any, **kwargs: Any) -> pn.Column:
    """Objects below each other, as wide as their container."""
    return pn.Column(*objects, **{"sizing_mode": "stretch_width", "margin": 0, **kwargs})


def filled_row(*objects: Any, **kwargs: Any) -> pn.Row:
    """Objects beside each other that fill their container."""
    return row(*objects, sizing_mode="stretch_both", **kwargs)


def filled_column(*objects: Any, **kwargs: Any) -> pn.Column:
    """Objects below each other that fill their container."""
    return column(*objects, sizing_mode="stretch_both", **kwargs)


def canvas(*objects: Any, **kwargs: Any) -> pn.Column:
    """The middle of a page: objects below each other on a canvas."""
    return filled_column(*objects, stylesheets=[CANVAS], **kwargs)


def side(*objects: Any, width: int) -> pn.Column:
    """A column of controls or facts beside the canvas."""
    return pn.Column(
        *objects,
        width=width,
        sizing_mode="stretch_height",
        stylesheets=[SIDE],
        margin=0,
        scroll=False,
    )
