"""``toast-lab compare`` and ``toast-lab runs``."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

SIZES = ["--set", "sequence=16", "d_model=8", "key=8", "value=8"]
NET = ["attention", *SIZES]


@pytest.fixture
def plans(toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TOAST_LAB_RUNS", str(tmp_path / "runs.sqlite"))
    paths = [str(tmp_path / "sequence.json"), str(tmp_path / "other.json")]
    for path, action in zip(paths, ("S@1->data", "S@0->data"), strict=True):
        status, _, err = toast(
            "price", *NET, "--mesh", "data=2", "--actions", action, "--save", path
        )
        assert status == 0, err
    return paths


def test_compare_prints_keeps_and_lists(toast: Any, plans: list[str], tmp_path: Path) -> None:
    table = str(tmp_path / "rows.csv")
    argv = [
        "compare",
        "attention",
        *plans,
        *SIZES,
        "--repeats",
        "2",
        "--machine",
        "tpu-v5e",
        "--csv",
        table,
    ]
    status, out, err = toast(*argv)
    assert status == 0, err
    assert err == ""
    assert "2 plans of attention on cpu:2 (cpu)" in out
    assert "sequence: agrees (largest error" in out
    assert "Kept as 1, 2, 3" in out
    with open(table) as file:
        assert [(r["name"], r["status"]) for r in csv.DictReader(file)] == [
            ("sequence", "ok"),
            ("other", "ok"),
        ]

    status, out, err = toast("runs", "--json")
    assert status == 0, err
    rows = json.loads(out)["rows"]
    assert [(r["id"], r["name"]) for r in rows] == [
        (3, "(unsharded)"),
        (2, "other"),
        (1, "sequence"),
    ]
    assert rows[2]["predicted_time_s"] > 0
    status, out, _ = toast("runs", "--limit", "1", "--csv", table)
    assert "(unsharded)" in out
    assert "sequence" not in out
    with open(table) as file:
        assert [r["id"] for r in csv.DictReader(file)] == ["3"]
    assert "No results in" in toast("runs", "--model", "gns")[1]
    status, out, _ = toast("runs", "show", "1", "--json")
    shown = json.loads(out)
    assert shown["plan"]["actions"] == ["S@1->data"]
    assert shown["certificate"]["passed"] is True
    assert "S@1->data" in toast("runs", "show", "1")[1]


def test_json_and_no_store(toast: Any, plans: list[str], tmp_path: Path) -> None:
    argv = [
        "compare",
        "attention",
        plans[0],
        *SIZES,
        "--repeats",
        "1",
        "--store",
        "none",
        "--no-gradients",
        "--json",
    ]
    status, out, err = toast(*argv)
    assert status == 0, err
    data = json.loads(out)["comparison"]
    assert [row["name"] for row in data["rows"]] == ["sequence"]
    assert data["rows"][0]["certificate"]["not_checked"] == [
        "gradients: gradients were not asked for"
    ]
    assert data["stored_as"] == []
    assert not (tmp_path / "runs.sqlite").exists()


def test_what_is_wrong_is_said(toast: Any, plans: list[str], tmp_path: Path) -> None:
    status, _, err = toast("runs")
    assert (status, "there are no kept results" in err) == (2, True)
    status, _, err = toast("runs", "shwo", "1")
    assert (status, 'write "toast-lab runs" or "toast-lab runs show 3"' in err) == (2, True)
    status, _, err = toast("compare", "attention", plans[0], plans[0], *SIZES)
    assert (status, "plans given twice" in err) == (2, True)
    status, _, err = toast("compare", "attention", str(tmp_path / "none.json"), *SIZES)
    assert (status, "cannot read" in err) == (2, True)
    (tmp_path / "runs.sqlite").write_bytes(b"no database at all" * 100)
    status, _, err = toast("runs")
    assert (status, "Move the file away" in err) == (2, True)


def test_replay_times_one_share_of_a_mesh(toast: Any, plans: list[str]) -> None:
    status, out, err = toast("replay", "attention", plans[0], *SIZES, "--repeats", "2", "--json")
    assert status == 0, err
    data = json.loads(out)["replay"]
    assert data["median_s"] > 0
    status, _, err = toast("replay", "attention", "none.json", *SIZES)
    assert status == 2
    assert "none.json" in err
