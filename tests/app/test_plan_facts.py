"""The saving that is shown for each action of a searched plan."""

from __future__ import annotations

from toast_lab.app.plan_facts import steps_worth
from toast_lab.cost.problem import Quick


def quick(time_s: float, fits: bool = True) -> Quick:
    return Quick(time_s, time_s, 1.0, fits)


def test_each_line_says_where_it_leads_and_what_it_saves() -> None:
    actions = ("rows@0->data", "hidden->model", "refined in 12 places")
    steps = [quick(4e-3), quick(5e-3)]
    assert steps_worth(actions, steps, quick(8e-3), quick(2.5e-3)) == [
        "4 ms, 50.0% less",
        "5 ms, 25.0% more",
        "2.5 ms, 50.0% less",
    ]


def test_what_saves_rounding_alone_is_called_as_fast() -> None:
    worth = steps_worth(("refined in 88 places",), [], quick(8e-3), quick(8e-3 * (1 - 1e-13)))
    assert worth == ["8 ms, as fast"]


def test_a_line_by_which_a_plan_comes_to_fit_says_so() -> None:
    actions = ("rows->data", "hidden->model")
    steps = [quick(4e-3, fits=False), quick(5e-3)]
    assert steps_worth(actions, steps, quick(8e-3, fits=False), steps[-1]) == [
        "4 ms, 50.0% less, does not fit",
        "5 ms, fits now",
    ]
