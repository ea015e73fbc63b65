"""A confirmed search as tables: the judge's clock beside the price, and the written plans.

``confirm_chart`` draws the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd

from toast_lab.views.compare_table import bytes_text, seconds_text

#: x of the curves: seconds since the first search began, or number of plans judged so far
AT_S, JUDGED = "at_s", "judged"
COLUMNS = (AT_S, "round", "kind", "time_s", "priced_s", "state")
TIMES = ("time_s", "priced_s")
VERDICT_COLUMNS = (
    "plan",
    "round",
    "priced",
    "judged",
    "ratio",
    "memory priced",
    "memory judged",
    "verdict",
)
FRONT_COLUMNS = (
    "rules",
    "constraints",
    "step, priced",
    "step, judged",
    "memory, priced",
    "buys",
    "by the judge",
)


def confirm_frame(points: Iterable[Any], verdicts: Sequence[Any], until_s: float) -> pd.DataFrame:
    """Tidy rows of both curves and of the judged plans, in SI units.

    Args:
        points: ``PricePoint`` s of the searches, in order.
        verdicts: ``JudgedPlan`` s, in order.
        until_s: time up to which the curves continue, in seconds.

    ``kind`` is "priced", "clock" (the best plan so far that stands) or "judged" (one plan).
    """
    rows: list[tuple[Any, ...]] = []
    last_round, last_s = None, math.nan
    for point in points:
        if last_round is not None and point.round != last_round:
            # The line of a round ends where the next one begins, with a gap between them
            rows.append((point.at_s, last_round, "priced", last_s, last_s, ""))
            rows.append((point.at_s, last_round, "priced", math.nan, math.nan, ""))
        rows.append((point.at_s, point.round, "priced", point.best_s, point.best_s, ""))
        last_round, last_s = point.round, point.best_s
    if last_round is not None:
        rows.append((until_s, last_round, "priced", last_s, last_s, ""))
    best = None
    for verdict in verdicts:
        if verdict.time_s is None:
            continue
        ratio = f"{verdict.ratio:.2f}× priced" if verdict.ratio else "judged"
        state = ", ".join(filter(None, (verdict.name, verdict.remark or ratio)))
        row = (verdict.at_s, verdict.round, "judged", verdict.time_s, verdict.priced_s, state)
        rows.append(row)
        if verdict.stands and (best is None or verdict.time_s < best):
            best = verdict.time_s
            rows.append((verdict.at_s, verdict.round, "clock", best, math.nan, ""))
    if best is not None:
        rows.append((until_s, last_round or 0, "clock", best, math.nan, ""))
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys((AT_S, *TIMES), float))


def judged_frame(verdicts: Sequence[Any]) -> pd.DataFrame:
    """``confirm_frame`` of a finished search, which keeps no times: over the plans judged.

    Args:
        verdicts: ``Verdict`` s of a ``ConfirmedResult``, in order.

    It has a column "judged" in place of "at_s"; "priced" rows give the best price of the judged
    plans of their round.
    """
    fields = ("round", "priced_s", "time_s", "ratio", "stands", "remark", "name")
    rounds: dict[int, list[SimpleNamespace]] = {}
    for number, verdict in enumerate(verdicts, 1):
        numbered = {field: getattr(verdict, field) for field in fields}
        row = SimpleNamespace(at_s=float(number), **numbered)
        rounds.setdefault(row.round, []).append(row)
    prices = [
        SimpleNamespace(at_s=rows[0].at_s, round=number, best_s=min(row.priced_s for row in rows))
        for number, rows in rounds.items()
    ]
    in_order = sorted((row for rows in rounds.values() for row in rows), key=lambda row: row.at_s)
    frame = confirm_frame(prices, in_order, float(len(verdicts)))
    return frame.rename(columns={AT_S: JUDGED})


def verdict_frame(verdicts: Sequence[Any], best: int | None, standing: str) -> pd.DataFrame:
    """The judged plans as text for display, in the order in which they were judged.

    Args:
        verdicts: ``JudgedPlan`` s.
        best: index of the best of them; None: no plan stands.
        standing: status of the best one, in a word: "confirmed", "best so far".
    """
    rows = []
    for index, verdict in enumerate(verdicts):
        status = standing if index == best else "judged"
        rows.append(
            (
                f"{index + 1}",
                f"{verdict.round}",
                seconds_text(verdict.priced_s),
                "–" if verdict.time_s is None else seconds_text(verdict.time_s),
                "–" if verdict.ratio is None else f"{verdict.ratio:.2f}",
                bytes_text(verdict.priced_bytes),
                "–" if verdict.peak_bytes is None else bytes_text(verdict.peak_bytes),
                ", ".join(filter(None, (verdict.name, verdict.remark or status))),
            )
        )
    return pd.DataFrame(rows, columns=VERDICT_COLUMNS)


def front_frame(rows: Sequence[Any], words: Sequence[str]) -> pd.DataFrame:
    """What each further rule and constraint buys, the smallest plan first.

    Args:
        rows: ``FrontPlan`` s, the smallest first.
        words: what the judge says of each of them.
    """
    cells, smaller = [], None
    for row, judge_text in zip(rows, words, strict=True):
        buys = "the least to write"
        if smaller is not None:
            buys = _gain(smaller, row)
        cells.append(
            (
                f"{row.size.rules}",
                f"{row.size.constraints}",
                seconds_text(row.cost.time_s),
                "–" if row.clock_s is None else seconds_text(row.clock_s),
                bytes_text(row.cost.peak_bytes) + ("" if row.cost.fits else ", does not fit"),
                buys,
                judge_text,
            )
        )
        smaller = row
    return pd.DataFrame(cells, columns=FRONT_COLUMNS)


def _gain(before: Any, row: Any) -> str:
    """What a larger plan gains over a smaller one: it is quicker, or takes less memory."""
    time_share = 1.0 - row.cost.time_s / before.cost.time_s
    if row.clock_s is not None and before.clock_s is not None:
        time_share = 1.0 - row.clock_s / before.clock_s
    saved_bytes = before.cost.peak_bytes - row.cost.peak_bytes
    added_size = row.size.total - before.size.total
    gain = (
        f"{time_share:.1%} quicker" if time_share > 0 else f"{bytes_text(saved_bytes)} less memory"
    )
    return f"{gain} for {added_size} more" if added_size else gain
