"""The command line, the explorer, the report and Python write one plan in one size."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

import toast_lab as tl
from toast_lab.app.pages.compare_words import PlanSide
from toast_lab.app.saver import saver
from toast_lab.app.session import Session
from toast_lab.cli import main
from toast_lab.jobs.job import Registry

SETTINGS = {"sequence": 4096, "d_model": 512, "key": 64, "value": 64}
ACTIONS = ["S@1->s"]
TIME_S = 240.0
# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def counted(text: str) -> str:
    """The first size in a text."""
    found = re.search(r"\d+ rules? and \d+ constraints?", text)
    assert found is not None, text
    return found[0]


def test_one_plan_has_one_size_everywhere(
    jobs: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tl.load("attention", **SETTINGS)
    problem = tl.Problem(tl.analyse(model), {"s": 8})
    plan = tl.Plan.from_actions(problem, ACTIONS)
    written = plan.written(problem=problem)
    size = str(written.size)
    assert written.size.total == len(written.rules) + len(written.constraints) > 0

    # Python
    assert counted(str(written)) == size
    assert counted(written.to_python()) == size
    assert plan.written(problem=problem).size == written.size
    assert counted(plan.to_python(problem=problem)) == size

    # The report
    html = tl.report(problem, plan, kept=False).html
    assert counted(html) == size

    # The command line
    plan.save(tmp_path / "plan.json")
    sizes = [f"{name}={value}" for name, value in SETTINGS.items()]
    words = ["attention", str(tmp_path / "plan.json"), "--set", *sizes]
    assert main(["export", *words, "--python", str(tmp_path / "out.py"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["written"]
    assert data["size"] == written.size._asdict()
    assert len(data["rules"]) + len(data["constraints"]) == written.size.total
    assert counted((tmp_path / "out.py").read_text()) == size

    # The explorer
    session = Session(jobs)
    session.load("attention", SETTINGS)
    session.set_problem(machine="tpu-v5e", mesh="s=8")
    session.plans.add_typed(", ".join(ACTIONS), "ours")
    item = session.plans.named("ours")
    assert item is not None
    pane = PlanSide(session, saver(session.notices.say))
    pane.show_plan(item)
    assert "not written yet" in pane.size.object
    pane._write()
    deadline = time.monotonic() + TIME_S
    while session.exports.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pane.show_plan(session.plans.named("ours"))
    assert counted(pane.size.object) == size
    assert len(pane._raw()) == written.size.total
    while not pane.text.object:
        pane.tick()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert pane.text.object.count("<li>") == written.size.total

    # Its report
    session.plans.start_export("ours", "report")
    while session.exports.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    exported = session.plans.exported
    assert exported.file == "ours_report.html"
    assert exported.text.startswith("<!DOCTYPE html>")
    assert "Not written" not in exported.text
    assert counted(re.sub("<[^>]+>", "", exported.text)) == size
