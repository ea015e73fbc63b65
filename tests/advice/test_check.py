"""A budget file holds a plan to its collectives, memory and time."""

from __future__ import annotations

from pathlib import Path

import pytest

import toast_lab as tl
from toast_lab.advice.check import BudgetExceeded, update
from toast_lab.errors import InvalidInput

HEAD = """# what the team agreed on
model = "transformer"
mesh = "data=4,model=2"
machine = "tpu-v5e"
actions = [{actions}]
sizes = {{ layers = 1, batch = 8, sequence = 256, d_model = 64, hidden = 128, vocab = 128 }}
"""
GOOD = '"batch->data", "hidden->model", "heads->model"'


def budget(folder: Path, actions: str = GOOD) -> Path:
    file = folder / "budget.toml"
    file.write_text(HEAD.format(actions=actions))
    return file


def test_what_is_written_today_holds_today_and_a_regression_is_caught(tmp_path: Path) -> None:
    file = budget(tmp_path)
    assert update(file).passed
    text = file.read_text()
    assert text.startswith("# what the team agreed on")
    checked = tl.check(file)
    assert checked.passed
    assert {"time_s", "peak_bytes", "unsharded_bytes", "all_reduce", "all_reduce bytes"} <= {
        row.what for row in checked.rows
    }
    checked.raise_if_exceeded()
    # Somebody drops the cut of the hidden dim, and cuts the sequence, which has to be gathered
    worse = text.replace(GOOD, '"batch->data", "sequence@0->model"')
    assert worse != text
    file.write_text(worse)
    again = tl.check(file)
    assert not again.passed
    exceeded = {row.what for row in again.exceeded}
    assert "unsharded_bytes" in exceeded
    assert any(what.startswith("all_gather") for what in exceeded), "a kind that was not there"
    with pytest.raises(BudgetExceeded, match=r"lines exceeded[\s\S]*! +all_gather +0 +"):
        again.raise_if_exceeded()


def test_a_plan_file_lies_beside_its_budget(tmp_path: Path) -> None:
    sizes = {"layers": 1, "batch": 8, "sequence": 256, "d_model": 64, "hidden": 128, "vocab": 128}
    problem = tl.Problem(tl.analyse(tl.load("transformer", **sizes)), "data=4,model=2")
    tl.Plan.from_actions(problem, ["batch->data"]).save(tmp_path / "plan.json")
    file = budget(tmp_path)
    file.write_text(file.read_text().replace(f"actions = [{GOOD}]", 'plan = "plan.json"'))
    checked = tl.check(file)
    assert checked.plan == "plan.json"
    cost = tl.price(problem, tl.Plan.from_actions(problem, ["batch->data"]))
    assert {row.what: row.now for row in checked.rows}["time_s"] == cost.time_s


def test_all_mistakes_of_a_file_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "budget.toml"
    file.write_text('mesh = 3\nmashine = "x"\n[limits]\ntime_s = -1\npeek_bytes = 3\n')
    with pytest.raises(InvalidInput) as error:
        tl.check(file)
    for words in ("model is missing", "mesh is missing", "mashine", "machine", "plan or actions"):
        assert words in str(error.value), words
    assert "limits.time_s" in str(error.value)
    assert "peek_bytes" in str(error.value)
    file.write_text("model = [")
    with pytest.raises(InvalidInput, match="is not a TOML file"):
        tl.check(file)
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        tl.check(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="needs topology"):
        tl.check(budget(tmp_path), compiled=True)
