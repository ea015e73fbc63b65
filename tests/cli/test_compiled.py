"""``toast-lab compile`` keeps its results, and ``toast-lab compiled`` lists them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.small_net import NET
from toast_lab.cli import main

COMPILE = ["compile", *NET, "--actions", "S@1->data", "--topology", "cpu:4"]


def test_a_result_is_kept_listed_shown_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "compiled.sqlite")
    assert main([*COMPILE, "--store", path]) == 0
    assert "compiled in" in capsys.readouterr().out
    assert main([*COMPILE, "--store", path]) == 0
    assert "taken from the kept results" in capsys.readouterr().out

    assert main(["compiled", "--store", path]) == 0
    listed = capsys.readouterr().out
    assert "attention" in listed
    assert "cpu:4" in listed
    assert main(["compiled", "--store", path, "--model", "mlp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    assert main(["compiled", "show", "1", "--store", path, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["model"], row["result"]["topology"]) == ("attention", "cpu:4")
    table = tmp_path / "rows.csv"
    assert main(["compiled", "--store", path, "--csv", str(table)]) == 0
    assert table.read_text().splitlines()[1].split(",")[2] == "attention"


def test_a_result_that_cannot_be_kept_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "compiled.sqlite"
    store.write_bytes(b"no database" * 1000)
    assert main([*COMPILE, "--store", str(store)]) == 1
    shown = capsys.readouterr()
    assert "peak memory of a device" in shown.out
    assert "the result is not kept: " in shown.err
    assert "cannot be read" in shown.err


def test_a_changed_row_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "compiled.sqlite"
    assert main([*COMPILE, "--store", str(path)]) == 0
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE compiled SET time_s = 1e-9")
        connection.commit()
    assert main(["compiled", "show", "1", "--store", str(path)]) == 2
    assert "row 1 is damaged" in capsys.readouterr().err
    assert main([*COMPILE, "--store", str(path)]) == 0
    assert "compiled in" in capsys.readouterr().out  # and not taken from the file


def test_rows_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "compiled.sqlite")
    assert main(["compiled", "--store", path]) == 2
    assert "toast-lab compile writes them" in capsys.readouterr().err
    assert main(["compiled", "shown", "1", "--store", path]) == 2
    assert 'write "toast-lab compiled"' in capsys.readouterr().err
