"""One step as a timeline: what a compiler scheduled, above what the price expects.

Two lanes each, one computes and the other carries collectives; below them the memory over the same
time.  ``bars_frame`` and ``memory_frame`` are the numbers in SI units, ``step_chart`` draws them.

The price is drawn as it counts overlap (``Cost.overlapped_s``).  A collective's *exposed* part is
the one in which the compute lane is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from toast_lab.text import line_text
from toast_lab.views.compare_table import seconds_text
from toast_lab.views.memory_timeline import thinned

COMPILED, ESTIMATED = "compiled", "estimated"
COMPUTE, COLLECTIVE, LOOP = "compute", "collective", "loop"
COLUMNS = ("side", "lane", "kind", "op", "line", "start_s", "end_s", "exposed_s", "times")
#: of each side; more are left out, the shortest first
MAX_BARS = 4000
#: name of the picture
FIGURE = "step timeline"


def bars_frame(
    cost: Any, schedule: Any, where: Sequence[str], most: int = MAX_BARS
) -> pd.DataFrame:
    """A row for each bar of both sides, in the order of their starts.

    Args:
        cost: of the plan, a ``Cost``.
        schedule: the compiler's, a ``Schedule``, or None.
        where: source line of each op.
        most: bars of each side; the shortest are left out.
    """
    rows: list[tuple[Any, ...]] = []
    for event in schedule.events if schedule is not None else ():
        times = (event.start_s, event.end_s, event.exposed_s, event.times)
        line = line_text(event.source) or _line(event.op, where)
        rows.append((COMPILED, event.lane, event.kind, event.op, line, *times))
    compute = [
        (start, start + row.time_s) for row, start in zip(cost.ops, cost.op_start_s, strict=True)
    ]
    ends = np.array([end for _, end in compute])
    starts = np.array([start for start, _ in compute])
    estimated: list[tuple[Any, ...]] = [
        (ESTIMATED, COMPUTE, row.kind, row.op, _line(row.op, where), start, end, 0.0, 1.0)
        for row, (start, end) in zip(cost.ops, compute, strict=True)
    ]
    for row, start in zip(cost.collectives, cost.collective_start_s, strict=True):
        end = start + row.time_s
        busy = np.minimum(ends, end) - np.maximum(starts, start)
        exposed_s = max(0.0, row.time_s - float(busy[busy > 0].sum()))
        estimated.append(
            (
                *(ESTIMATED, COLLECTIVE, row.kind, row.op, _line(row.op, where)),
                *(start, end, exposed_s, 1.0),
            )
        )
    estimated.sort(key=lambda row: row[5] - row[6])
    rows += estimated[:most]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values(["side", "start_s"], kind="stable", ignore_index=True)


def _line(op: int, where: Sequence[str]) -> str:
    return line_text(where[op]) if 0 <= op < len(where) else ""


def memory_frame(cost: Any, schedule: Any) -> pd.DataFrame:
    """Bytes of one device over the time of a step, by side.

    The compiled ones are the scheduler's own count, which leaves out what lives all along.
    """
    rows: list[tuple[str, float, float]] = []
    if schedule is not None:
        rows += [(COMPILED, at_s, size) for at_s, size in schedule.memory]
    ops, sizes = thinned(np.asarray(cost.timeline_bytes, float))
    clock = np.full(len(cost.timeline_bytes), -1.0)
    for row, start_s in zip(cost.ops, cost.op_start_s, strict=True):
        clock[row.op] = max(clock[row.op], start_s)
    clock = np.maximum.accumulate(np.maximum(clock, 0.0))
    rows += [
        (ESTIMATED, float(clock[op]), float(size)) for op, size in zip(ops, sizes, strict=True)
    ]
    return pd.DataFrame(rows, columns=["side", "at_s", "bytes"])


def exposed_frame(bars: pd.DataFrame) -> pd.DataFrame:
    """Exposed communication by source line, compiled and estimated, longest first."""
    collectives = bars[bars["lane"] == COLLECTIVE]
    rows = []
    for line, of_line in collectives.groupby("line", sort=False):
        seconds = {
            side: float((part["exposed_s"] * part["times"]).sum())
            for side, part in of_line.groupby("side")
        }
        longest = of_line.loc[(of_line["exposed_s"] * of_line["times"]).idxmax()]
        kinds = ", ".join(dict.fromkeys(of_line["kind"]))
        compiled_s, estimated_s = seconds.get(COMPILED, 0.0), seconds.get(ESTIMATED, 0.0)
        rows.append((line, kinds, compiled_s, estimated_s, int(longest["op"])))
    frame = pd.DataFrame(rows, columns=["line", "kinds", COMPILED, ESTIMATED, "op"])
    return frame.sort_values([COMPILED, ESTIMATED], ascending=False, ignore_index=True)


def shown_exposed(frame: pd.DataFrame) -> pd.DataFrame:
    """``exposed_frame`` as people read it."""
    return pd.DataFrame(
        {
            "line": [line or "–" for line in frame["line"]],
            "collectives": frame["kinds"],
            "exposed, compiled": [seconds_text(s) if s else "–" for s in frame[COMPILED]],
            "exposed, estimated": [seconds_text(s) if s else "–" for s in frame[ESTIMATED]],
        }
    )
