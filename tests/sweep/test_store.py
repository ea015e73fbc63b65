"""Rows of sweeps survive whatever ends the process that writes them."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from toast_lab.errors import StoreError
from toast_lab.sweep.rows import row_offence
from toast_lab.sweep.run_sweep import open_store
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.sweep_worker import run_task
from toast_lab.sweep.table import table
from toast_lab.sweep.task import SweepTask


def test_rows_come_back_and_the_last_of_a_task_counts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    store = SweepStore(path)
    store.add({"digest": "a", "x": 1})
    store.add({"digest": "b", "x": 2})
    store.add({"digest": "a", "x": 3})
    assert "a" in store
    assert "c" not in store
    assert SweepStore(path).rows == {"a": {"digest": "a", "x": 3}, "b": {"digest": "b", "x": 2}}
    assert len(path.read_text().splitlines()) == 3, "rows are only ever appended"


@pytest.mark.parametrize("torn", ['{"digest":"b","x', "\0\0\0", '"b"', '{"x": 1}'])
def test_a_line_that_was_cut_off_costs_its_row_and_no_other(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "rows.jsonl"
    SweepStore(path).add({"digest": "a"})
    with path.open("a") as file:
        file.write(torn)
    store = SweepStore(path)
    assert set(store.rows) == {"a"}
    store.add({"digest": "c"})
    assert set(SweepStore(path).rows) == {"a", "c"}


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    store = SweepStore(tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.add({"digest": "a", "x": float("nan")})
    assert "a" not in SweepStore(store.path)


def test_a_line_that_is_no_row_of_its_task_is_left_out_and_said(tmp_path: Path) -> None:
    """A row is changed in more than a hundred ways, and each result is accepted or refused.

    Every accepted row can be used as a row, and every refused one is reported with its line.
    """
    row = run_task(
        SweepTask.make("mlp", {}, "2", "tpu-v5e", "random", seconds=None, evaluations=20)
    )
    store = open_store(tmp_path)
    store.add(row)
    assert row_offence(json.loads(store.path.read_text())) == ""
    assert open_store(tmp_path).rows[row["digest"]]["score"] == row["score"]
    strange: list[object] = [None, "x", -1, [], {}, [[1]], True, 1e999, [["x"] * 6], 10**400]
    refusals = 0
    for key in row:
        for value in strange:
            changed = {**row, key: value}
            store.path.write_text(json.dumps(changed) + "\n")
            reopened = open_store(tmp_path)
            if reopened.rows:
                assert not reopened.damaged
                assert len(table(reopened.rows.values())) == 1
                assert all(len(point) == 6 for point in changed["curve"])
                assert json.dumps(changed["sizes"]) == json.dumps(row["sizes"])
            else:
                refusals += 1
                assert reopened.damaged[0].startswith("line 1: ")
    assert refusals > 100
    lacking = {k: v for k, v in row.items() if k != "curve"}
    store.path.write_text(
        json.dumps(lacking) + "\n" + json.dumps({**row, "seed": 5}) + "\n" + json.dumps(row) + "\n"
    )
    reopened = open_store(tmp_path)
    assert set(reopened.rows) == {row["digest"]}
    assert reopened.damaged[0] == "line 1: it lacks curve"
    assert reopened.damaged[1].startswith(
        f"line 2: digest is {row['digest']!r}, that of its task is "
    )
    assert store.path.read_text().count("\n") == 3, "the file itself is never changed"


def test_a_file_that_cannot_be_read_is_said_and_not_a_defect(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(
        StoreError,
        match=r"rows.jsonl: rows cannot be kept here: Is a directory; give another folder",
    ):
        open_store(tmp_path)


def test_a_lock_that_outlives_its_process_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    handle = os.open(store.lock_path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)  # like a child process that has not yet begun
    threading.Timer(0.1, os.close, [handle]).start()
    with store.claimed():
        assert f"process {os.getpid()}" in store.lock_path.read_text()
