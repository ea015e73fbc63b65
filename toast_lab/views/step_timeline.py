"""One step as a timeline: the schedule of a compiler, above the estimate of the cost model.

Each has two lanes, one for compute and one for collectives; the memory over the same time is drawn
below them. ``bars_frame`` and ``memory_frame`` give the numbers in SI units, ``step_chart`` draws
them.

The estimate is drawn with the overlap that the price counts on (``Cost.overlapped_s``). A
collective's *exposed* part is the one in which the compute lane is idle.
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
#: most bars of the estimate; the shortest of more bars are left out
MAX_BARS = 4000
#: name of the picture
FIGURE = "step timeline"


def bars_frame(
    cost: Any, schedule: Any, where: Sequence[str], most: int = MAX_BARS
) -> pd.DataFrame:
    """A row for each bar, compiled ones before estimated ones, in the order of their starts.

    Args:
        cost: the ``Cost`` of the plan.
        schedule: the compiler's ``Schedule``, or None.
        where: the source line of each op.
        most: most bars of the estimate; the shortest of more bars are left out.
    """
    rows: list[tuple[Any, ...]] = []
    for event in schedule.events if schedule is not None else ():
        event_times = (event.start_s, event.end_s, event.exposed_s, event.times)
        line = line_text(event.source) or _line(event.op, where)
        rows.append((COMPILED, event.lane, event.kind, event.op, line, *event_times))
    op_spans = [
        (start, start + row.time_s) for row, start in zip(cost.ops, cost.op_start_s, strict=True)
    ]
    ends = np.array([end for _, end in op_spans])
    starts = np.array([start for start, _ in op_spans])
    estimated: list[tuple[Any, ...]] = [
        (ESTIMATED, COMPUTE, row.kind, row.op, _line(row.op, where), start, end, 0.0, 1.0)
        for row, (start, end) in zip(cost.ops, op_spans, strict=True)
    ]
    for row, start in zip(cost.collectives, cost.collective_start_s, strict=True):
        end = start + row.time_s
        overlap_s = np.minimum(ends, end) - np.maximum(starts, start)
        exposed_s = max(0.0, row.time_s - float(overlap_s[overlap_s > 0].sum()))
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

    The compiled ones are the scheduler's own count, which leaves out buffers that are always live.
    """
    rows: list[tuple[str, float, float]] = []
    if schedule is not None:
        rows += [(COMPILED, at_s, nbytes) for at_s, nbytes in schedule.memory]
    ops, sizes = thinned(np.asarray(cost.timeline_bytes, float))
    start_s_of_op = np.full(len(cost.timeline_bytes), -1.0)
    for row, start_s in zip(cost.ops, cost.op_start_s, strict=True):
        start_s_of_op[row.op] = max(start_s_of_op[row.op], start_s)
    start_s_of_op = np.maximum.accumulate(np.maximum(start_s_of_op, 0.0))
    rows += [
        (ESTIMATED, float(start_s_of_op[op]), float(nbytes))
        for op, nbytes in zip(ops, sizes, strict=True)
    ]
    return pd.DataFrame(rows, columns=["side", "at_s", "bytes"])


def exposed_frame(bars: pd.DataFrame) -> pd.DataFrame:
    """Exposed communication by source line, compiled and estimated, longest first."""
    collectives = bars[bars["lane"] == COLLECTIVE]
    rows = []
    for line, line_bars in collectives.groupby("line", sort=False):
        seconds = {
            side: float((side_bars["exposed_s"] * side_bars["times"]).sum())
            for side, side_bars in line_bars.groupby("side")
        }
        longest = line_bars.loc[(line_bars["exposed_s"] * line_bars["times"]).idxmax()]
        kinds = ", ".join(dict.fromkeys(line_bars["kind"]))
        compiled_s, estimated_s = seconds.get(COMPILED, 0.0), seconds.get(ESTIMATED, 0.0)
        rows.append((line, kinds, compiled_s, estimated_s, int(longest["op"])))
    frame = pd.DataFrame(rows, columns=["line", "kinds", COMPILED, ESTIMATED, "op"])
    return frame.sort_values([COMPILED, ESTIMATED], ascending=False, ignore_index=True)


def shown_exposed(frame: pd.DataFrame) -> pd.DataFrame:
    """``exposed_frame`` as text for display."""
    return pd.DataFrame(
        {
            "line": [line or "–" for line in frame["line"]],
            "collectives": frame["kinds"],
            "exposed, compiled": [
                seconds_text(time_s) if time_s else "–" for time_s in frame[COMPILED]
            ],
            "exposed, estimated": [
                seconds_text(time_s) if time_s else "–" for time_s in frame[ESTIMATED]
            ],
        }
    )
