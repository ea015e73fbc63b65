"""Preparing kernels takes nothing from the budget of a search.

Nothing is compiled without a message to the user, and children that compile may die.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.helpers import model
from toast_lab import isolate, prepare
from toast_lab.search.methods import METHODS

SEARCH = """
import json, sys, time
from numba.core import event
import toast_lab as tl
from toast_lab import kernels, prepare
from toast_lab.search.mcts.improvement import Improvement

compiled = []
class Listener(event.Listener):
    def on_start(self, ev): compiled.append(ev.data["dispatcher"].py_func.__name__)
    def on_end(self, ev): pass

method, warm = sys.argv[1], sys.argv[2] == "warm"
program = tl.from_stablehlo(sys.argv[3])
problem = tl.Problem(tl.analyse(program), "4x2", memory_limit_bytes=2000.0)
if warm:
    prepare.prepare("price", method, *(["refine"] if method == "mcts" else []))
    event.register("numba:compile", Listener())
refined = []
real_begin = Improvement.begin
Improvement.begin = lambda self, *given: (refined.append(self), real_begin(self, *given))
began = time.monotonic()
options = {"trajectories": 32} if method == "mcts" else {}
# By evaluations, a slow machine comes as far as a quick one: mcts to its refining.
budget = tl.Budget(seconds=None, evaluations=700) if warm else tl.Budget(seconds=3.0)
result = tl.search(problem, method, budget=budget, **options)
wrong = {
    name: [str(s) for s in kernel.signatures]
    for name, kernel in kernels.KERNELS.items()
    if any(s != tuple(kernels.annotated(kernel.py_func)) for s in kernel.signatures)
}
print(json.dumps({"compiled": compiled, "wrong": wrong, "evaluations": result.evaluations,\
 "status": result.status.name,
                  "refining": bool(refined),
                  "elapsed_s": result.elapsed_s, "wall_s": time.monotonic() - began}))
"""


def run(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        env={**isolate.child_environment(), "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a program: searching it needs no jax, whose import takes most of the time."""
    path = tmp_path_factory.mktemp("program") / "mlp.mlir"
    path.write_text(model("mlp").stablehlo)
    return str(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
def test_a_prepared_search_compiles_nothing_and_each_kernel_has_one_signature(
    method: str, program: str
) -> None:
    report = json.loads(run(SEARCH, method, "warm", program).stdout)
    assert report["compiled"] == []
    assert report["wrong"] == {}
    assert report["refining"] == (method == "mcts")


def test_a_first_search_on_a_machine_spends_its_budget_on_searching(
    tmp_path: Path, program: str
) -> None:
    done = run(SEARCH, "random", "cold", program, NUMBA_CACHE_DIR=str(tmp_path))
    report = json.loads(done.stdout)
    assert "preparing kernels, once on this machine" in done.stderr
    assert report["elapsed_s"] < 4.0
    assert report["wall_s"] > report["elapsed_s"] + 1.0, (
        "compiling takes longer than that on any machine"
    )
    assert report["status"] == "COMPLETE" or report["evaluations"] > 20


def test_a_cancel_while_a_search_waits_for_kernels_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import toast_lab as tl
    from toast_lab.search import limits
    from toast_lab.search.contract import Status

    asked: list[tuple[str, ...]] = []

    def cancelled(*needs: str, cancel: object = None) -> None:
        asked.append(needs)
        raise isolate.Cancelled("cancelled while kernels were prepared")

    monkeypatch.setattr(limits, "prepare", cancelled)
    problem = tl.Problem(tl.analyse(tl.load("mlp")), "4x2")
    result = tl.search(problem, "random", budget=tl.Budget(seconds=5))
    assert asked == [("random",)]
    assert result.status is Status.CANCELLED
    assert result.evaluations == 1
    assert result.plan.actions == ()


def test_what_a_listener_takes_is_no_searching() -> None:
    import toast_lab as tl

    problem = tl.Problem(tl.analyse(tl.load("attention")), "4x2")
    slept = 0.0

    def pause(_: object) -> None:
        nonlocal slept
        if slept < 1.2:
            time.sleep(0.4)
            slept += 0.4

    began = time.monotonic()
    result = tl.search(
        problem, "random", budget=tl.Budget(seconds=None, evaluations=300), on_progress=pause
    )
    assert slept > 0.0
    assert result.elapsed_s <= time.monotonic() - began - slept


ALONE = """
import sys
from toast_lab import prepare
prepare.KERNEL_NEEDS = {"graph": ("conflicts.dimension_graph",)}
if sys.argv[1] == "no children":
    prepare.subprocess.Popen = lambda *a, **k: (_ for _ in ()).throw(OSError("no more processes"))
else:
    import subprocess
    died = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    prepare._muster = lambda needs: prepare._crew.append(died)
prepare.prepare("graph", listener=lambda done, total: print(done, total))
"""


@pytest.mark.parametrize("trouble", ["no children", "children that die"])
def test_without_children_kernels_are_compiled_here(tmp_path: Path, trouble: str) -> None:
    assert run(ALONE, trouble, NUMBA_CACHE_DIR=str(tmp_path)).stdout.split("\n")[:2] == [
        "0 1",
        "1 1",
    ]


def test_a_wait_can_be_cancelled(tmp_path: Path) -> None:
    code = """
    from toast_lab import isolate, prepare
    prepare.KERNEL_NEEDS = {"graph": ("conflicts.dimension_graph",)}
    try:
        prepare.prepare("graph", listener=lambda done, total: None, cancel=lambda: True)
    except isolate.Cancelled as error:
        print(error)
    """
    assert (
        "cancelled while kernels were prepared" in run(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout
    )


def test_a_crew_ends_with_whoever_set_it_to_work(tmp_path: Path) -> None:
    code = """
    import os, time
    from toast_lab import prepare
    prepare.start_early("price")
    print(*(child.pid for child in prepare._crew), flush=True)
    os._exit(0)
    """
    pids = run(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout.split()
    assert pids
    until = time.monotonic() + 60.0
    while time.monotonic() < until and any(_alive(int(pid)) for pid in pids):
        time.sleep(0.1)
    assert not any(_alive(int(pid)) for pid in pids)


def test_a_crew_that_has_ended_is_not_left_in_the_process_table(tmp_path: Path) -> None:
    code = """
    import time
    from pathlib import Path
    from toast_lab import prepare
    prepare.start_early("price")
    crew = [child.pid for child in prepare._crew]
    for child in prepare._crew:
        child.kill()
    until = time.monotonic() + 60.0
    while (left := [pid for pid in crew if Path(f"/proc/{pid}").exists()]):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    print(len(crew), len(left))
    """
    n_crew, n_left = map(int, run(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout.split())
    assert n_crew > 0
    assert n_left == 0


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_needs_name_modules_that_have_kernels() -> None:
    for need in prepare.KERNEL_NEEDS:
        assert prepare._names([need]), need


def test_loading_a_model_writes_nothing_to_stderr() -> None:
    env = {
        k: v for k, v in os.environ.items() if k not in ("TF_CPP_MIN_LOG_LEVEL", "JAX_PLATFORMS")
    }
    code = "import toast_lab as tl; print(tl.load('mlp'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.startswith("mlp: 5 ops")
    assert done.stderr == ""


def test_what_plugins_write_while_devices_are_looked_for_is_kept_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import logging

    import jax

    from toast_lab.errors import FrontendError
    from toast_lab.frontends import quiet

    def noisy(fails: bool) -> list[object]:
        os.write(2, b"E0000 no accelerator type\n")
        logging.getLogger("jax._src.xla_bridge").warning("An NVIDIA GPU may be present")
        if fails:
            raise RuntimeError("no backend")
        return []

    monkeypatch.setattr(jax, "devices", lambda: noisy(False))
    quiet.look_for_devices.cache_clear()
    quiet.look_for_devices()
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(jax, "devices", lambda: noisy(True))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    quiet.look_for_devices.cache_clear()
    with pytest.raises(FrontendError, match=r"no backend.*JAX_PLATFORMS=cuda"):
        quiet.look_for_devices()
    assert "no accelerator type" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["-c", "import toast_lab"], ["-m", "toast_lab.cli", "--help"]])
def test_starting_loads_neither_jax_nor_numba(command: list[str]) -> None:
    """The imports are checked, not the seconds, which depend on the machine."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert not loaded & {"jax", "jaxlib", "numba", "numpy", "scipy", "panel", "bokeh", "pandas"}
