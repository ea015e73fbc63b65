"""Plain-text tables and units, for the reports that ``str()`` returns.

Commands and the explorer have their own renderers; these texts are for Python prompts and log
files.
"""

from __future__ import annotations

import csv
import html
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

JsonObject = dict[str, Any]
#: Two prices that differ by less are reported as equal, since their ratio is shown with one decimal
#: of a per cent.
LEAST_SHARE = 0.0005
#: bytes of the units in which sizes may be given
_BYTES = {
    **{f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)},
}


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], limit: int = 40, rest: str = ""
) -> str:
    """Columns of text, two blanks apart; a column whose title starts with ">" is right-aligned.

    Rows beyond ``limit`` are only counted; ``rest``, appended to the count, says where they are.

    >>> print(table(("op", ">count"), [("sort", 2), ("custom_call", 11)]))
    op           count
    sort             2
    custom_call     11
    """
    all_rows = [[str(cell) for cell in row] for row in rows]
    shown = [[title.lstrip(">") for title in columns], *all_rows[:limit]]
    widths = [max(len(row[column_index]) for row in shown) for column_index in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in shown
    ]
    if len(all_rows) > limit:
        lines.append(f"... and {len(all_rows) - limit} more{rest}")
    return "\n".join(lines)


class Table(NamedTuple):
    """A table of a report, for every renderer.

    A column's title starts with ">" for numbers, or with "~" for texts that may be folded.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    def __str__(self) -> str:
        columns = [column.lstrip("~") for column in self.columns]
        return f"{self.title}\n{table(columns, self.rows)}"


def bounded(lines: Sequence[str], limit: int, rest: str) -> str:
    """The first ``limit`` lines as one text.

    Further lines are only counted; ``rest``, appended to the count, says where they are.

    >>> print(bounded(["a", "b", "c"], 2, ": letters has all"))
    a
    b
    ... and 1 more: letters has all
    """
    remark = [f"... and {len(lines) - limit} more{rest}"] if len(lines) > limit else []
    return "\n".join([*lines[:limit], *remark])


def as_html(report: object) -> str:
    """HTML of a report for a notebook, which would otherwise show its ``repr``.

    It shows the ``str`` in a fixed-width font, so that columns stay aligned. Notebooks would break
    its lines, even inside words.
    """
    style = "white-space: pre; word-break: normal; overflow-x: auto"
    return f'<pre style="{style}">{html.escape(str(report))}</pre>'


def bytes_text(size: float) -> str:
    """``512 B``, ``4 KiB``, ``1.25 GiB``."""
    for unit, scale in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(size) >= scale:
            scaled_size = size / scale
            return (
                f"{scaled_size:.3g} {unit}" if scaled_size < 1000 else f"{scaled_size:.0f} {unit}"
            )
    return f"{size:.0f} B"


def read_gib(text: str) -> float:
    """Read a memory size as GiB, from a number of GiB or a number with its unit.

    Raises:
        ValueError: the text is not a size; the message says how to write one.

    >>> read_gib("8"), read_gib("8 GiB"), read_gib("512 MiB"), read_gib("80GB")
    (8.0, 8.0, 0.5, 74.50580596923828)
    >>> read_gib("8 cups")
    Traceback (most recent call last):
    ValueError: '8 cups' is not a memory size; give a number of GiB, or one with a unit (512 MiB)
    """
    normalised = text.strip().replace(",", "").casefold()
    unit = next((unit for unit in _BYTES if normalised.endswith(unit)), "")
    try:
        size_gib = float(normalised.removesuffix(unit)) * _BYTES.get(unit, 2**30) / 2**30
    except ValueError:
        size_gib = math.nan
    if not math.isfinite(size_gib):
        raise ValueError(
            f"{text!r} is not a memory size; give a number of GiB, or one with a unit (512 MiB)"
        )
    return size_gib


def file_text(path: str) -> str:
    """A source file without its folder, or the cell of the running notebook that it stands for.

    A notebook kernel gives each cell the name of a temporary file, such as ``2029801056.py``, which
    tells a reader nothing; IPython knows the number of the cell.

    >>> file_text("lib/flax/nnx/nn/linear.py")
    'linear.py'
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # Shells other than a kernel's may lack this table.
    cell_numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if path in cell_numbers:
        return f"In[{cell_numbers[path]}]"
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def line_text(location: str) -> str:
    """A source line without its folder.

    >>> line_text("lib/flax/nnx/nn/linear.py:422")
    'linear.py:422'
    """
    file, _, line = location.rpartition(":")
    return f"{file_text(file)}:{line}" if line.isdigit() else file_text(location)


def share_text(share: float | None) -> str:
    """A share as a percentage; no share above 0 is shown as 0.

    >>> share_text(0.5), share_text(0.000012), share_text(0.0), share_text(None)
    ('50.0%', '<0.1%', '0', '-')
    """
    if share is None:
        return "-"
    if share == 0:
        return "0"
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def gap_text(gap: float | None, *, of_all: bool = False) -> str:
    """A sentence about the bound that a search proved; empty if it proved none.

    Args:
        gap: score of the plan divided by the proven bound, minus 1; see ``SearchResult.gap``.
        of_all: whether the bound holds for the plans of all methods, not only for one's own.

    >>> gap_text(0.0314)
    'Proven: no plan that this method can make scores more than 3.1% lower.'
    """
    if gap is None:
        return ""
    whose = "of the space, whatever the method," if of_all else "that this method can make"
    if gap < 1e-9:
        return f"Proven: no plan {whose} scores lower."
    # The gap is a share of the bound; the sentence states it as a share of the plan's score.
    lower = gap / (1 + gap)
    return f"Proven: no plan {whose} scores more than {math.ceil(lower * 1000) / 10:.1f}% lower."


def minute_text(time_utc: str) -> str:
    """An ISO 8601 time to the minute.

    >>> minute_text("2026-11-30T14:02:59+00:00")
    '2026-11-30 14:02'
    """
    return time_utc[:16].replace("T", " ")


def counted(number: int, noun: str) -> str:
    """``1 constraint``, ``2 constraints``, ``1,200 constraints``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """A text of at most ``most`` letters, the last of which is an ellipsis if some are left out.

    >>> shortened("hidden_features", 10), shortened("x", 10)
    ('hidden_fe…', 'x')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def first_items_text(items: Iterable[object], limit: int = 3) -> str:
    """The first ``limit`` items, and the number of items left out."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:limit]) + (f", +{len(texts) - limit}" if len(texts) > limit else "")


def plain_data(value: Any) -> Any:
    """``value`` as JSON data: texts as keys, lists, Python numbers, None for non-finite numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(element) for key, element in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [plain_data(element) for element in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table in CSV; None becomes an empty cell, and keys that are no columns are left out."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if cell is None else cell for key, cell in row.items()} for row in rows
    )
    return buffer.getvalue()


def history_text(history: Sequence[str], between: str = ", ") -> str:
    """The actions that led to a plan, on one line; empty if they are not known.

    A method that takes no actions states what it did instead, as ``roles: all axes free, optimal``.

    Args:
        history: ``actions`` of a plan.
        between: separator of two actions.
    """
    joined = between.join(history)
    took_actions = any("->" in action for action in history)
    return (
        joined
        if took_actions or not joined
        else f"no actions, everything was chosen at once ({joined})"
    )
