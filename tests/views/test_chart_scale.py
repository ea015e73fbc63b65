"""Scales of a y axis, which growing charts keep to just as finished ones do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("holoviews")

from toast_lab.views.chart_scale import LAST_TEN_PERCENT, SCALES, height_limits
from toast_lab.views.race_chart import RaceCurves
from toast_lab.views.search_chart import SearchCurves
from toast_lab.views.search_curves import CurvePoint, SearchScales

#: step times of plans that improve; the first is far worse
STEPS_S = (8.0, 1.2, 1.0)


def point(simulation: int, best_s: float) -> CurvePoint:
    filled = dict.fromkeys(CurvePoint._fields, 0.0)
    filled |= {"best_s": best_s, "tried_s": 2 * best_s, "best_score": best_s, "best_bytes": 7.0}
    return CurvePoint(**{**filled, "simulation": simulation, "improved": True, "fits": True})


@pytest.mark.parametrize("scale_type", SCALES)
def test_limits_hold_where_the_best_plan_is(scale_type: str) -> None:
    low, high = height_limits(STEPS_S, STEPS_S[-1:], 0.1, scale_type)
    assert low <= STEPS_S[-1] < high
    assert (high > STEPS_S[0]) == (scale_type != LAST_TEN_PERCENT)
    if scale_type == LAST_TEN_PERCENT:
        assert high == pytest.approx(1.1 * STEPS_S[-1])


def test_a_scale_of_a_part_of_nothing_is_linear() -> None:
    assert height_limits([1.0, 2.0], [], 0.1, LAST_TEN_PERCENT) == height_limits(
        [1.0, 2.0], [], 0.1, "linear"
    )


def test_a_search_that_runs_shows_what_is_nearly_as_good() -> None:
    curves = SearchCurves(
        SearchScales(unsharded_s=4.0, unsharded_bytes=8.0, scale_type=LAST_TEN_PERCENT)
    )
    for simulation, best_s in enumerate(STEPS_S):
        curves.append([point(simulation, best_s)])
        cost, time, memory = (figure.y_range for figure in curves.figures)
        for shown, best in ((cost, best_s), (time, best_s)):
            assert (shown.start, shown.end) == pytest.approx((0.98 * best, 1.1 * best))
    assert memory.end == pytest.approx(1.1 * 7.0 / 2**10)


def test_a_race_that_runs_shows_who_is_nearly_as_good() -> None:
    curves = RaceCurves(["mcts", "beam"], "time_s", (1.0, 1.0), LAST_TEN_PERCENT)
    curves.show({}, {})
    at = [
        SimpleNamespace(elapsed_s=t, time_s=s, score=s, peak_bytes=1.0, fits=True)
        for t, s in enumerate(STEPS_S)
    ]
    curves.show({"mcts": at, "beam": at[:2]}, {"mcts": 3.0, "beam": 3.0})
    shown = curves.figure.y_range
    assert (shown.start, shown.end) == pytest.approx((0.98, 1.1))
