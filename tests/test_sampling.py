"""The sample of a day is the same wherever it is drawn, and leaves out nothing for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling


class Item:
    """A collected test with the mark ``sampled(2)``, or without any."""

    def __init__(self, nodeid: str, is_sampled: bool = True) -> None:
        self.nodeid, self.is_sampled = nodeid, is_sampled

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=(2,)) if self.is_sampled else None


def kept(monkeypatch: pytest.MonkeyPatch, sample: str, *arguments: str) -> list[str]:
    """The cases that a sample keeps, of twenty of one test, of one of another, and of a third."""
    monkeypatch.setenv(sampling.VARIABLE, sample)
    items: list[Any] = [Item(f"tests/a.py::test_law[{number}]") for number in range(20)]
    items += [Item("tests/a.py::test_few[0]"), Item("tests/a.py::test_plain", is_sampled=False)]
    config: Any = SimpleNamespace(
        args=list(arguments), hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    sampling.thin(items, config)
    return [item.nodeid for item in items]


def test_a_day_draws_the_same_cases_again_and_another_day_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monday = kept(monkeypatch, "2026-11-30")
    assert monday == kept(monkeypatch, "2026-11-30")
    assert len(monday) == 2 + 2
    assert monday[2:] == ["tests/a.py::test_few[0]", "tests/a.py::test_plain"]
    days = [frozenset(kept(monkeypatch, f"day {day}")[:2]) for day in range(100)]
    assert len(frozenset.union(*days)) == 20, "some case never runs"


def test_all_and_what_is_named_run_always(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(kept(monkeypatch, sampling.ALL)) == 22
    assert len(kept(monkeypatch, "2026-11-30", "tests/a.py::test_law[3]")) == 22
    assert len(kept(monkeypatch, "2026-11-30", "tests/a.py")) == 4
