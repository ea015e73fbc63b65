"""What we compile for a written plan is what the user's source with its constraints compiles to."""

from __future__ import annotations

import pytest

from tests import eight_devices


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [(), ("x",), ("q", "gate", "logits")])
def test_the_source_with_constraints_makes_the_same_collectives(names: tuple[str, ...]) -> None:
    ours, theirs = eight_devices.call("tests.written.as_source:counts", names)
    assert sum(ours.values()) > 0
    assert ours == theirs
