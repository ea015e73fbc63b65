"""Tables for the plan by hand.

The conflict board, what each action did, collectives by source line, costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from toast_lab.cost.problem import Cost, Problem
from toast_lab.explain.board import Board, Dispute, Option
from toast_lab.explain.taken import Sent, Taken, change
from toast_lab.text import line_text
from toast_lab.views.compare_table import SHORT, bytes_text, seconds_text
from toast_lab.views.source_lines import op_frame

CHOSEN = "● "  #: before what is in force; never colour alone


def tensor_text(dispute: Dispute) -> str:
    """``a [64, 64] +3``, with how many sets are alike."""
    t = dispute.tensors[0]
    more = f" +{len(dispute.tensors) - 1}" if len(dispute.tensors) > 1 else ""
    alike = f", ×{len(dispute.sets)} layers" if len(dispute.sets) > 1 else ""
    return f"{t.value} [{', '.join(map(str, t.shape))}]{more}{alike}"


def option_text(option: Option) -> str:
    """``5.52 s, 260.00 GiB``; a plan that is too large for a device says so."""
    if not option.possible:
        return "not possible"
    return f"{seconds_text(option.time_s)}, {bytes_text(option.peak_bytes)}" + (
        "" if option.fits else " ✗"
    )


def board_frame(
    board: Board, chosen: Mapping[tuple[int, str], int | None] | None = None
) -> pd.DataFrame:
    """Two rows a resolution, one for each side.

    A column for each mesh axis with time and memory of the side alone.

    Args:
        board: ``tl.conflicts(problem)``.
        chosen: by (row of the board, axis) the side that the plan by hand has there; it is marked.
    """
    chosen = chosen or {}
    axes = list(dict.fromkeys(o.axis for d in board.disputes for o in d.options))
    rows = []
    for i, d in enumerate(board.disputes):
        for side in (0, 1):
            row = {
                "colour": d.colour if side == 0 else "",
                "tensor": tensor_text(d) if side == 0 else "",
                "side": f"{side}: dim {d.tensors[0].dims[side]}",
                "line": line_text(d.tensors[0].where) if side == 0 else "",
            }
            for o in d.options:
                if o.bit == side:
                    row[o.axis] = (CHOSEN if chosen.get((i, o.axis)) == side else "") + option_text(
                        o
                    )
            rows.append(row)
    return pd.DataFrame(rows, columns=["colour", "tensor", "side", *axes, "line"])


def sent_text(sent: Iterable[tuple[tuple[str, tuple[str, ...]], tuple[int, int]]]) -> str:
    """``+2 all_reduce{data}, −1 all_gather{model}``, from ``change``."""
    words = []
    for (kind, axes), (new, gone) in sent:
        name = f"{kind}{{{', '.join(axes)}}}"
        words += [f"+{new} {name}"] * bool(new) + [f"−{gone} {name}"] * bool(gone)
    return ", ".join(words) or "no collective came or went"


def short_sent_text(sent: Mapping[tuple[str, tuple[str, ...]], tuple[int, int]]) -> str:
    """``+2 AR −1 AG``."""
    new: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    for (kind, _), (n, m) in sent.items():
        new[kind] += n
        gone[kind] += m
    words = [
        f"{sign}{n} {SHORT.get(k, k)}"
        for sign, c in (("+", new), ("−", gone))
        for k, n in c.items()
        if n
    ]
    return " ".join(words) or "–"


def taken_frame(steps: Sequence[Taken]) -> pd.DataFrame:
    """One row an action, the unsharded program first.

    The step's time then, and the collectives that it brought.
    """
    rows = [
        {
            "#": n,
            "action": step.action or "unsharded",
            "step": seconds_text(step.time_s) + ("" if step.fits else " ✗"),
            "sent": short_sent_text(change(steps[n - 1].sent, step.sent)) if n else "–",
        }
        for n, step in enumerate(steps)
    ]
    return pd.DataFrame(rows, columns=["#", "action", "step", "sent"])


def collectives_frame(problem: Problem, cost: Cost, before: Sent, after: Sent) -> pd.DataFrame:
    """Collectives of a plan by kind, axes and source line.

    Says how many of them one action added or removed.

    Args:
        problem: of the plan.
        cost: of the whole plan; gives number, bytes and time.
        before: collectives before that action.
        after: and with it.
    """
    program = problem.analysis.program
    lines: dict[int, str] = {}

    def line(op: int) -> str:
        if op not in lines:
            lines[op] = op_frame(program, op).short
        return lines[op]

    total: dict[tuple[str, str, str], list[float]] = {}
    for c in cost.collectives:
        row = total.setdefault((c.kind, ", ".join(c.axes), line(c.op)), [0, 0.0, 0.0])
        row[0] += 1
        row[1] += c.local_bytes
        row[2] += c.time_s
    new: Counter[tuple[str, str, str]] = Counter()
    gone: Counter[tuple[str, str, str]] = Counter()
    for counter, some in ((new, after - before), (gone, before - after)):
        for (kind, axes, op), n in some.items():
            counter[kind, ", ".join(axes), line(op)] += n
    keys = sorted({*total, *new, *gone}, key=lambda k: (-total.get(k, [0, 0, 0.0])[2], k))
    return pd.DataFrame(
        [
            {
                "collective": kind,
                "axes": axes,
                "line": where,
                "number": int(total[key][0]) if (key := (kind, axes, where)) in total else 0,
                "bytes": bytes_text(total[key][1]) if key in total else "–",
                "time": seconds_text(total[key][2]) if key in total else "–",
                "action": " ".join(
                    [f"+{new[key]}"] * bool(new[key]) + [f"−{gone[key]}"] * bool(gone[key])
                )
                or "–",
            }
            for kind, axes, where in keys
        ],
        columns=["collective", "axes", "line", "number", "bytes", "time", "action"],
    )


def costs_rows(hand: Taken, unsharded: Taken, best: Cost | None) -> list[tuple[str, str, str, str]]:
    """(what, by hand, unsharded, best found); an empty last column if nothing was found."""

    def best_text(write: Callable[[Any], str], value: float | None) -> str:
        return "" if value is None else write(value)

    def count(n: int) -> str:
        return f"{n:,}"

    rows = []
    for name, write, field in (
        ("step", seconds_text, "time_s"),
        ("compute", seconds_text, "compute_s"),
        ("collectives", seconds_text, "comm_s"),
        ("peak", bytes_text, "peak_bytes"),
    ):
        other = None if best is None else getattr(best, field)
        rows.append(
            (
                name,
                write(getattr(hand, field)),
                write(getattr(unsharded, field)),
                best_text(write, other),
            )
        )
    n = None if best is None else len(best.collectives)
    rows.append(
        ("sent", count(hand.sent.total()), count(unsharded.sent.total()), best_text(count, n))
    )

    def speed(time_s: float) -> str:
        return f"{unsharded.time_s / time_s:.2f}×" if time_s else "–"

    rows.insert(
        1, ("speed", speed(hand.time_s), "1.00×", "" if best is None else speed(best.time_s))
    )

    def fits(value: bool) -> str:
        return "yes" if value else "no"

    rows.append(
        ("fits", fits(hand.fits), fits(unsharded.fits), "" if best is None else fits(best.fits))
    )
    return rows
