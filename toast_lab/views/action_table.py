"""Tables beside the search tree: the actions at one place, and trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.views.compare_table import bytes_text, seconds_text

ACTIONS = ("action", "N", "share", "Q, mean C(s)", "best C(s)", "prior P", "UCT")
TRAJECTORIES = ("number", "after", "C(s)", "step", "peak", "fits", "actions")


class ActionRow(NamedTuple):
    """An action that a search took, or might take, at one place."""

    action: str
    visits: int
    share: float  #: of the visits of the place
    mean_score: float  #: C(s); NaN: not tried
    best_score: float  #: C(s); NaN: not tried
    prior: float  #: 0 to 1
    upper_bound: float


def action_frame(rows: Iterable[ActionRow]) -> pd.DataFrame:
    """The actions, numbers as numbers so that they sort; what is not known is empty."""
    found = [
        (
            r.action,
            r.visits,
            *(_rounded(v) for v in (r.share, r.mean_score, r.best_score, r.prior, r.upper_bound)),
        )
        for r in rows
    ]
    columns = zip(*found, strict=True) if found else ([] for _ in ACTIONS)
    return pd.DataFrame(
        {c: pd.Series(list(v), dtype=object) for c, v in zip(ACTIONS, columns, strict=True)}
    )


def trajectory_frame(simulations: Iterable[Any]) -> pd.DataFrame:
    """One row a ``Simulation``, in the order given; the number counts from 1."""
    found = [
        (
            s.index,
            seconds_text(s.elapsed_s),
            round(s.score, 4),
            seconds_text(s.time_s),
            bytes_text(s.peak_bytes),
            "yes" if s.fits else "no",
            " › ".join(s.actions) or "none: unsharded",
        )
        for s in simulations
    ]
    return pd.DataFrame(found, columns=list(TRAJECTORIES))


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
