"""The tables of actions and trajectories beside the search tree."""

import math

from toast_lab.search.trace import Simulation
from toast_lab.views.action_table import ACTIONS, ActionRow, action_frame, trajectory_frame


def test_actions_are_numbers_that_sort_and_what_is_unknown_is_empty() -> None:
    tried = ActionRow("a->x", 3, 0.75, 0.51234, 0.25, 0.9, 1.23456)
    never = ActionRow("b->x", 0, 0.0, math.nan, math.nan, 1.0, 2.0)
    frame = action_frame([tried, never])
    assert tuple(frame.columns) == ACTIONS
    assert frame["N"].tolist() == [3, 0]
    assert frame["Q, mean C(s)"].tolist() == [0.5123, None]
    assert frame["UCT"].tolist() == [1.2346, 2.0]
    assert tuple(action_frame([]).columns) == ACTIONS


def test_a_trajectory_is_its_actions_and_its_price() -> None:
    sharded = Simulation(
        7, 1, 0.5, ("a->x", "b->y"), (0, 1, 2), 0.75, 2e-6, 2**20, True, 0.7, 1e-6, 2**20, False
    )
    unsharded = sharded._replace(index=1, actions=(), fits=False)
    frame = trajectory_frame([sharded, unsharded])
    assert frame["actions"].tolist() == ["a->x › b->y", "none: unsharded"]
    assert frame.iloc[0].tolist()[:6] == [7, "500 ms", 0.75, "2 µs", "1.00 MiB", "yes"]
    assert frame["fits"].tolist() == ["yes", "no"]
