"""Files of rows outlive a run that is cut off; a compiled plan gets one row, also if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation import compiled_rows
from evaluation.compiled_rows import compiled_row
from evaluation.row_files import append_rows, read_rows, write_rows
from tests.helpers import analysed, plan
from toast_lab.cost.problem import Problem
from toast_lab.errors import RunFailed


def test_rows_are_appended_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert read_rows(file) == []
    append_rows(file, [{"a": 1}, {"b": [2.5, None]}])
    assert file.read_text() == '{"a":1}\n{"b":[2.5,null]}\n'
    with file.open("a") as unfinished:
        unfinished.write('{"c": "cut o')
    append_rows(file, [{"d": True}])
    assert read_rows(file) == [{"a": 1}, {"b": [2.5, None]}, {"d": True}]
    write_rows(file, read_rows(file)[:1])
    assert file.read_text() == '{"a":1}\n'


def test_a_compiled_plan_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(analysed("mlp"), {"d": 2}, "cpu")
    model, data = problem.analysis.model, plan(problem, ("B", "d"))
    options = {"name": "data", "time_limit_s": 100.0}
    row = compiled_row(model, data, "cpu:2", fields=lambda made: {"n": 1}, **options)
    assert row["actions"] == ["B->d"]
    assert (row["fits"], row["n"]) == (True, 1)
    assert row["peak_bytes"] > 0
    assert "cpu:2 data" in capsys.readouterr().out

    def fail(*_: object, **__: object) -> None:
        raise RunFailed("the compiler ended")

    monkeypatch.setattr(compiled_rows, "compile_plan", fail)
    row = compiled_row(model, data, "cpu:2", fields=lambda made: {"n": 1}, **options)
    assert row["error"] == "the compiler ended"
    assert "n" not in row
