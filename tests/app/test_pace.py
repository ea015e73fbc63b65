"""How often the curves of a running search are redrawn."""

from __future__ import annotations

import itertools

from toast_lab.app.pace import SLOWEST_S, TICK_MS, Beat


def _drawn(first_s: float, last_s: float) -> list[float]:
    """The ages, in seconds, at which a page draws a search between two ages."""
    beat, tick_s = Beat(), TICK_MS / 1e3
    ticks = [index * tick_s for index in range(int(last_s / tick_s) + 1)]
    return [now_s for now_s in ticks if beat.due(now_s, now_s) and now_s >= first_s]


def test_a_young_search_is_drawn_at_every_tick() -> None:
    assert len(_drawn(0.0, 5.0)) == int(5.0 / (TICK_MS / 1e3)) + 1


def test_an_old_search_is_drawn_twice_a_second_or_nearly() -> None:
    drawn = _drawn(60.0, 90.0)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(drawn)]
    assert SLOWEST_S - 1e-9 <= min(gaps_s)
    assert max(gaps_s) < SLOWEST_S + TICK_MS / 1e3
