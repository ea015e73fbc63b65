"""Tables for a plan that is made by hand.

The conflict board, the effect of each action, collectives by source line, and costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from toast_lab.cost.problem import CollectiveRow, Cost, Problem
from toast_lab.explain.board import Board, Dispute, PricedSide
from toast_lab.explain.plan_by_hand import PlanAfterAction, Sent, collective_changes
from toast_lab.ir.source_lines import op_frame
from toast_lab.text import line_text
from toast_lab.views.compare_table import COLLECTIVE_ABBREVIATIONS, bytes_text, seconds_text

#: prefix of the side in force, so that colour is never the only cue
CHOSEN_MARK = "● "


def tensor_text(dispute: Dispute) -> str:
    """``a [64, 64]``: the first tensor of a resolution."""
    tensor = dispute.tensors[0]
    return f"{tensor.value} [{', '.join(map(str, tensor.shape))}]"


def others_text(dispute: Dispute) -> str:
    """``+3, ×18 layers``: how many more tensors a dispute has, and how many sets are alike."""
    others = f"+{len(dispute.tensors) - 1}" if len(dispute.tensors) > 1 else ""
    repeated = f"×{len(dispute.sets)} layers" if len(dispute.sets) > 1 else ""
    return ", ".join(text for text in (others, repeated) if text)


def option_text(option: PricedSide) -> str:
    """``5.52 s, 260.00 GiB``; "✗" marks a plan that does not fit a device."""
    if not option.possible:
        return "not possible"
    return f"{seconds_text(option.time_s)}, {bytes_text(option.peak_bytes)}" + (
        "" if option.fits else " ✗"
    )


def board_frame(
    board: Board, chosen: Mapping[tuple[int, str], int | None] | None = None
) -> pd.DataFrame:
    """Two rows per resolution, one for each side.

    A column for each mesh axis has time and memory of the side alone. What both sides share is
    spread over the two rows, so that all prices are in view on a narrow page: colour above source
    line, first tensor above the others.

    Args:
        board: the board of ``tl.conflicts(problem)``.
        chosen: by (row of the board, axis), the side that the plan by hand takes; it is marked.
    """
    chosen = chosen or {}
    mesh_axes = list(
        dict.fromkeys(option.axis for dispute in board.disputes for option in dispute.options)
    )
    sides = []
    for row_index, dispute in enumerate(board.disputes):
        for side in (0, 1):
            row_cells = {
                "colour": dispute.colour if side == 0 else line_text(dispute.tensors[0].where),
                "tensor": tensor_text(dispute) if side == 0 else others_text(dispute),
                "side": f"{side}: dim {dispute.tensors[0].dims[side]}",
            }
            for option in dispute.options:
                if option.bit == side:
                    row_cells[option.axis] = (
                        CHOSEN_MARK if chosen.get((row_index, option.axis)) == side else ""
                    ) + option_text(option)
            sides.append(row_cells)
    return pd.DataFrame(sides, columns=["colour", "tensor", "side", *mesh_axes])


def sent_text(sent: Iterable[tuple[tuple[str, tuple[str, ...]], tuple[int, int]]]) -> str:
    """``+2 all_reduce{data}, −1 all_gather{model}``, from ``collective_changes``."""
    changes = [
        f"{sign}{count} {kind}{{{', '.join(axes)}}}"
        for (kind, axes), counts in sent
        for sign, count in zip("+−", counts, strict=True)
        if count
    ]
    return ", ".join(changes) or "no collectives added or removed"


def short_sent_text(sent: Mapping[tuple[str, tuple[str, ...]], tuple[int, int]]) -> str:
    """``+2 AR −1 AG``."""
    by_sign: dict[str, Counter[str]] = {"+": Counter(), "−": Counter()}
    for (kind, _), counts in sent.items():
        for changed, count in zip(by_sign.values(), counts, strict=True):
            changed[COLLECTIVE_ABBREVIATIONS.get(kind, kind)] += count
    changes = [
        f"{sign}{count} {name}"
        for sign, changed in by_sign.items()
        for name, count in changed.items()
        if count
    ]
    return " ".join(changes) or "–"


def taken_frame(steps: Sequence[PlanAfterAction]) -> pd.DataFrame:
    """One row per action, the unsharded program first.

    It has the step time after the action, and the collectives that the action brought or removed.
    """
    rows = [
        (
            index,
            step.action or "unsharded",
            seconds_text(step.time_s) + ("" if step.fits else " ✗"),
            short_sent_text(collective_changes(steps[index - 1].sent, step.sent)) if index else "–",
        )
        for index, step in enumerate(steps)
    ]
    return pd.DataFrame(rows, columns=["#", "action", "step", "collectives"])


def collectives_frame(problem: Problem, cost: Cost, before: Sent, after: Sent) -> pd.DataFrame:
    """Collectives of a plan by kind, axes and source line.

    The last column says how many of them one action added or removed.

    Args:
        problem: the problem of the plan.
        cost: the price of the whole plan, which gives number, bytes and time.
        before: collectives before that action.
        after: collectives after it.
    """
    program = problem.analysis.program

    def key_of(kind: str, axes: Iterable[str], op: int) -> tuple[str, str, str]:
        return kind, ", ".join(axes), op_frame(program, op).short

    rows_of: dict[tuple[str, str, str], list[CollectiveRow]] = {}
    for collective in cost.collectives:
        key = key_of(collective.kind, collective.axes, collective.op)
        rows_of.setdefault(key, []).append(collective)
    time_s = {key: sum(row.time_s for row in rows) for key, rows in rows_of.items()}
    added: Counter[tuple[str, str, str]] = Counter()
    removed: Counter[tuple[str, str, str]] = Counter()
    for counter, difference in ((added, after - before), (removed, before - after)):
        for sent, count in difference.items():
            counter[key_of(*sent)] += count
    cells = []
    for key in sorted({*rows_of, *added, *removed}, key=lambda key: (-time_s.get(key, 0.0), key)):
        rows = rows_of.get(key, ())
        local_bytes = sum(row.local_bytes for row in rows) if rows else None
        changes = [(f"+{added[key]}", added[key]), (f"−{removed[key]}", removed[key])]
        action = " ".join(change for change, count in changes if count) or "–"
        cells.append(
            (*key, len(rows), bytes_text(local_bytes), seconds_text(time_s.get(key)), action)
        )
    return pd.DataFrame(
        cells, columns=["collective", "axes", "line", "number", "bytes", "time", "action"]
    )


def costs_rows(
    hand: PlanAfterAction, unsharded: PlanAfterAction, best: Cost | None
) -> list[tuple[str, str, str, str]]:
    """(title, by hand, unsharded, best found) of each row; without ``best`` the last is empty."""

    def column(plan: PlanAfterAction | Cost) -> list[str]:
        sent = plan.sent.total() if isinstance(plan, PlanAfterAction) else len(plan.collectives)
        return [
            seconds_text(plan.time_s),
            f"{unsharded.time_s / plan.time_s:.2f}×" if plan.time_s else "–",
            seconds_text(plan.compute_s),
            seconds_text(plan.comm_s),
            f"{sent:,}",
            bytes_text(plan.peak_bytes),
            "yes" if plan.fits else "no",
        ]

    titles = ("step", "speed", "compute", "collectives", "their number", "peak", "fits")
    best_column = [""] * len(titles) if best is None else column(best)
    return list(zip(titles, column(hand), column(unsharded), best_column, strict=True))
