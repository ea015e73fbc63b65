"""Tables beside the search tree: the actions at one place of it, and trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.text import history_text
from toast_lab.views.compare_table import bytes_text, seconds_text

ACTIONS = ("action", "N", "share", "Q, mean C(s)", "best C(s)", "prior P", "UCT")
TRAJECTORIES = ("number", "after", "C(s)", "step", "peak", "fits", "actions")


class ActionRow(NamedTuple):
    """An action that a search took, or might take, at one place."""

    action: str
    visits: int
    #: of the place's visits
    share: float
    #: C(s); NaN: not tried
    mean_score: float
    #: C(s); NaN: not tried
    best_score: float
    #: 0 to 1
    prior: float
    upper_bound: float


def action_frame(actions: Iterable[ActionRow]) -> pd.DataFrame:
    """One row per action; cells stay numbers, so that they sort, and are empty if unknown."""
    cells = [(row.action, row.visits, *map(_rounded, row[2:])) for row in actions]
    return pd.DataFrame(cells, columns=ACTIONS, dtype=object)


def trajectory_frame(simulations: Iterable[Any]) -> pd.DataFrame:
    """One row per ``Simulation``, in the order given; they are numbered from 1."""
    rows = [
        (
            simulation.index,
            seconds_text(simulation.elapsed_s),
            round(simulation.score, 4),
            seconds_text(simulation.time_s),
            bytes_text(simulation.peak_bytes),
            "yes" if simulation.fits else "no",
            history_text(simulation.actions, " › ") or "none: unsharded",
        )
        for simulation in simulations
    ]
    return pd.DataFrame(rows, columns=TRAJECTORIES)


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
