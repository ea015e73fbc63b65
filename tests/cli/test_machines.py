"""``toast-lab machines`` and ``toast-lab calibrate``.

Also machine files with every command that accepts ``--machine``.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.small_net import NET
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.machine_model import Machine

ROOT = Path(__file__).parents[2]


def test_one_machine_with_a_mesh_shows_where_axes_run(toast: Any) -> None:
    status, out, _ = toast("machines", "tpu-v4", "--mesh", "4x4x4")
    assert status == 0
    assert "a slice of 4x4x4" in out
    assert out.count("ring of 4, wraps") == 3
    assert "a100" not in out
    data = json.loads(toast("machines", "a100", "--mesh", "data=2,model=8", "--json")[1])
    assert [(a["axis"], a["link_bytes_per_s"]) for a in data["axes"]] == [
        ("data", 25e9),
        ("model", 300e9),
    ]
    assert [m["name"] for m in data["machines"]] == ["a100"]


def test_the_table_tells_every_number_and_its_source(toast: Any) -> None:
    data = json.loads(toast("machines", "--json")[1])
    assert [m["name"] for m in data["machines"]] == list(MACHINES)
    for m in data["machines"]:
        assert m["sources"]
        assert all(link["source"] for link in m["links"])
    assert "CACM" in toast("machines")[1]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["machines", "--mesh", "4x4"], ["--mesh 4x4", "name a machine"]),
        (["machines", "tpu-v4", "--mesh", "64x128"], ["8192 devices", "tpu-v4", "at most 4096"]),
        (["machines", "tpu-v44"], ['did you mean "tpu-v4"']),
        (["machines", "none.toml"], ["none.toml", "No such file"]),
        (["price", "mlp", "--mesh", "32x16", "--actions"], ["512 devices", "at most 256"]),
        (["calibrate", "--devices", "cpu:0"], ["cpu:0"]),
        (["calibrate", "--devices", "cup:2"], ['did you mean "cpu"']),
        (["calibrate", "--output", "machine.json"], ["machine.json", ".toml"]),
        (["calibrate", "--output", "no/such/folder/m.toml"], ["folder does not exist"]),
        (["calibrate", "--time-limit", "-3"], ["must be above 0, got -3"]),
    ],
)
def test_bad_input_is_named(toast: Any, argv: list[str], said: list[str]) -> None:
    status, out, err = toast(*argv)
    assert (status, out) == (2, "")
    for part in said:
        assert part in err


def test_a_machine_file_wherever_a_machine_is_named(toast: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    MACHINES["a100"].to_toml(path)
    for command in (
        ["price", *NET, "--actions", "S@1->data"],
        ["search", *NET, "--evaluations", "5"],
        ["machines"],
    ):
        option = [str(path)] if command == ["machines"] else ["--machine", str(path)]
        status, out, err = toast(*command, *option, "--json")
        assert status == 0, err
        assert '"a100"' in out
    path.write_text(path.read_text().replace("memory_bytes = 8", "memory_bites = 8"))
    status, _, err = toast("search", *NET, "--machine", str(path))
    assert status == 2
    assert 'did you mean "memory_bytes"' in err
    assert str(path) in err


def test_a_calibration_ends_in_a_machine_file(toast: Any, tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    status, out, err = toast("calibrate", "--devices", "cpu:2", "--quick", "--output", str(path))
    assert (status, err) == (0, "")
    assert "all_reduce over 2" in out
    assert Machine.from_toml(path).name == "here"
    status, out, err = toast("price", *NET, "--machine", str(path), "--actions", "S@1->data")
    assert status == 0, err
    assert os.listdir(tmp_path) == ["here.toml"]


def test_interrupting_a_calibration_keeps_what_it_has(tmp_path: Path) -> None:
    # Stderr is a terminal, so a progress bar shows how far the calibration is
    mother, child = pty.openpty()
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from "
        "toast_lab.cli import main; "
    )
    argv = ["calibrate", "--devices", "cpu:2", "--output", str(tmp_path / "part.toml"), "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", start + "sys.exit(main())", *argv],
            stdout=subprocess.PIPE,
            stderr=child,
            text=True,
            env=env,
        )
        os.close(child)
        seen, deadline = b"", time.monotonic() + 120
        while b"dot f32 512" not in seen and time.monotonic() < deadline:
            if select.select([mother], [], [], 1)[0]:
                seen += os.read(mother, 65536)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        os.close(mother)
    assert process.returncode == 0
    data = json.loads(out)
    assert "cancelled" in data["note"]
    assert "links" in data["not_measured"]
    assert Machine.from_toml(tmp_path / "part.toml").flops["f32"] > 1e6
