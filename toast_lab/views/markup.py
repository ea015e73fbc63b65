"""Build HTML that is safe from injection: every string is escaped unless this module made it.

Names, paths and error texts come from the user's code, and Panel's HTML panes execute what they are
given.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from toast_lab.views.compare_table import bytes_text, seconds_text

__all__ = [
    "ESTIMATED",
    "Facts",
    "Safe",
    "bytes_text",
    "cost_text",
    "facts",
    "h",
    "join",
    "numbered",
    "one_line",
    "quiet",
    "seconds_text",
]

Facts = list[tuple[str, object]]


class Safe(str):
    """HTML made by ``h``."""

    __slots__ = ()


def text(value: object) -> Safe:
    """Escape a value, unless it is ``Safe`` already."""
    return value if isinstance(value, Safe) else Safe(html.escape(str(value)))


def join(*parts: object, between: str = "") -> Safe:
    """Escape parts and join them with ``between``."""
    return Safe(html.escape(between).join(text(part) for part in parts))


def h(tag: str, *children: object, cls: str = "", **attributes: str) -> Safe:
    """One HTML element.

    >>> h("b", "<img src=x>", cls="name")
    '<b class="name">&lt;img src=x&gt;</b>'
    """
    if cls:
        attributes = {"class": cls, **attributes}
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Safe(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def facts(rows: Iterable[tuple[str, object]]) -> Safe:
    """Pairs as a definition list in two columns."""
    return h("dl", *[join(h("dt", label), h("dd", value)) for label, value in rows], cls="facts")


def quiet(*children: object, **attributes: str) -> Safe:
    """A muted paragraph."""
    return h("p", *children, cls="quiet", **attributes)


def cost_text(priced: Any) -> str:
    """Step time and peak memory of anything with ``time_s`` and ``peak_bytes``."""
    return f"{seconds_text(priced.time_s)}, {bytes_text(priced.peak_bytes)}"


def one_line(text: str) -> Safe:
    """A muted text that is cut off at the end of its line; its tooltip has all of it."""
    return h("p", text, cls="quiet one", title=text)


def numbered(texts: Iterable[object]) -> Safe:
    """Texts as a numbered list, one below the other."""
    return h("ol", *[h("li", text) for text in texts], cls="chain mono")


#: the tag beside numbers of the cost model
ESTIMATED = h("span", "estimated", cls="tag estimated")
