"""Tables for the plan by hand.

The conflict board, what each action did, collectives by source line, costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from toast_lab.cost.problem import Cost, Problem
from toast_lab.explain.board import Board, Dispute, PricedSide
from toast_lab.explain.taken import Sent, Taken, change
from toast_lab.text import line_text
from toast_lab.views.compare_table import SHORT, bytes_text, seconds_text
from toast_lab.views.source_lines import op_frame

#: before what is in force; never colour alone
CHOSEN = "● "


def tensor_text(dispute: Dispute) -> str:
    """``a [64, 64] +3``, with how many sets are alike."""
    tensor = dispute.tensors[0]
    others = f" +{len(dispute.tensors) - 1}" if len(dispute.tensors) > 1 else ""
    repeated = f", ×{len(dispute.sets)} layers" if len(dispute.sets) > 1 else ""
    return f"{tensor.value} [{', '.join(map(str, tensor.shape))}]{others}{repeated}"


def option_text(option: PricedSide) -> str:
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
    mesh_axes = list(
        dict.fromkeys(option.axis for dispute in board.disputes for option in dispute.options)
    )
    sides = []
    for row_index, dispute in enumerate(board.disputes):
        for side in (0, 1):
            row_cells = {
                "colour": dispute.colour if side == 0 else "",
                "tensor": tensor_text(dispute) if side == 0 else "",
                "side": f"{side}: dim {dispute.tensors[0].dims[side]}",
                "line": line_text(dispute.tensors[0].where) if side == 0 else "",
            }
            for option in dispute.options:
                if option.bit == side:
                    row_cells[option.axis] = (
                        CHOSEN if chosen.get((row_index, option.axis)) == side else ""
                    ) + option_text(option)
            sides.append(row_cells)
    return pd.DataFrame(sides, columns=["colour", "tensor", "side", *mesh_axes, "line"])


def sent_text(sent: Iterable[tuple[tuple[str, tuple[str, ...]], tuple[int, int]]]) -> str:
    """``+2 all_reduce{data}, −1 all_gather{model}``, from ``change``."""
    phrases = []
    for (collective_kind, mesh_axes), (added, removed) in sent:
        collective = f"{collective_kind}{{{', '.join(mesh_axes)}}}"
        phrases += [f"+{added} {collective}"] * bool(added) + [f"−{removed} {collective}"] * bool(
            removed
        )
    return ", ".join(phrases) or "no collective came or went"


def short_sent_text(sent: Mapping[tuple[str, tuple[str, ...]], tuple[int, int]]) -> str:
    """``+2 AR −1 AG``."""
    added: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    for (kind, _), (count, lost) in sent.items():
        added[kind] += count
        removed[kind] += lost
    phrases = [
        f"{sign}{count} {SHORT.get(kind, kind)}"
        for sign, counter in (("+", added), ("−", removed))
        for kind, count in counter.items()
        if count
    ]
    return " ".join(phrases) or "–"


def taken_frame(steps: Sequence[Taken]) -> pd.DataFrame:
    """One row per action, the unsharded program first.

    The step's time then, and the collectives that it brought.
    """
    rows = [
        {
            "#": index,
            "action": step.action or "unsharded",
            "step": seconds_text(step.time_s) + ("" if step.fits else " ✗"),
            "sent": short_sent_text(change(steps[index - 1].sent, step.sent)) if index else "–",
        }
        for index, step in enumerate(steps)
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

    def line_of(op: int) -> str:
        if op not in lines:
            lines[op] = op_frame(program, op).short
        return lines[op]

    totals: dict[tuple[str, str, str], list[float]] = {}
    for collective in cost.collectives:
        sums = totals.setdefault(
            (collective.kind, ", ".join(collective.axes), line_of(collective.op)), [0, 0.0, 0.0]
        )
        sums[0] += 1
        sums[1] += collective.local_bytes
        sums[2] += collective.time_s
    added: Counter[tuple[str, str, str]] = Counter()
    removed: Counter[tuple[str, str, str]] = Counter()
    for counter, difference in ((added, after - before), (removed, before - after)):
        for (kind, axes, op), count in difference.items():
            counter[kind, ", ".join(axes), line_of(op)] += count
    keys = sorted(
        {*totals, *added, *removed}, key=lambda key: (-totals.get(key, [0, 0, 0.0])[2], key)
    )
    return pd.DataFrame(
        [
            {
                "collective": kind,
                "axes": axes,
                "line": where,
                "number": int(totals[key][0]) if (key := (kind, axes, where)) in totals else 0,
                "bytes": bytes_text(totals[key][1]) if key in totals else "–",
                "time": seconds_text(totals[key][2]) if key in totals else "–",
                "action": " ".join(
                    [f"+{added[key]}"] * bool(added[key])
                    + [f"−{removed[key]}"] * bool(removed[key])
                )
                or "–",
            }
            for kind, axes, where in keys
        ],
        columns=["collective", "axes", "line", "number", "bytes", "time", "action"],
    )


def costs_rows(hand: Taken, unsharded: Taken, best: Cost | None) -> list[tuple[str, str, str, str]]:
    """(what, by hand, unsharded, best found); an empty last column if nothing was found."""

    def best_text(formatter: Callable[[Any], str], value: float | None) -> str:
        return "" if value is None else formatter(value)

    def count(number: int) -> str:
        return f"{number:,}"

    rows = []
    for row_name, formatter, cost_field in (
        ("step", seconds_text, "time_s"),
        ("compute", seconds_text, "compute_s"),
        ("collectives", seconds_text, "comm_s"),
        ("peak", bytes_text, "peak_bytes"),
    ):
        best_value = None if best is None else getattr(best, cost_field)
        rows.append(
            (
                row_name,
                formatter(getattr(hand, cost_field)),
                formatter(getattr(unsharded, cost_field)),
                best_text(formatter, best_value),
            )
        )
    sent_count = None if best is None else len(best.collectives)
    rows.append(
        (
            "sent",
            count(hand.sent.total()),
            count(unsharded.sent.total()),
            best_text(count, sent_count),
        )
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
