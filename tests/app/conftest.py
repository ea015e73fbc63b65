"""A registry of jobs for each test; its jobs end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toast_lab.jobs.job import Registry


@pytest.fixture
def jobs() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.cancel_all()
