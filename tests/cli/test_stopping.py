"""On SIGTERM, commands that keep a best result print and save it; all others end.

A second SIGTERM ends any command at once.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import started, wait_for
from tests.processes import descendants
from toast_lab import cli
from toast_lab.commands import stopping
from toast_lab.search.saved_search import SavedSearch

SEARCH = ["search", "transformer", "--seconds", "300", "--mesh", "4x2", "--method", "random"]


class Terminal:
    """A running command whose stderr is a terminal, so that it shows a progress bar."""

    def __init__(self, *argv: str) -> None:
        self.mother, child = pty.openpty()
        self.process = started(*argv, stderr=child)
        os.close(child)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self.mother)

    def terminate_at(self, text: str) -> str:
        """Wait for ``text``, send SIGTERM, and give the output of the command."""
        wait_for(self.mother, text, 240)
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=120)
        return str(out)


def test_a_search_prints_and_saves_its_best(tmp_path: Path) -> None:
    plan, saved = tmp_path / "plan.json", tmp_path / "search.json"
    with Terminal(*SEARCH, "--json", "--save", str(plan), "--save-search", str(saved)) as command:
        data = json.loads(command.terminate_at("best "))
        assert command.process.returncode == 143
    assert data["search"]["status"] == "CANCELLED"
    assert json.loads(plan.read_text())["actions"] == data["plan"]["actions"]
    assert SavedSearch.load(saved).facts["status"] == "CANCELLED"


def test_a_run_tells_what_its_search_found_and_does_not_run_it(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    argv = ["run", *SEARCH[1:], "--devices", "cpu:8", "--json", "--save", str(plan)]
    with Terminal(*argv) as command:
        data = json.loads(command.terminate_at("best "))
        assert command.process.returncode == 143
    assert data["search"]["status"] == "CANCELLED"
    assert "run" not in data
    assert plan.exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_race_prints_what_its_methods_found_and_its_children_end() -> None:
    with Terminal(
        "race", "mlp", "--methods", "random,beam", "--seconds", "300", "--json"
    ) as command:
        wait_for(command.mother, "random: ", 240)
        pids = [pid for pid, _ in descendants(command.process.pid)]
        assert pids
        command.process.send_signal(signal.SIGTERM)
        out, _ = command.process.communicate(timeout=120)
        assert command.process.returncode == 143
    first, second = json.loads(out)["race"]["rows"]
    assert (first["status"], second["status"]) == ("CANCELLED", "CANCELLED")
    assert first["score"] is not None
    until(lambda: not [pid for pid in pids if alive(pid)])


def test_a_sweep_keeps_its_rows(tmp_path: Path) -> None:
    process = started(
        "sweep",
        "--models",
        "mlp",
        "--meshes",
        "2x2",
        "--evaluations",
        "30",
        "--seeds",
        "0-90",
        "--out",
        str(tmp_path),
        "--json",
        stderr=subprocess.PIPE,
    )
    rows = tmp_path / "rows.jsonl"
    until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (143, "")
    data = json.loads(out)
    assert len(data["rows"]) + data["missing"] == 91
    assert data["missing"] > 0
    assert len(rows.read_text().splitlines()) == len(data["rows"])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_anything_else_ends_with_its_children_and_a_second_one_is_the_systems(
    tmp_path: Path,
) -> None:
    (tmp_path / "cli_slow_model.py").write_text(
        "import pathlib, time\ndef make():\n    "
        "pathlib.Path(__file__).with_name('begun').touch()\n    time.sleep(90)\n"
    )
    process = started("analyse", "cli_slow_model:make", stderr=subprocess.PIPE, cwd=tmp_path)
    until((tmp_path / "begun").exists)
    pids = [pid for pid, _ in descendants(process.pid)]
    assert pids
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (143, "toast-lab: terminated\n")
    until(lambda: not [pid for pid in pids if alive(pid)])


def test_a_second_one_ends_at_once(tmp_path: Path) -> None:
    """The first SIGTERM has no effect yet, because the process sleeps in its search."""
    code = (
        "import os, signal, sys, time\n"
        "from toast_lab.commands import stopping\n"
        "with stopping.listening(), stopping.stop_gently() as stopped:\n"
        "    print('go', flush=True)\n"
        "    while not stopped(): time.sleep(0.01)\n"
        "    print('asked', flush=True)\n"
        "    time.sleep(90)\n"
    )
    import sys

    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_handlers_are_put_back_and_the_state_is_the_commands_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    from toast_lab.commands import output

    def terminated(*_: Any) -> int:
        with stopping.stop_gently() as stopped:
            assert not stopped()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped()
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(output, "emit", terminated)
        assert cli.main(["machines"]) == 143
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert cli.main(["machines"]) == 0

    def raised(*_: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return 0

    monkeypatch.setattr(output, "emit", raised)
    assert cli.main(["machines"]) == 143
    assert capsys.readouterr().err == "toast-lab: terminated\n"
    assert signal.getsignal(signal.SIGTERM) == before[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
