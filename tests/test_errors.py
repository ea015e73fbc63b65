from __future__ import annotations

import doctest
import inspect

import pytest

from toast_lab import errors


def error_classes() -> list[type[errors.ToastError]]:
    classes = (value for _, value in inspect.getmembers(errors, inspect.isclass))
    return [value for value in classes if issubclass(value, errors.ToastError)]


def test_the_tree_is_complete() -> None:
    assert {value.__name__ for value in error_classes()} == {
        "ToastError",
        "FrontendError",
        "UnsupportedOp",
        "InvalidPlan",
        "InvalidProblem",
        "InvalidInput",
        "RunFailed",
        "RunInterrupted",
        "StoreError",
        "NotSaved",
    }


@pytest.mark.parametrize("kind", error_classes())
def test_an_error_carries_its_message(kind: type[errors.ToastError]) -> None:
    error = kind("%5 = dot_general: 6 does not divide by 4")
    assert error.message == str(error) == "%5 = dot_general: 6 does not divide by 4"
    assert kind.__doc__


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(errors)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("count", "last"),
    [(1, "  op 0"), (20, "  op 19"), (21, "  ... and 1 more"), (120, "  ... and 100 more")],
)
def test_offenders_are_cut_at_the_limit(count: int, last: str) -> None:
    lines = errors.join_offenders(f"op {i}" for i in range(count)).splitlines()
    assert lines[-1] == last
    assert len(lines) == min(count, 21)


@pytest.mark.parametrize(
    ("name", "choices", "text"),
    [
        ("TPU-V5E", ["tpu-v5e", "a100"], ' (did you mean "tpu-v5e"?)'),
        ("mcst", ["mcts", "manual"], ' (did you mean "mcts"?)'),
        ("layer_3", ["layer_1", "layer_2"], ' (did you mean "layer_2" or "layer_1"?)'),
        ("zzz", ["b", "a", "a"], ""),
        ("zzz", [], ""),
    ],
)
def test_did_you_mean(name: str, choices: list[str], text: str) -> None:
    assert errors.did_you_mean(name, choices) == text
