"""The user's own line of an op is found among those of libraries and of the tracer."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path

import jax.numpy as jnp

from toast_lab.frontends import from_jax
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
    assert outcome.attempted >= 6
    assert outcome.failed == 0


def test_user_frames_leave_out_libraries_and_the_tracer() -> None:
    assert user_frame(LOCATION) == SourceFrame("/srv/u/model.py", 9)
    assert user_line(LOCATION) == "/srv/u/model.py:9"
    assert place_text(LOCATION) == "model.py:9"


def test_a_library_s_line_stands_where_there_is_no_other() -> None:
    assert user_line("/v/site-packages/optax/u.py:4") == "/v/site-packages/optax/u.py:4"


def test_a_location_without_a_line() -> None:
    assert user_frame("") == NOWHERE
    assert user_line("") == ""
    assert user_line("fusion of two < caller") == "fusion of two"
    assert place_text("fusion of two") == "fusion of two"


DEEP = """
def down(x, depth):
    return down(x, depth - 1) if depth else x @ x
"""


def test_a_library_as_deep_as_it_likes_does_not_hide_the_user_s_line(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "deep.py").write_text(DEEP)
    spec = importlib.util.spec_from_file_location("deep", folder / "deep.py")
    assert spec is not None
    assert spec.loader is not None
    deep = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(deep)
    for depth in (0, 4, 30):
        model = from_jax(lambda x, calls=depth: deep.down(x, calls), jnp.ones((4, 4)))
        (product,) = [op for op in model.program.ops() if "dot" in model.program.kind[op]]
        assert "test_locations.py" in model.program.where(product), depth
        assert "deep.py" in model.program.locations[int(model.program.location[product])]
