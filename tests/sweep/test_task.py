"""Sweeps in the form that people write, and the tasks that they expand to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toast_lab.errors import InvalidProblem
from toast_lab.sweep.sweep_worker import failed_row
from toast_lab.sweep.task import SweepTask, read_sweep, tasks_of


def test_every_combination_model_by_model() -> None:
    tasks = tasks_of(
        {
            "models": ["mlp:batch=64|128,hidden=32", {"name": "xxt", "rows": [8, 16]}],
            "meshes": ["2x2", {"a": 4}],
            "machines": ["tpu-v3"],
            "methods": ["mcts", {"name": "manual", "actions": ["B->a"]}],
            "seeds": "0-1,5",
            "evaluations": 10,
        }
    )
    assert len(tasks) == (2 + 2) * 2 * 1 * 2 * 3
    assert len({t.digest for t in tasks}) == len(tasks)
    assert [t.model for t in tasks] == sorted((t.model for t in tasks), key=["mlp", "xxt"].index)
    assert str(tasks[0]) == "mcts mlp batch=64 hidden=32 on data=2,model=2 of tpu-v3, seed 0"
    assert tasks[0].seconds is None
    assert {t.seed for t in tasks} == {0, 1, 5}
    assert tasks[3].options == (("actions", ["B->a"]),)


def test_a_digest_does_not_depend_on_spelling() -> None:
    a = SweepTask.make("mlp", {"batch": 64, "hidden": 32}, "2x2", "tpu-v3", "mcts")
    b = SweepTask.make(
        "mlp", {"hidden": 32, "batch": 64}, {"data": 2, "model": 2}, "tpu-v3", "mcts"
    )
    assert a == b
    assert a.digest == b.digest
    for other in ({"seed": 1}, {"seconds": 5.0}, {"options": {"x": 1}}, {"memory_limit_gib": 1.0}):
        assert (
            SweepTask.make(
                "mlp", {"batch": 64, "hidden": 32}, "2x2", "tpu-v3", "mcts", **other
            ).digest
            != a.digest
        )


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidProblem) as info:
        tasks_of(
            {
                "models": ["mpl", "mlp:bach=2", "mlp:batch"],
                "meshes": ["4y2"],
                "machines": ["tpu-v9"],
                "methods": ["mtcs"],
                "seeds": "1-x",
                "seconds": -1,
                "colour": "red",
            }
        )
    text = str(info.value)
    for part in (
        "'mpl'",
        "no size 'bach'",
        "4y2",
        "tpu-v9",
        "'mtcs'",
        "seeds",
        "seconds",
        "'colour'",
    ):
        assert part in text, part


@pytest.mark.parametrize("seeds", ["0-100000", "0-60000,70000-130000", list(range(100_001)), []])
def test_more_seeds_than_a_sweep_takes_are_refused(seeds: object) -> None:
    with pytest.raises(InvalidProblem, match="at most 100000 of them"):
        tasks_of({"models": ["mlp"], "seeds": seeds})


def test_a_search_that_failed_has_the_limit_and_no_number_of_evaluations() -> None:
    (task,) = tasks_of({"models": ["mlp"], "evaluations": 7})
    row = failed_row(task, RuntimeError("it died"))
    assert row["evaluations_limit"] == 7
    assert row.get("evaluations") is None


def test_a_mesh_that_a_machine_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="tpu-v5e"):
        tasks_of({"models": ["mlp"], "meshes": ["1024x1024"], "machines": ["tpu-v5e"]})


@pytest.mark.parametrize("name", ["sweep.toml", "sweep.json"])
def test_from_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = {"models": ["mlp"], "meshes": ["2x2"], "seeds": [0, 1], "evaluations": 5}
    text = 'models = ["mlp"]\nmeshes = ["2x2"]\nseeds = [0, 1]\nevaluations = 5\n'
    path.write_text(json.dumps(data) if name.endswith("json") else text)
    assert tasks_of(read_sweep(path)) == tasks_of(data)


@pytest.mark.parametrize(
    ("text", "message"), [("models = [", "neither TOML nor JSON"), (None, "cannot read")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "sweep.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidProblem, match=message):
        read_sweep(path)
