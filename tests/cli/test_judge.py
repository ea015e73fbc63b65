"""``toast-lab search --judge`` puts verdicts into its output, the JSON and the plan's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NET = ("mlp", "--mesh", "2", "--evaluations", "60", "--judge", "cpu:2", "--compiles", "1")


def test_verdicts_stand_in_the_json_and_in_the_plan(toast: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    status, out, err = toast(
        "search", *NET, "--machine", "cpu", "--front", "--save", str(path), "--json"
    )
    assert status == 0, err
    judged = json.loads(out)["judged"]
    assert judged["judge"] == "cpu:2"
    verdicts = judged["verdicts"]
    assert all(verdict["judged_s"] > 0 for verdict in verdicts)
    assert verdicts[0]["name"] == "data parallel"
    assert verdicts[0]["size"] == {"rules": 1, "constraints": 0}
    assert json.loads(out)["written"]["constraints"] == []
    assert all(row["judged_s"] is None or row["judged_s"] > 0 for row in json.loads(out)["front"])
    assert judged["elsewhere"] == ""
    kept = json.loads(path.read_text())["judged"]
    assert kept["judge"] == "cpu:2"
    assert kept["standing"] == judged["standing"]


def test_a_judge_of_another_machine_is_said_before_and_after(toast: Any) -> None:
    status, out, err = toast("search", *NET, "--machine", "tpu-v5e")
    assert status == 0, err
    assert "note: cpu:2 is the machine cpu, and prices are for tpu-v5e" in err
    assert "the judge and the prices are of different machines" in " ".join(out.split())
    row = next(line for line in out.splitlines() if "best judged" in line)
    assert row.split()[5] == "-", "a ratio of two machines"
