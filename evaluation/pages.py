"""Pages of the documentation that are made from results: tables, charts, and parts of pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table; a column whose name starts with ">" is right-aligned."""
    rule = "".join("--:|" if column.startswith(">") else "---|" for column in columns)
    return [
        line(column.removeprefix(">") for column in columns),
        f"|{rule}",
        *map(line, rows),
    ]


def line(cells: Iterable[object]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def with_part(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with new lines between its marks ``<!-- name ... -->`` and ``<!-- end of name -->``.

    Raises:
        ValueError: the page does not have both marks.
    """
    marks = rf"(<!-- {name}\b[^>]*-->\n).*(<!-- end of {name} -->)"
    body = "".join(f"{line_text}\n" for line_text in lines)
    filled, count = re.subn(marks, lambda mark: f"{mark[1]}{body}{mark[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} parts are marked <!-- {name} --> to <!-- end of {name} -->")
    return filled


def save_figure(figure: Any, path: Path, size_px: tuple[float, float]) -> None:
    """Write a layout with one legend, on white, each panel of this size in pixels."""
    from toast_lab.views.saved_chart import save_chart

    save_chart(figure, path, size_px=size_px, one_legend=True, ground="white")
