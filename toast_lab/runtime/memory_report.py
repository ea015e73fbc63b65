"""What XLA's buffer assignment takes of a device's memory, from the report that it dumps.

``--xla_dump_to`` makes XLA write a ``*memory-usage-report.txt`` for each module: for every memory
space the bytes of all its allocations, arguments and what reuses their place counted once.

libtpu's ``get_compiled_memory_stats`` cannot stand in for it.  There "temp" holds more than the
allocations do, by up to the size of all arguments (libtpu 0.0.42.1), so that arguments + outputs -
aliases + temp comes out up to a third too large: a step of two towers with 5.4 million items comes
to 20.4 GiB that way, to 15.5 GiB by the report, and is compiled for a chip of 16 GiB.  And its
"peak_memory" counts vector memory with the rest.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_TOTAL = re.compile(r"^Memory Space: default\b.*\n(?:.*\n)??Total bytes: (\d+)", re.MULTILINE)
_HEAD_LETTERS = 4000  #: the totals of the default space come first


def assigned_bytes(dump_folder: str) -> int | None:
    """Bytes of a device's memory that a dumped program takes; None if no report is there.

    Of several modules the largest counts: the others are helpers.
    """
    if not dump_folder:
        return None
    totals = []
    for path in Path(dump_folder).glob("*memory-usage-report.txt"):
        with contextlib.suppress(OSError), path.open(errors="replace") as file:
            if match := _TOTAL.search(file.read(_HEAD_LETTERS)):
                totals.append(int(match.group(1)))
    return max(totals, default=None)
