"""Exports of functions with static arguments, keywords, and typed random keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import eight_devices

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
KEYS = ("argument", "batch", "middle", "jitted", "results", "carried", "dropout")


def here(name: str, *args: Any) -> Any:
    return eight_devices.call(f"tests.export.called:{name}", *args)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "case", ["argnums", "argnames", "negative", "keywords", "partial", "method", "plain"]
)
def test_static_arguments_and_keywords_in_every_export(case: str) -> None:
    outcome = here("static", case)
    assert outcome["wrong"] == []
    assert outcome["error"] < 1e-4
    assert outcome["sharded"] > 0
    assert outcome["specs"] == outcome["arrays"]
    assert outcome["patch"] == "" or "with_sharding_constraint" in outcome["patch"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", KEYS)
def test_random_keys_in_every_export(case: str, tmp_path: Path) -> None:
    outcome = here("keys", case, "threefry2x32", 1, str(tmp_path))
    assert outcome["wrong"] == []
    assert outcome["error"] < 1e-3
    assert outcome["cut"] == []
    assert outcome["loaded"]
    assert outcome["placed"] > 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("case", ["batch", pytest.param("carried", marks=pytest.mark.slow)])
def test_keys_of_other_kinds_in_every_export(
    case: str, implementation: str, tmp_path: Path
) -> None:
    outcome = here("keys", case, implementation, 1, str(tmp_path))
    assert outcome["wrong"] == []
    assert outcome["error"] < 1e-3
    assert outcome["cut"] == []
    assert outcome["loaded"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", KEYS)
def test_no_legal_action_cuts_the_words_of_a_key(case: str, implementation: str) -> None:
    from tests.export.called import legal

    assert legal(case, implementation) == []


@pytest.mark.parametrize("method", ["mcts", "automap", "alpa", "exhaustive"])
def test_no_search_cuts_the_words_of_a_key(method: str) -> None:
    from tests.export.called import searched

    outcome = searched(method)
    assert outcome["hidden"] > 0
    assert outcome["cut"] == []


def test_who_asks_to_cut_the_words_of_a_key_is_told_why_not() -> None:
    import jax
    import jax.numpy as jnp

    import toast_lab as tl
    from tests.export.called import batch

    keys = jax.random.split(jax.random.key(0), 8)
    problem = tl.Problem(tl.analyse(tl.from_jax(batch, keys, jnp.ones((8, 16)))), {"a": 2, "b": 4})
    for asked in (
        lambda: tl.Plan.from_specs(problem, {"keys": (None, "a"), "x": ("a", None, None)}),
        lambda: problem.pin("keys", (None, "a")),
        lambda: tl.Plan.from_actions(problem, [("keys.1", "a")]),
    ):
        with pytest.raises(
            tl.ToastError,
            match=r"dim 1 \(size 2\) holds the words of a random key.*dim 0 can be cut",
        ):
            asked()
    with pytest.raises(tl.ToastError, match="x: 3 entries for 2 dims"):
        tl.Plan.from_specs(problem, {"x": ("a", None, None)})
    plan = tl.Plan.from_specs(problem, {"keys": ("b",)})
    assert plan.argument_specs()["keys"] == (("b",), ())
    assert tl.Plan.from_specs(problem.pin("keys", ("a",)), {"x": (None, "b")}).argument_specs()[
        "keys"
    ] == (("a",), ())
