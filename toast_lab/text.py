"""Plain-text tables and units, for the reports that ``str()`` prints.

Commands and the explorer have renderers of their own; this is what a Python prompt and a log file
get.
"""

from __future__ import annotations

import csv
import html
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab.files import write_whole

JsonObject = dict[str, Any]
#: Two prices are told as equal if they differ by less: their ratio has one decimal of a per cent.
LEAST_SHARE = 0.0005
#: of units in which people give sizes
_BYTES = {
    **{f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)},
}


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], limit: int = 40, rest: str = ""
) -> str:
    """Columns of text, two blanks apart; a column whose title starts with ">" is set to the right.

    Beyond ``limit`` rows the rest is counted; ``rest`` says where it is.

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


def bounded(lines: Sequence[str], limit: int, rest: str) -> str:
    """The first lines as a text.

    Beyond ``limit`` of them the rest is counted, and ``rest`` says where it is.

    >>> print(bounded(["a", "b", "c"], 2, ": letters has all"))
    a
    b
    ... and 1 more: letters has all
    """
    remark = [f"... and {len(lines) - limit} more{rest}"] if len(lines) > limit else []
    return "\n".join([*lines[:limit], *remark])


def as_html(report: object) -> str:
    """A report for a notebook, which would otherwise show a ``repr``.

    It shows the ``str``, with every column where it belongs.
    """
    return f"<pre>{html.escape(str(report))}</pre>"


def bytes_text(size: float) -> str:
    """``512 B``, ``4 KiB``, ``1.25 GiB``."""
    for unit, scale in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(size) >= scale:
            count = size / scale
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
    return f"{size:.0f} B"


def read_gib(text: str) -> float:
    """A size of memory in GiB, from a number of GiB or a number with its unit.

    Raises:
        ValueError: it is none; with what to write.

    >>> read_gib("8"), read_gib("8 GiB"), read_gib("512 MiB"), read_gib("80GB")
    (8.0, 8.0, 0.5, 74.50580596923828)
    >>> read_gib("8 cups")
    Traceback (most recent call last):
    ValueError: '8 cups' is no size of memory; give a number of GiB, or one with its unit (512 MiB)
    """
    plain = text.strip().replace(",", "").casefold()
    unit = next((unit for unit in _BYTES if plain.endswith(unit)), "")
    try:
        number = float(plain.removesuffix(unit)) * _BYTES.get(unit, 2**30) / 2**30
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"{text!r} is no size of memory; give a number of GiB, or one with its unit (512 MiB)"
        )
    return number


def file_text(path: str) -> str:
    """A source file without its folder, or the cell of the running notebook that it stands for.

    A kernel gives each cell the name of a temporary file, such as ``2029801056.py``, which tells a
    reader nothing; IPython knows the number of the cell.

    >>> file_text("lib/flax/nnx/nn/linear.py")
    'linear.py'
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # Shells other than a kernel's may lack the table
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
    """A share as a percentage; what is above 0 never reads as 0.

    >>> share_text(0.5), share_text(0.000012), share_text(0.0), share_text(None)
    ('50.0%', '<0.1%', '0', '-')
    """
    if share is None:
        return "-"
    if share == 0:
        return "0"
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def gap_text(gap: float | None, *, of_all: bool = False) -> str:
    """What a search proved of its plan, as a sentence; empty if nothing.

    Args:
        gap: score of the plan over the proven bound, less 1; see ``SearchResult.gap``.
        of_all: was it proven of the plans of all methods, not of one's own alone?

    >>> gap_text(0.0314)
    'Proven: no plan that this method can make scores more than 3.1% lower.'
    """
    if gap is None:
        return ""
    whose = "of the space, by whatever method," if of_all else "that this method can make"
    if gap < 1e-9:
        return f"Proven: no plan {whose} scores lower."
    # The gap is a share of the bound, the sentence tells it as one of the plan found
    lower = gap / (1 + gap)
    return f"Proven: no plan {whose} scores more than {math.ceil(lower * 1000) / 10:.1f}% lower."


def counted(number: int, noun: str) -> str:
    """``1 constraint``, ``2 constraints``, ``1,200 constraints``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def few(items: Iterable[object], limit: int = 3) -> str:
    """The first items and how many are left out."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:limit]) + (f", +{len(texts) - limit}" if len(texts) > limit else "")


def plain_data(value: Any) -> Any:
    """What JSON can hold: texts as keys, lists, Python's numbers, None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [plain_data(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table, whole or not at all.

    None is an empty cell, and keys that are no columns are left out.

    Raises:
        NotSaved: it cannot be written.
    """
    write_whole(path, csv_text(columns, rows), "the table")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table as ``write_csv`` writes it."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if cell is None else cell for key, cell in row.items()} for row in rows
    )
    return buffer.getvalue()


def history_text(history: Sequence[str], between: str = ", ") -> str:
    """How a plan came about, on one line; empty if nobody knows.

    A method that takes no actions says what it did instead, as ``roles: all axes free, optimal``.

    Args:
        history: ``actions`` of a plan.
        between: one and the next.
    """
    text = between.join(history)
    took_actions = any("->" in part for part in history)
    return text if took_actions or not text else f"no actions, all was chosen at once ({text})"
