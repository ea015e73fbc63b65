"""Tables and boxes of a report, as HTML that text from the user's code cannot break out of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from toast_lab.views.markup import Safe, h, join

#: a table with more rows than this scrolls in its own box
MAX_UNSCROLLED_ROWS = 16
#: a column with texts of more characters than this gets more room
WIDE_TEXT_LENGTH = 60
#: cells that count as empty
EMPTY_CELLS = ("", "–", None)


class Section(NamedTuple):
    """One section of the page: its anchor, its name in links, its heading and its content."""

    anchor: str
    name: str
    title: str
    body: Safe


def rows_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    label: str,
    *,
    picks: Sequence[str] = (),
) -> Safe:
    """A table; a title may start with ">" for numbers, "~" for code or "=" for code on one line.

    Args:
        columns: titles of the columns.
        rows: cells of each row, text or ``Safe``.
        label: what the table lists, for screen readers.
        picks: by row, what selecting the row selects on the whole page ("conflict 3"); "" for
            nothing.
    """
    table = [*rows]
    kinds = {">": "number", "~": "mono", "=": "mono line"}
    classes = [kinds.get(title[:1], "") for title in columns]
    classes = [
        "wide"
        if not kind and any(len(str(row[column_index])) > WIDE_TEXT_LENGTH for row in table)
        else kind
        for column_index, kind in enumerate(classes)
    ]
    header_row = h(
        "tr",
        *[
            h("th", title.lstrip(">~="), cls=kind, scope="col")
            for title, kind in zip(columns, classes, strict=True)
        ],
    )
    body_rows = []
    for index, row in enumerate(table):
        cells = [h("td", cell, cls=kind) for cell, kind in zip(row, classes, strict=True)]
        pick = picks[index] if index < len(picks) else ""
        attributes = {"data_pick": pick, "tabindex": "-1"} if pick else {}
        body_rows.append(h("tr", *cells, **attributes))
    body = h(
        "table",
        h("caption", label, cls="unseen"),
        h("thead", header_row),
        h("tbody", *body_rows),
        cls="pickable" if picks else "",
    )
    return box(body, label, tall=len(body_rows) > MAX_UNSCROLLED_ROWS)


def box(content: Safe, label: str, *, tall: bool) -> Safe:
    """A box in which content that is larger than the page scrolls, with the keyboard as well."""
    return h(
        "div",
        content,
        cls="box tall" if tall else "box",
        tabindex="0",
        role="region",
        aria_label=label,
    )


def frame_table(
    frame: pd.DataFrame,
    label: str,
    *,
    numbers: Collection[str] = (),
    code: Collection[str] = (),
    picks: Sequence[str] = (),
) -> Safe:
    """A data frame of texts as a table, without its empty columns."""
    shown = [
        str(column)
        for column in frame.columns
        if not all(cell in EMPTY_CELLS for cell in frame[column])
    ]
    prefixed_titles = [
        (">" if name in numbers else "~" if name in code else "") + name for name in shown
    ]
    cells = frame[shown].itertuples(index=False, name=None)
    return rows_table(prefixed_titles, cells, label, picks=picks)


def details(summary: object, *content: object, opened: bool = False) -> Safe:
    """Content that unfolds on demand below its summary."""
    attributes = {"open": "open"} if opened else {}
    return h("details", h("summary", summary), *content, **attributes)


def figure_box(name: str, height_px: int, label: str, caption: object) -> Safe:
    """The placeholder of a picture that the page's script draws."""
    canvas = h(
        "div",
        cls="canvas",
        data_figure=name,
        style=f"height: {height_px}px",
        role="img",
        aria_label=label,
    )
    return h("figure", canvas, h("figcaption", caption))


def unbroken(text: str) -> str:
    """A short text that stays on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def enumeration(items: Sequence[object], most: int = 4) -> Safe:
    """``a, b and c``; items beyond the first ``most`` are only counted."""
    shown = [*items[:most]]
    if len(items) > most:
        shown.append(f"{len(items) - most} more")
    if len(shown) < 2:
        return join(*shown)
    return join(join(*shown[:-1], between=", "), " and ", shown[-1])
