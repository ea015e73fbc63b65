"""``toast-lab report`` writes its file, or says before it searches why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.small_net import NET
from toast_lab.cli import main


def saved(tmp_path: Path, name: str, action: str) -> str:
    path = str(tmp_path / name)
    assert main(["price", *NET, "--actions", action, "--save", path]) == 0
    return path


def test_plans_from_files_are_explained_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [saved(tmp_path, f"side{side}.json", f"S@{side}->data") for side in (0, 1)]
    capsys.readouterr()
    target = tmp_path / "report.html"
    words = ["report", *NET[:1], *plans, *NET[1:], "-o", str(target), "--no-kept"]
    assert main(words) == 0
    assert "plan side0 of" in capsys.readouterr().out
    html = target.read_text()
    assert "From side1 to side0" in html
    assert "toast-lab report attention" in html


def test_without_a_plan_one_is_searched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, plan = tmp_path / "report.html", tmp_path / "plan.json"
    words = ["report", *NET, "--evaluations", "100", "-o", str(target), "--save", str(plan)]
    assert main([*words, "--no-kept", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["report"], data["plans"]) == (str(target), ["mcts"])
    assert data["bytes"] == target.stat().st_size
    assert json.loads(plan.read_text())["format"]
    assert "mcts, seed 0" in target.read_text()


def test_a_plan_by_hand_can_be_compiled_for_it(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    words = ["report", *NET, "--actions", "S@1->data", "--compile-for", "cpu:4"]
    assert main([*words, "-o", str(target), "--no-kept"]) == 0
    assert "compiled for cpu:4" in target.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["atention"], "did you mean"),
        ([*NET, "-o", "/nowhere/report.html"], "--output /nowhere/report.html: its folder does"),
        ([*NET[:1], "none.json", *NET[1:]], "none.json"),
        ([*NET[:1], "none.json", *NET[1:], "--actions"], "not both"),
        ([*NET, "--actions", "S->nowhere"], "nowhere"),
        ([*NET, "--compile-for", "cpu:3"], "cpu:3"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_plan_of_another_program_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = saved(tmp_path, "plan.json", "S@1->data")
    assert main(["report", "mlp", plan, "-o", str(tmp_path / "report.html")]) == 2
    assert "plan.json" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
