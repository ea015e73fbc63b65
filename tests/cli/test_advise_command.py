"""``toast-lab advise``: a screen, or all rows as JSON and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

SIZES = ["layers=2", "batch=16", "sequence=256", "d_model=64", "hidden=128", "vocab=128", "heads=4"]
QUICK = ["--evaluations", "30", "--workers", "0", "--whole-batch", "--as-written"]


def test_a_screen_with_the_three_answers(toast: Any) -> None:
    status, out, _ = toast(
        "advise", "transformer", "--set", *SIZES, "--devices", "8", "--price", "1.2", *QUICK
    )
    assert status == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.strip()[:1].isdigit()] == ["8", "4", "1"]
    for answer in ("Fastest: 8 devices", "Cheapest: ", "Smallest slice that fits: 1 device"):
        assert any(line.startswith(answer) for line in lines), answer
    assert lines[-1] == "Done."


def test_all_rows_as_data_and_the_plan_of_the_first(tmp_path: Path, toast: Any) -> None:
    table, plan, folder = tmp_path / "rows.csv", tmp_path / "plan.json", tmp_path / "rows"
    given = ["--set", *SIZES, "--devices", "2", "8", "--machine", "h100", *QUICK]
    files = ["--csv", str(table), "--save", str(plan), "--out", str(folder)]
    status, out, _ = toast("advise", "transformer", *given, *files, "--json")
    assert status == 0
    data = json.loads(out)
    assert sorted({row["devices"] for row in data["rows"]}) == [2, 8]
    first = data["rows"][0]
    assert first == data["fastest"]
    written = list(csv.DictReader(table.read_text().splitlines()))
    assert len(written) == len(data["rows"])
    assert float(written[0]["time_s"]) == pytest.approx(first["time_s"])
    saved = json.loads(plan.read_text())
    assert saved["mesh"] == first["mesh"]
    rows = (folder / "rows.jsonl").read_text()
    status, again, _ = toast("advise", "transformer", *given, "--out", str(folder), "--json")
    assert json.loads(again) == data
    assert (folder / "rows.jsonl").read_text() == rows
    status, out, _ = toast(
        *("price", "transformer", "--set", *SIZES, "--machine", "h100"),
        *("--plan", str(plan), "--json"),
    )
    assert status == 0
    assert json.loads(out)["cost"]["time_s"] == pytest.approx(first["time_s"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--devices", "0"], "'0' is not between 1 and"),
        (["--price", "-1"], "must be above 0, got -1"),
        (["--price", "0"], "must be above 0, got 0"),
        (["--devices", "512"], "512 devices: tpu-v5e joins at most 256"),
        (["--machine", "tpu-v9"], "no machine is called 'tpu-v9'"),
        (["--batch", "5", "--set", "batch=16"], "5 does not divide 16"),
    ],
)
def test_what_is_not_possible_is_refused(given: list[str], message: str, toast: Any) -> None:
    status, out, error = toast("advise", "transformer", *given)
    assert status == 2
    assert not out
    assert message in error
