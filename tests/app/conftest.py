"""Jobs of a test's own, which end with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toast_lab.jobs.job import Registry


@pytest.fixture
def jobs() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.cancel_all()
