"""Sentences that several tables share."""

from __future__ import annotations

from toast_lab.text import history_text


def test_how_a_plan_came_about() -> None:
    assert history_text(()) == ""
    assert history_text(("B->data", "U@1->model"), " › ") == "B->data › U@1->model"
    assert history_text(("B->data", "refined in 2 places")) == "B->data, refined in 2 places"
    chosen = ("roles: all axes free, optimal", "refined in 1 place")
    assert history_text(chosen) == (
        "no actions, all was chosen at once (roles: all axes free, optimal, refined in 1 place)"
    )
