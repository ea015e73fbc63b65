"""The user's own line of an op is found among those of libraries and of the tracer."""

from __future__ import annotations

import doctest

from toast_lab.ir import locations
from toast_lab.ir.locations import (
    NOWHERE,
    SourceFrame,
    place_text,
    user_frame,
    user_line,
)

LOCATION = (
    "/v/site-packages/optax/u.py:4 < /srv/u/model.py:9 < "
    "/x/toast_lab/frontends/tracing.py:172 < <stdin>:5"
)


def test_the_examples_hold() -> None:
    outcome = doctest.testmod(locations)
    assert outcome.attempted >= 4
    assert outcome.failed == 0


def test_user_frames_leave_out_libraries_and_the_tracer() -> None:
    assert user_frame(LOCATION) == SourceFrame("/srv/u/model.py", 9)
    assert user_line(LOCATION) == "/srv/u/model.py:9"
    assert place_text(LOCATION) == "u.py:4 < model.py:9"


def test_a_library_s_line_stands_where_there_is_no_other() -> None:
    assert user_line("/v/site-packages/optax/u.py:4") == "/v/site-packages/optax/u.py:4"


def test_a_location_without_a_line() -> None:
    assert user_frame("") == NOWHERE
    assert user_line("") == ""
    assert user_line("fusion of two < caller") == "fusion of two"
    assert place_text("fusion of two") == "fusion of two"
