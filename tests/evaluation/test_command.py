"""``python -m evaluation`` lists its parts and starts each; every part says how to run it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import evaluation
from evaluation.__main__ import PARTS, main
from evaluation.benchmarks.command import ALONE
from evaluation.benchmarks.command import PARTS as BENCHMARKS

FOLDER = Path(evaluation.__file__).parent


def test_without_a_name_the_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, part in PARTS.items():
        assert f"  {name} " in listed
        assert part.summary in listed


def test_an_unknown_name_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["corpse"]) == 2
    message = capsys.readouterr().err
    assert 'did you mean "corpus"?' in message
    assert "written" in message


@pytest.mark.parametrize("name", PARTS)
def test_every_part_starts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"usage: python -m evaluation {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", PARTS)
def test_every_part_says_how_to_run_it(name: str) -> None:
    folder = PARTS[name].module.split(".")[1]
    assert f"python -m evaluation {name}" in (FOLDER / folder / "README.md").read_text()
    assert f"({folder}/README.md)" in (FOLDER / "README.md").read_text()


def test_benchmarks_have_what_their_command_calls() -> None:
    for name in (*BENCHMARKS, *ALONE):
        if name in ALONE or name == "sessions":
            pytest.importorskip("playwright")
        module = importlib.import_module(f"evaluation.benchmarks.{name}")
        assert callable(module.main if name in ALONE else module.run)
