"""``CellView``: a component of the explorer in a notebook cell, or in a window of its own.

A view creates a new page for each frame that opens it, so that every frame has its own state. It
also draws itself as plain HTML, which a saved notebook shows.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn

from toast_lab.app import assets, frames, look, theme
from toast_lab.app.pace import ticker
from toast_lab.errors import InvalidInput
from toast_lab.files import write_whole
from toast_lab.views.markup import Safe, h, join

MAX_ROWS = 40  #: most rows of a static table
FRAME = assets.sheet("cell")


class CellView:
    """One component of the explorer; a notebook shows it as the last value of a cell.

    Attributes:
        kind: its name in ``toast_lab.views``.
        height: of the frame, in pixels.
    """

    def __init__(
        self,
        kind: str,
        about: str | Callable[[], str],
        make: Callable[[], Any],
        static: Callable[[], Safe],
        height: int,
        table: Callable[[], pd.DataFrame],
    ) -> None:
        self.kind, self.height = kind, height
        self._about, self._make, self._static, self._table = about, make, static, table
        self._url = ""

    @property
    def url(self) -> str:
        """URL of the view's page; reading the first URL of all views starts the server."""
        if not self._url:
            self._url = frames.add(self._framed)
        return self._url

    def _framed(self) -> Any:
        theme.dress(pn.state.curdoc)
        return self.page("100vh")

    @property
    def table(self) -> pd.DataFrame:
        """The view's contents as a table."""
        return self._table()

    def page(self, height: str) -> Any:
        """A Panel object for one visitor; ``height`` is a CSS length."""
        return look.filled_column(self._make(), styles={"height": height}, stylesheets=[FRAME])

    def to_html(self) -> str:
        """The static picture: HTML without scripts."""
        return h("div", join(self._static(), h("p", h("small", repr(self)))))

    def save(self, path: str | Path) -> None:
        """Write the static picture as an HTML page."""
        name = f"TOAST Lab: {self.kind}"
        head = h("head", Safe('<meta charset="utf-8"/>'), h("title", name))
        write_whole(
            path, "<!doctype html>" + h("html", head, h("body", Safe(self.to_html()))), "the page"
        )

    def show(self) -> None:
        """Open the view in a browser window."""
        webbrowser.open(self.url)

    def close(self) -> None:
        """Stop serving the view's page."""
        if self._url:
            frames.remove(self._url)
            self._url = ""

    def _repr_html_(self) -> str:
        return frames.html(self.url, self.height, f"TOAST Lab {self.kind}", Safe(self.to_html()))

    def __repr__(self) -> str:
        about = self._about if isinstance(self._about, str) else self._about()
        return f"toast_lab.views.{self.kind}: {about}"


def shown(inline: bool, **parts: Any) -> Any:
    """A ``CellView`` of these parts; with ``inline``, its page, for kernels on another machine."""
    view = CellView(**parts)
    if not inline:
        return view
    pn.extension("tabulator", inline=True)
    return view.page(f"{view.height}px")


def beside(left: Any, *right: Any, width: int) -> pn.Row:
    """A row with a cell's main content and, on its right, a card of facts ``width`` pixels wide."""
    card = pn.Column(
        *right,
        width=width,
        sizing_mode="stretch_height",
        margin=(0, 0, 0, 6),
        scroll=True,
        stylesheets=[look.CARD],
    )
    return look.filled_row(left, card)


def every_tick(call: Callable[[], Any]) -> None:
    """Call a function every ``TICK_MS`` milliseconds once the page is loaded."""

    def begin() -> None:
        ticker(call)

    pn.state.onload(begin)


def table_html(frame: pd.DataFrame, at_most: int = MAX_ROWS) -> Safe:
    """An HTML table of the first ``at_most`` rows, without scripts; texts are escaped."""
    header = h("tr", *[h("th", column, style="text-align: left") for column in frame.columns])
    rows = [
        h("tr", *[h("td", _cell(value), style="text-align: left") for value in row])
        for row in frame.head(at_most).itertuples(index=False)
    ]
    hidden_count = len(frame) - at_most
    footer = h("p", f"and {hidden_count:,} rows more") if hidden_count > 0 else ""
    return join(h("table", h("thead", header), h("tbody", *rows)), footer)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def refused(view: str, takes: str, argument: object, example: str) -> InvalidInput:
    """The error for an argument whose type a view does not accept."""
    return InvalidInput(
        f"views.{view} takes {takes}, not {kind_text(argument)}. For instance: {example}"
    )


def kind_text(argument: object) -> str:
    """The type of an argument with its article: ``an Analysis``, ``a dict``."""
    name = type(argument).__name__
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"
