"""Rows outlive whatever ends the process that writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toast_lab.sweep.store import Store


def test_rows_come_back_and_the_last_of_a_task_counts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    store = Store(path)
    store.add({"digest": "a", "x": 1})
    store.add({"digest": "b", "x": 2})
    store.add({"digest": "a", "x": 3})
    assert "a" in store
    assert "c" not in store
    assert Store(path).rows == {"a": {"digest": "a", "x": 3}, "b": {"digest": "b", "x": 2}}
    assert len(path.read_text().splitlines()) == 3, "rows are only ever appended"


@pytest.mark.parametrize("torn", ['{"digest":"b","x', "\0\0\0", '"b"', '{"x": 1}'])
def test_a_line_that_was_cut_off_costs_its_row_and_no_other(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "rows.jsonl"
    Store(path).add({"digest": "a"})
    with path.open("a") as file:
        file.write(torn)
    store = Store(path)
    assert set(store.rows) == {"a"}
    store.add({"digest": "c"})
    assert set(Store(path).rows) == {"a", "c"}


def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.add({"digest": "a", "x": float("nan")})
    assert "a" not in Store(store.path)
