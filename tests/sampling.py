"""The sample of a day: tests of laws run on some of their cases, others each day.

``TOAST_LAB_SAMPLE`` is what the sample is drawn from: a date by default, or any other text, which
draws the same cases again wherever they are collected; ``all`` runs every case (``make test-all``).
A run says in its first lines which sample it has.

A parametrised test with many cases says how many of them prove enough for one day::

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_a_law(name): ...
"""

from __future__ import annotations

import datetime
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

VARIABLE = "TOAST_LAB_SAMPLE"
ALL = "all"
Case = TypeVar("Case")


def begin() -> str:
    """Fix the sample for this process and its children, and say which it is."""
    # Midnight must not draw other cases in the workers than in the process that started them
    return os.environ.setdefault(VARIABLE, datetime.date.today().isoformat())


def drawn(cases: Sequence[Case], most: int, what: str) -> list[Case]:
    """At most so many of the cases, in their order; all of them if the sample is ``all``.

    Args:
        cases: what a law could be tested on.
        most: how many of them are enough.
        what: name of the test, so that two tests do not draw alike.
    """
    sample = begin()
    if sample == ALL or len(cases) <= most:
        return list(cases)
    chosen = random.Random(f"{sample} {what}").sample(range(len(cases)), most)
    return [cases[place] for place in sorted(chosen)]


def seed(what: str) -> int:
    """The seed of the day for a test that makes its own cases; ``all`` has one, too."""
    return random.Random(f"{begin()} {what}").randrange(2**31)


def thin(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out the cases of sampled tests that the day has not drawn.

    A case that is named on the command line runs always.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    named = [argument for argument in config.args if "[" in argument]
    left_out: set[pytest.Item] = set()
    for name, group in cases.items():
        if any(argument.partition("[")[0].endswith(name) for argument in named):
            continue
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        kept = drawn(group, marker.args[0], name)
        left_out.update(item for item in group if item not in kept)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
