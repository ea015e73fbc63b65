"""Comparisons on meshes over several real processes: jax.distributed with gloo, locally."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compare.test_compare import plans_of, scores
from toast_lab.compare import distributed, measure
from toast_lab.compare.compare import compare
from toast_lab.errors import InvalidProblem

ROOT = Path(__file__).parents[2]
LAUNCHED = """
import os, sys
import jax
from toast_lab.compare.distributed import connect
connect()
from tests.compare.test_compare import plans_of, scores
import toast_lab as tl
model = scores()
done = tl.compare(model, plans_of(model), "distributed", repeats=2, store=os.environ["KEEP_IN"])
if jax.process_index() == 0:
    import json
    print(json.dumps(done.to_json()))
sys.stdout.flush()
"""


def test_a_mesh_over_two_processes_computes_what_one_device_does() -> None:
    model = scores()
    comparison = compare(model, plans_of(model), processes=2, repeats=2)
    assert [(row.status, row.message) for row in comparison.rows] == [("ok", "")] * 2
    both = comparison["both"]
    assert (both.n_devices, both.n_processes) == (4, 2)
    assert both.collective_counts == {"all_reduce": 1}
    assert both.certificate is not None
    assert both.certificate.passed
    assert both.certificate.gradients
    assert both.certificate.max_relative_error is not None
    assert both.certificate.max_relative_error < 1e-5
    assert both.argument_bytes == 1024 + 4096 + 1024
    assert comparison.reference is not None
    assert comparison.reference.n_processes == 1


def test_one_process_that_crashes_ends_its_plan_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SERVE_FUNCTION", "tests.compare.test_compare:serve_faulty")
    model = scores()
    plan = plans_of(model)["both"]
    comparison = compare(
        model, {"crash": plan, "fine": plan}, processes=2, repeats=2, reference=False
    )
    assert [row.status for row in comparison.rows] == ["crashed", "ok"]
    assert "crash, process 1: its process crashed (SIGSEGV)" in comparison["crash"].message


def test_launched_processes_share_a_mesh_and_the_first_one_keeps_it(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHED],
            env={**env, "JAX_PROCESS_ID": str(i), "KEEP_IN": str(tmp_path / f"{i}.sqlite")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    outputs = [p.communicate(timeout=120) for p in started]
    assert [p.returncode for p in started] == [0, 0], outputs
    data = json.loads(outputs[0][0].splitlines()[-1])
    assert [(row["status"], row["n_processes"], row["n_devices"]) for row in data["rows"]] == [
        ("ok", 2, 4)
    ] * 2
    assert all(
        row["certificate"]["passed"] and row["certificate"]["gradients"] for row in data["rows"]
    )
    assert data["stored_as"] == [1, 2, 3]
    assert "{" not in outputs[1][0]
    assert (tmp_path / "0.sqlite").exists()
    assert not (tmp_path / "1.sqlite").exists()


def test_without_a_launcher_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(InvalidProblem, match="but not JAX_COORDINATOR_ADDRESS or JAX_PROCESS_ID"):
        distributed.connect()
