"""Child processes that work, fail, crash, hang or use up all memory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests import processes
from toast_lab import fork_server, isolate
from toast_lab.errors import InvalidPlan, RunFailed, RunInterrupted

MODULE = """
import ctypes, os, signal, sys, time
from toast_lab import isolate
from toast_lab.errors import InvalidPlan

def add(a, b=0):
    return a + b

def environment(key):
    return os.environ.get(key), os.getpid()

def count(n):
    for i in range(n):
        isolate.report({"at": i})
    print("noise on stdout")
    return n

def ours():
    raise InvalidPlan("axis twice")

def theirs():
    raise KeyError("lost")

def abort():
    print("about to fall", file=sys.stderr, flush=True)
    os.abort()

def segfault():
    ctypes.string_at(0)

def leave():
    os._exit(7)

def hang():
    time.sleep(600)

def hang_in_c():
    # pause() holds no Python loop that could notice a polite request to stop
    signal.pause()

def grandchild(path):
    import subprocess
    sleeper = subprocess.Popen(["sleep", "600"])
    open(path, "w").write(str(sleeper.pid))
    sleeper.wait()

def eat(n):
    return len(bytearray(n))

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def large(n):
    return b"x" * n

def unpicklable():
    return lambda: None
"""


@pytest.fixture(params=["forked", "started"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with children forked off a server, and with children started directly."""
    forked = request.param == "forked"
    if forked and not sys.platform.startswith("linux"):
        pytest.skip("children are forked on Linux only")
    if forked:
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    else:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert fork_server.serves(os.environ) is forked


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "child_work.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "child_work"


def test_arguments_result_and_environment(work: str) -> None:
    assert isolate.run_in_child(f"{work}:add", 2, b=3) == 5
    value, pid = isolate.run_in_child(
        f"{work}:environment", "TOAST_TEST", env={"TOAST_TEST": "yes"}
    )
    assert value == "yes"
    assert pid != os.getpid()
    assert "TOAST_TEST" not in os.environ


def test_a_child_sees_no_accelerator_unless_it_is_asked_to(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What may be forked starts in a tenth of a second instead of three
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert fork_server.serves(isolate.child_environment())
    assert isolate.run_in_child(f"{work}:environment", "JAX_PLATFORMS")[0] == "cpu"
    assert isolate.run_in_child(f"{work}:environment", "JAX_PLATFORMS", env={})[0] is None


def test_results_larger_than_a_pipe(work: str) -> None:
    assert len(isolate.run_in_child(f"{work}:large", 5_000_000)) == 5_000_000


def test_events_arrive_in_order_before_the_result(work: str) -> None:
    events: list[object] = []
    assert isolate.run_in_child(f"{work}:count", 50, on_event=events.append) == 50
    assert events == [{"at": i} for i in range(50)]


def test_report_outside_a_child_does_nothing() -> None:
    isolate.report("nobody listens")


def test_our_errors_come_back_as_they_are(work: str) -> None:
    with pytest.raises(InvalidPlan, match=r"^axis twice$"):
        isolate.run_in_child(f"{work}:ours")


def test_other_errors_come_back_with_their_traceback(work: str) -> None:
    with pytest.raises(RunFailed, match="sums: KeyError: 'lost'") as caught:
        isolate.run_in_child(f"{work}:theirs", activity="sums")
    assert "child_work.py" in caught.value.child_traceback  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("abort", r"its process crashed \(SIGABRT\).*Last output: about to fall"),
        ("segfault", r"its process crashed \(SIGSEGV\)"),
        (
            "killed",
            r"its process was killed \(SIGKILL\), "
            r"most likely because the machine ran out of memory",
        ),
        ("leave", r"its process ended early with exit status 7"),
    ],
)
def test_a_crash_is_a_sentence(work: str, function: str, sentence: str) -> None:
    with pytest.raises(RunFailed, match=rf"adding up: {sentence}") as caught:
        isolate.run_in_child(f"{work}:{function}", activity="adding up")
    assert isinstance(caught.value, RunInterrupted) is (function == "killed")


@pytest.mark.parametrize("function", ["hang", "hang_in_c"])
def test_a_child_that_hangs_is_stopped_in_time(work: str, function: str) -> None:
    started = time.monotonic()
    with pytest.raises(RunInterrupted, match=r"no result within 1\.5 s, stopped"):
        isolate.run_in_child(f"{work}:{function}", time_limit_s=1.5)
    assert time.monotonic() - started < 10


def test_the_childs_own_children_are_stopped_too(work: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(RunFailed, match="no result within"):
        isolate.run_in_child(f"{work}:grandchild", str(note), time_limit_s=2)
    pid = int(note.read_text())
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the grandchild lives on")


def test_a_cancel_stops_the_child(work: str) -> None:
    started = time.monotonic()
    with pytest.raises(isolate.Cancelled, match="cancelled"):
        isolate.run_in_child(f"{work}:hang", cancel=lambda: time.monotonic() - started > 0.5)
    assert time.monotonic() - started < 10


def test_memory_beyond_the_limit_is_a_sentence(work: str) -> None:
    assert isolate.run_in_child(f"{work}:eat", 2**20, memory_limit_bytes=2**32) == 2**20
    with pytest.raises(RunFailed, match="eating: out of memory"):
        isolate.run_in_child(f"{work}:eat", 2**33, memory_limit_bytes=2**32, activity="eating")


def test_a_result_that_cannot_travel_is_an_error(work: str) -> None:
    with pytest.raises(RunFailed, match="pickle"):
        isolate.run_in_child(f"{work}:unpicklable")


def test_functions_that_do_not_exist(work: str) -> None:
    with pytest.raises(RunFailed, match="ModuleNotFoundError"):
        isolate.run_in_child("no_such_module_here:f")
    with pytest.raises(RunFailed, match="AttributeError"):
        isolate.run_in_child(f"{work}:nothing")


def test_no_process_is_left_behind(work: str) -> None:
    # Children of this process may still be compiling kernels for another test
    before = processes.workers(os.getpid())
    with pytest.raises(RunFailed):
        isolate.run_in_child(f"{work}:hang", time_limit_s=1)
    assert processes.workers(os.getpid()) <= before


def test_the_child_uses_this_python(work: str) -> None:
    assert isolate.run_in_child("sys:getswitchinterval") == sys.getswitchinterval()


ANSWERING = """
import time
from toast_lab import isolate

def until_asked():
    isolate.report("at work")
    while not isolate.end_is_asked():
        time.sleep(0.01)
    return "handed over"

def deaf():
    isolate.report("at work")
    time.sleep(600)

def obey():
    seen = []
    while (command := isolate.next_command()) != "enough":
        seen.append(command)
    isolate.report(seen)
    while not (later := isolate.new_commands()):
        time.sleep(0.01)
    return later
"""


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "child_answers.py").write_text(ANSWERING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "child_answers"


def test_a_child_that_is_asked_to_end_hands_over_what_it_has(answering: str) -> None:
    begun: list[object] = []
    assert (
        isolate.run_in_child(
            f"{answering}:until_asked",
            on_event=begun.append,
            cancel=lambda: bool(begun),
            patience_s=60.0,
        )
        == "handed over"
    )


def test_a_child_that_does_not_answer_is_killed(answering: str) -> None:
    begun: list[object] = []
    with pytest.raises(isolate.Cancelled, match="listening: cancelled"):
        isolate.run_in_child(
            f"{answering}:deaf",
            on_event=begun.append,
            cancel=lambda: bool(begun),
            patience_s=0.3,
            activity="listening",
        )


def test_commands_arrive_in_order_beside_the_request_to_end(answering: str) -> None:
    events: list[object] = []
    with isolate.ChildWorker(f"{answering}:obey") as worker:
        for command in ("one", {"two": 2}, "enough"):
            worker.command(command)
        worker.ask_to_end()
        worker.command("x" * 1_000_000)
        assert worker.result(60.0, on_event=events.append) == ["x" * 1_000_000]
        worker.command("nobody listens any more")
    assert events == [["one", {"two": 2}]]
    worker.command("nor after the end")
