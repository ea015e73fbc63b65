"""Device memory that XLA's buffer assignment takes, from the report that XLA dumps.

``--xla_dump_to`` makes XLA write a ``*memory-usage-report.txt`` for each module, with the bytes of
all allocations in each memory space; arguments and results that reuse their memory count once.

libtpu's ``get_compiled_memory_stats`` cannot replace it. There "temp" exceeds the allocations by up
to the size of all arguments (libtpu 0.0.42.1), so that arguments + outputs - aliases + temp is up
to a third too large: a step of a two-tower model with 5.4 million items comes to 20.4 GiB that way
and to 15.5 GiB by the report, and it does compile for a chip of 16 GiB. Its "peak_memory" includes
vector memory as well.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_TOTAL = re.compile(r"^Memory Space: default\b.*\n(?:.*\n)??Total bytes: (\d+)", re.MULTILINE)
_HEAD_LETTERS = 4000  #: the totals of the default space come first


def assigned_bytes(dump_folder: str) -> int | None:
    """Bytes of device memory that a dumped program takes; None if there is no report.

    If several modules were dumped, the largest counts: the others are helpers.
    """
    if not dump_folder:
        return None
    totals = []
    for path in Path(dump_folder).glob("*memory-usage-report.txt"):
        with contextlib.suppress(OSError), path.open(errors="replace") as file:
            if match := _TOTAL.search(file.read(_HEAD_LETTERS)):
                totals.append(int(match.group(1)))
    return max(totals, default=None)
