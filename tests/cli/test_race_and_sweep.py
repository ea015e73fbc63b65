"""``race`` and ``sweep``.

The tests cover what they print and write, what they refuse, and what remains after Ctrl-C.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import NET, QUICK, started

RACE = ["race", *NET, *QUICK, "--methods", "mcts,exhaustive"]
SWEEP = ["sweep", "--models", "mlp", "--meshes", "2x2", "--evaluations", "30"]


def test_race_writes_curves_and_the_best_plan(toast: Any, tmp_path: Path) -> None:
    curves, plan = tmp_path / "curves.csv", tmp_path / "plan.json"
    status, out, err = toast(*RACE, "--json", "--csv", str(curves), "--save", str(plan))
    assert (status, err) == (0, "")
    data = json.loads(out)["race"]
    assert [r["method"] for r in data["rows"]] == ["mcts", "exhaustive"]
    rows = list(csv.DictReader(curves.open()))
    assert len(rows) == len(data["curves"])
    assert {r["method"] for r in rows} == {"mcts", "exhaustive"}
    best = next(r for r in data["rows"] if r["method"] == data["best"])
    assert json.loads(plan.read_text())["actions"] == best["actions"]


def test_race_prints_the_table(toast: Any) -> None:
    _, out, _ = toast(*RACE)
    lines = out.splitlines()
    assert lines[0] == "attn on data=2,model=2 of tpu-v5e, seed 0"
    assert lines[1].split()[:3] == ["method", "score", "ms"]
    assert [line.split()[0] for line in lines[2:4]] == ["mcts", "exhaustive"]
    assert lines[-1].startswith("Best: ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*RACE[:-1], "mtcs,alpaca"], ["'mtcs'", "'alpaca'"]),
        ([*RACE[:-1], "mcts,mcts"], ["mcts is given 2 times"]),
        ([*RACE, "--csv", "/no/such/folder/x.csv"], ["--csv /no/such/folder/x.csv"]),
        (["sweep", "--out", "x"], ["a sweep needs models"]),
        (["sweep", "a.toml", "--models", "mlp", "--out", "x"], ["not both: models"]),
        (
            ["sweep", "--models", "mpl", "--methods", "mtcs", "--machines", "v9", "--out", "x"],
            ["'mpl'", "'mtcs'", "'v9'"],
        ),
    ],
)
def test_wrong_input_is_said_at_once(toast: Any, argv: list[str], said: list[str]) -> None:
    status, out, err = toast(*argv)
    assert (status, out) == (2, "")
    for part in said:
        assert part in err
    assert "Traceback" not in err


def test_sweep_prints_and_writes_one_table(toast: Any, tmp_path: Path) -> None:
    status, out, err = toast(*SWEEP, "--seeds", "0-1", "--out", str(tmp_path))
    assert (status, err) == (0, "")
    assert "2 searches, 2 of them new" in out
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(r["model"], r["method"], r["seed"], r["status"]) for r in rows] == [
        ("mlp", "mcts", "0", "BUDGET"),
        ("mlp", "mcts", "1", "BUDGET"),
    ]


def test_ctrl_c_in_a_sweep_keeps_its_rows(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to every process of the group, but workers must survive it."""
    process = started(
        *SWEEP,
        "--seeds",
        "0-60",
        "--out",
        str(tmp_path),
        "--json",
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    rows, end = tmp_path / "rows.jsonl", time.monotonic() + 90
    while not rows.exists() or rows.read_bytes().count(b"\n") < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    data = json.loads(out)
    assert 2 <= len(data["rows"]) < 61
    assert len(data["rows"]) + data["missing"] == 61
    assert {r["status"] for r in data["rows"]} == {"BUDGET"}
    assert len(rows.read_text().splitlines()) == len(data["rows"])
