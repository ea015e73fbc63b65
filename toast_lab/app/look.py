"""Style sheets and small layout helpers of the explorer.

Fonts are the system's, nothing is fetched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import panel as pn
import panel.models.tabulator

from toast_lab.app import assets

TEXT = assets.sheet("text")

HEADER = TEXT + assets.sheet("header")

STATUS = TEXT + assets.sheet("status")

CARD = assets.sheet("card")
CANVAS = assets.sheet("canvas")
FILL = assets.sheet("fill")
BODY = assets.sheet("body")
SIDE = CARD + assets.sheet("side")
MIDDLE = assets.sheet("middle")
ROOT = assets.sheet("root")
BUTTON = assets.sheet("button")
SLIM_BUTTON = BUTTON + ".bk-btn { padding: 2px 8px; }"
LEFT_BUTTON = BUTTON + ".bk-btn { text-align: left; padding: 6px 10px; white-space: pre-line; }"
INPUT = assets.sheet("input")
TABS = assets.sheet("tabs")
TABLE = assets.sheet("table")


def later(change: Callable[..., Any], *args: Any) -> None:
    """Change Bokeh models of a page that is shown already, once its document is free to be changed.

    Panel runs the events of some components outside the document's lock, where Bokeh refuses
    changes.
    """
    pn.state.execute(functools.partial(change, *args), schedule=True)


def text(content: Any = "", **kwargs: Any) -> pn.pane.HTML:
    """An HTML pane for content made by ``markup``."""
    kwargs.setdefault("sizing_mode", "stretch_width")
    kwargs.setdefault("margin", 0)
    return pn.pane.HTML(content, stylesheets=[TEXT], **kwargs)


def button(name: str, *, left: bool = False, **kwargs: Any) -> pn.widgets.Button:
    """A button; its label is plain text."""
    kwargs.setdefault("sizing_mode", "stretch_width")
    kwargs.setdefault("margin", (2, 0))
    return pn.widgets.Button(name=name, stylesheets=[LEFT_BUTTON if left else BUTTON], **kwargs)


def table(frame: Any, **kwargs: Any) -> pn.widgets.Tabulator:
    """A read-only table; cells show names as plain text."""
    kwargs.setdefault("sizing_mode", "stretch_both")
    kwargs.setdefault("selectable", 1)
    kwargs.setdefault("layout", "fit_data_stretch")
    kwargs.setdefault("configuration", {"columnDefaults": {"headerSort": False, "minWidth": 20}})
    return pn.widgets.Tabulator(
        frame,
        show_index=False,
        disabled=True,
        theme="simple",
        text_align="left",
        stylesheets=[TABLE],
        margin=0,
        formatters={c: {"type": "plaintext"} for c in frame.columns},
        **kwargs,
    )


def rows_height(n_rows: int, at_most: int) -> int:
    """Height of a table that shows all its rows, or scrolls them."""
    return min(38 + 25 * max(n_rows, 1), at_most)


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
