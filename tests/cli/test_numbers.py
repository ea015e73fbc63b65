"""Options are checked before anything is loaded.

Numbers out of range, files and devices are refused with a message that never says "defect".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toast_lab import cli
from toast_lab.commands import common

HUGE = "99999999999999999999"
NUMBERS = ("-1", "0.5", "nan", "inf", "-inf", "1e999", HUGE, "9" * 5000, "x", "", "²")


class Began(Exception):
    """Raised where a command would begin its work."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs a command, which must be refused before it begins; gives stderr."""

    def begin(*_: Any, **__: Any) -> Any:
        raise Began

    monkeypatch.setattr(common, "load_model", begin)
    monkeypatch.setattr("toast_lab.sweep.run_sweep.run_sweep", begin)
    monkeypatch.setattr("toast_lab.app.app_server.warm", begin)
    monkeypatch.setattr("toast_lab.runtime.calibrate.calibrate", begin)

    def run(*words: str) -> str:
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert status == 2, f"{words}: {said.err}"
        assert "defect" not in said.err, f"{words}: {said.err}"
        assert "Traceback" not in said.err
        return str(said.err)

    return run


#: Options with a number: the command, the option, and the values of NUMBERS that it accepts.
OPTIONS = [
    ("search mlp", "--seed", ()),
    ("search mlp", "--seconds", ("0.5",)),
    ("search mlp", "--evaluations", ()),
    ("search mlp", "--threads", ()),
    ("search mlp", "--time-limit", ("0.5",)),
    ("search mlp", "--memory-limit", ("0.5",)),
    ("run mlp", "--repeats", ()),
    ("compare mlp plan", "--repeats", ()),
    ("compare mlp plan", "--rounds", ()),
    ("compare mlp plan", "--processes", ()),
    ("compare mlp plan", "--seed", ()),
    ("compare mlp plan", "--plan-time-limit", ("0.5",)),
    ("replay mlp plan", "--seed", ()),
    ("replay mlp plan", "--repeats", ()),
    ("race mlp", "--parallel", ()),
    ("race mlp", "--seed", ()),
    ("sweep --models mlp --out x", "--seeds", ()),
    ("sweep --models mlp --out x", "--seconds", ("0.5",)),
    ("sweep --models mlp --out x", "--evaluations", ()),
    ("sweep --models mlp --out x", "--workers", ()),
    ("sweep --models mlp --out x", "--retries", ()),
    ("calibrate", "--time-limit", ("0.5",)),
    ("runs", "--limit", ()),
    ("export mlp plan", "--seconds", ("0.5",)),
    ("serve", "--port", ()),
]


@pytest.mark.parametrize(
    ("command", "option", "good"), OPTIONS, ids=lambda value: str(value).replace(" ", "_")
)
def test_a_number_out_of_range_is_refused_by_its_option(
    refused: Any,
    command: str,
    option: str,
    good: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in NUMBERS:
        if value not in good:
            message = refused(*command.split(), f"{option}={value}")
            assert option.lstrip("-") in message, message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "mlp", "--devices", "cpu:2"], "the mesh needs 8 devices, but 'cpu:2' has only 2"),
        (["run", "mlp", "--devices", "cqu:8"], "cannot read devices"),
        (["run", "mlp", "--devices", f"cpu:{HUGE}"], "no machine has that many"),
        (["compile", "mlp", "--topology", "tpu:v5e:9x9"], "9x9"),
        (["compile", "mlp", "--topology", "cpu:3"], "3"),
        (["search", "mlp", "--mesh", f"4x{HUGE}"], "cannot read the mesh"),
        (["search", "mlp", "--mesh", "data=²"], "cannot read the mesh"),
        (["search", "mlp", "--mesh", "65536x65536"], "at most 2147483647"),
        (["search", "mlp", "--machine", "tpu-v99"], "tpu-v99"),
        (["conflicts", "mlp", "--machine", "tpu-v99"], "tpu-v99"),
        (
            ["search", "mlp", "--save", "none/x.json"],
            "--save none/x.json: its folder does not exist",
        ),
        (
            ["search", "mlp", "--save", "x", "--save-search", "./x"],
            "--save and --save-search name the same file",
        ),
        (["race", "mlp", "--csv", "none/x.csv"], "--csv none/x.csv: its folder does not exist"),
        (["sweep", "--models", "mlp", "--out", "file/x"], "is a file, give a folder"),
        (["search", "mlp", "--resume", "file"], "cannot read this saved search"),
        (["search", "mlp", "--option", "depth=-1"], "mcts: depth=-1 must be at least 1"),
        (["search", "mlp", "--option", "depth=1000000000"], "must be at most 10000"),
        (
            ["search", "mlp", "--option", "exploration=nan"],
            "option exploration must be a finite number",
        ),
        (["search", "mlp", "--option", f"restarts={HUGE}"], "option restarts must be"),
        (
            ["search", "mlp", "--method", "beam", "--option", "patience=0"],
            "beam: patience=0 must be at least 1",
        ),
        (["replay", "mlp", "plan.json", "--device", "cqu"], "cannot read devices"),
        (
            ["export", "mlp", "plan.json", "--python", "none/x.py"],
            "--python none/x.py: its folder does not exist",
        ),
        (["compare", "mlp", "plan.json", "--devices", "cpu:1"], "the mesh needs 8 devices"),
        (["compare", "mlp", "plan.json", "--store", "file/x/y"], "is a file, give a folder"),
        (["diff", "mlp", "absent.json", "plan.json"], "cannot read absent.json"),
        (["serve", "--allow-origin", "*"], "--allow-origin '*' is not HOST:PORT"),
        (["runs", "show", "²"], "cannot read"),
        (["runs", "show", "9" * 30], "cannot read"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_refused_before_any_work(
    refused: Any, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "plan.json").write_text(json.dumps({"mesh": {"data": 4, "model": 2}}))
    assert message in refused(*words)


def test_everything_that_is_wrong_is_listed_at_once(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(
        "run",
        "mlp",
        "--devices",
        "cpu:2",
        "--save",
        "none/x",
        "--method",
        "mtcs",
        "--machine",
        "tpu-v99",
    )
    for text in ("the mesh needs 8 devices", "none/x", 'did you mean "mcts"', "tpu-v99"):
        assert text in message
