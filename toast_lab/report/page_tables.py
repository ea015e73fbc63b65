"""Tables and boxes of a report, as HTML that no text from the user's code can break out of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from toast_lab.views.markup import Safe, h, join

#: a table with more rows scrolls in a box of its own
TALL = 16
#: a column with longer texts gets more room
WIDE = 60
EMPTY = ("", "–", None)


class Section(NamedTuple):
    """One part of the page: where links lead to, its name there, its heading, and the rest."""

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
    """A table; columns whose title starts with ">" are numbers, with "~" code, "=" code in a line.

    Args:
        columns: titles.
        rows: cells, text or ``Safe``.
        label: what the table lists, for those who do not see it.
        picks: by row, what selecting it selects everywhere ("conflict 3"); "" for nothing.
    """
    table = [*rows]
    kinds = {">": "number", "~": "mono", "=": "mono line"}
    classes = [kinds.get(title[:1], "") for title in columns]
    classes = [
        "wide" if not kind and any(len(str(row[place])) > WIDE for row in table) else kind
        for place, kind in enumerate(classes)
    ]
    head = h(
        "tr",
        *[
            h("th", title.lstrip(">~="), cls=kind, scope="col")
            for title, kind in zip(columns, classes, strict=True)
        ],
    )
    lines = []
    for index, row in enumerate(table):
        cells = [h("td", cell, cls=kind) for cell, kind in zip(row, classes, strict=True)]
        pick = picks[index] if index < len(picks) else ""
        attributes = {"data_pick": pick, "tabindex": "-1"} if pick else {}
        lines.append(h("tr", *cells, **attributes))
    body = h(
        "table",
        h("caption", label, cls="unseen"),
        h("thead", head),
        h("tbody", *lines),
        cls="pickable" if picks else "",
    )
    return box(body, label, tall=len(lines) > TALL)


def box(content: Safe, label: str, *, tall: bool) -> Safe:
    """What may be wider or taller than the page scrolls by itself, with the keyboard as well."""
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
    """A frame whose cells are texts already; columns with nothing in them are left out."""
    shown = [
        str(column) for column in frame.columns if not all(cell in EMPTY for cell in frame[column])
    ]
    signs = [(">" if name in numbers else "~" if name in code else "") + name for name in shown]
    cells = frame[shown].itertuples(index=False, name=None)
    return rows_table(signs, cells, label, picks=picks)


def details(summary: object, *content: object, opened: bool = False) -> Safe:
    """Something that is unfolded on demand."""
    attributes = {"open": "open"} if opened else {}
    return h("details", h("summary", summary), *content, **attributes)


def figure_box(name: str, height_px: int, label: str, caption: object) -> Safe:
    """The place of a picture that the page's script draws."""
    place = h(
        "div",
        cls="canvas",
        data_figure=name,
        style=f"height: {height_px}px",
        role="img",
        aria_label=label,
    )
    return h("figure", place, h("figcaption", caption))


def words(*parts: object) -> Safe:
    """A paragraph."""
    return h("p", *parts)


def code_text(content: object) -> Safe:
    """A name or a line of code inside a sentence."""
    return h("code", content)


def unbroken(text: str) -> str:
    """A short text that stays on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def listed(items: Sequence[object], most: int = 4) -> Safe:
    """``a, b and c``; beyond ``most`` the rest is counted."""
    shown = [*items[:most]]
    if len(items) > most:
        shown.append(f"{len(items) - most} more")
    if len(shown) < 2:
        return join(shown)
    return join([join(shown[:-1], ", "), " and ", shown[-1]])
