"""Exports of functions with static arguments, keywords, and typed random keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toast_lab import isolate
from toast_lab.runtime.devices import Devices, environment

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
KEYS = ("argument", "batch", "middle", "jitted", "results", "carried", "dropout")


def here(name: str, *args: Any) -> Any:
    return isolate.run_in_child(f"tests.export.called:{name}", *args, env=environment(Devices("cpu", 8)))


@pytest.mark.parametrize("case", ["argnums", "argnames", "negative", "keywords", "partial", "method", "plain"])
def test_static_arguments_and_keywords_in_every_export(case: str) -> None:
    found = here("static", case)
    assert found["wrong"] == []
    assert found["error"] < 1e-4
    assert found["sharded"] > 0
    assert found["specs"] == found["arrays"]
    assert found["patch"] == "" or "with_sharding_constraint" in found["patch"]


@pytest.mark.parametrize("case", KEYS)
def test_random_keys_in_every_export(case: str, tmp_path: Path) -> None:
    found = here("keys", case, "threefry2x32", 1, str(tmp_path))
    assert found["wrong"] == []
    assert found["error"] < 1e-3
    assert found["cut"] == []
    assert found["loaded"]
    assert found["placed"] > 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("case", ["batch", pytest.param("carried", marks=pytest.mark.slow)])
def test_keys_of_other_kinds_in_every_export(case: str, implementation: str, tmp_path: Path) -> None:
    found = here("keys", case, implementation, 1, str(tmp_path))
    assert found["wrong"] == []
    assert found["error"] < 1e-3
    assert found["cut"] == []
    assert found["loaded"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", KEYS)
def test_no_legal_action_cuts_the_words_of_a_key(case: str, implementation: str) -> None:
    from tests.export.called import legal

    assert legal(case, implementation) == []


@pytest.mark.parametrize("method", ["mcts", "automap", "alpa", "exhaustive"])
def test_no_search_cuts_the_words_of_a_key(method: str) -> None:
    from tests.export.called import searched

    found = searched(method)
    assert found["hidden"] > 0
    assert found["cut"] == []
