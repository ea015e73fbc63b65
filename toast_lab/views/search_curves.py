"""The simulations of a search as tables: the best plan so far, and the plans that were tried.

``search_chart`` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.views.compare_table import bytes_text, seconds_text


class SearchScales(NamedTuple):
    """Reference values for the charts of a search, and their scale."""

    memory_limit_bytes: float = 0.0
    unsharded_s: float = 1.0
    unsharded_bytes: float = 2.0**30
    #: one of ``chart_scale.SCALES``; on a linear one the first, bad plans flatten all later ones
    scale_type: str = "log"


class CurvePoint(NamedTuple):
    """One simulation, in SI units."""

    simulation: int
    elapsed_s: float
    best_s: float
    best_bytes: float
    tried_s: float
    tried_bytes: float
    fits: bool
    improved: bool
    #: C(s)
    best_score: float = math.nan
    tried_score: float = math.nan


COLUMNS = CurvePoint._fields


def point(simulation: Any) -> CurvePoint:
    """The point that the curves show for a ``Simulation``."""
    return CurvePoint(
        simulation=simulation.index,
        elapsed_s=simulation.elapsed_s,
        best_s=simulation.best_time_s,
        best_bytes=simulation.best_peak_bytes,
        tried_s=simulation.time_s,
        tried_bytes=simulation.peak_bytes,
        fits=simulation.fits,
        improved=simulation.improved,
        best_score=simulation.best_score,
        tried_score=simulation.score,
    )


def thinned(points: Sequence[CurvePoint], every: int, first: int = 0) -> list[CurvePoint]:
    """All improvements, the last point, and one of ``every`` others; ``first`` is their index."""
    last = first + len(points) - 1
    return [
        point
        for index, point in enumerate(points, first)
        if point.improved or index == last or index % every == 0
    ]


def curve_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """The data of the charts as a table: one row per simulation, in order."""
    return pd.DataFrame([tuple(point) for point in points], columns=COLUMNS)


def improvements_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """Only the simulations that improved on the best plan."""
    frame = curve_frame(points)
    return frame[frame["improved"].astype(bool)].drop(columns=["improved"]).reset_index(drop=True)


def shown_frame(points: Iterable[CurvePoint]) -> pd.DataFrame:
    """The last 200 rows of ``improvements_frame`` as text for display, the best first."""
    frame = improvements_frame(points).iloc[::-1].head(200)
    return pd.DataFrame(
        {
            "simulation": frame["simulation"].tolist(),
            "after": [seconds_text(value) for value in frame["elapsed_s"].tolist()],
            "best step, estimated": [seconds_text(value) for value in frame["best_s"].tolist()],
            "best peak, estimated": [bytes_text(value) for value in frame["best_bytes"].tolist()],
            "fits": ["yes" if value else "no" for value in frame["fits"].tolist()],
        }
    )
