"""Child processes forked off a server that has already imported and loaded what they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes
from toast_lab import fork_server, isolate
from toast_lab.errors import RunFailed
from toast_lab.jobs.warm import warm_up
from toast_lab.prepare import FIRST_SEARCH_NEEDS, prepare

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux forks")

MODULE = """
import os, random, sys, time
from toast_lab import isolate

ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}
VALUE = []

def imported(*names):
    return [name in sys.modules for name in names]

def ready_kernels():
    from toast_lab import prepare
    return prepare._ready

def parent():
    return os.getppid()

def parents():
    return os.getppid(), isolate.run_in_child(__name__ + ":parent", env=ENVIRONMENT)

def devices():
    import jax
    return jax.device_count()

def remember():
    VALUE.append(1)
    return len(VALUE)

def numbers():
    import numpy
    return random.random(), numpy.random.random()

def surroundings():
    return os.getcwd(), os.environ.get("TOAST_LAB_TEST_FIRST"), os.getpgid(0) == os.getpid()

def wait(path):
    isolate.report(os.getpid())
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()

def nest(folder):
    open(os.path.join(folder, "outer"), "w").write(str(os.getpid()))
    isolate.run_in_child(__name__ + ":inner", folder, env=ENVIRONMENT)

def inner(folder):
    open(os.path.join(folder, "inner"), "w").write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def forked_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with functions for children; the test's servers end with the test."""
    (tmp_path / "forked_work.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    others = list(fork_server._SERVERS)
    fork_server._SERVERS.clear()
    yield "forked_work"
    for server in fork_server._SERVERS:
        server.end()
    fork_server._SERVERS[:] = others


def server_pids() -> set[int]:
    """The process numbers of this test's living servers."""
    living = {pid for pid, _ in processes.descendants(os.getpid())}
    return {server.pid for server in fork_server._SERVERS} & living


def is_gone(pid: int) -> bool:
    """Does a process end within a few seconds?"""
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_child_knows_nothing_of_what_another_one_did(forked_work: str) -> None:
    assert isolate.run_in_child(f"{forked_work}:imported", "pytest") == [False]
    # Each child imports a user's module again
    assert isolate.run_in_child(f"{forked_work}:remember") == 1
    assert isolate.run_in_child(f"{forked_work}:remember") == 1
    assert len(fork_server._SERVERS) == 1


def test_what_a_target_of_ours_needs_is_there_for_those_that_follow(forked_work: str) -> None:
    module = "toast_lab.runtime.child"
    target = f"{forked_work}:imported"
    assert isolate.run_in_child(target, module, "jax") == [False, False]
    with pytest.raises(RunFailed, match="AttributeError"):
        isolate.run_in_child(f"{module}:no_such_function")
    assert isolate.run_in_child(target, module, "jax") == [True, True]


def test_what_the_first_child_needs_is_there_once_it_was_warmed_up(forked_work: str) -> None:
    modules = ("toast_lab.jobs.load_job", "toast_lab.jobs.search_job", "jax")
    warm_up()
    assert isolate.run_in_child(f"{forked_work}:imported", *modules) == [True, True, True]


def test_kernels_are_loaded_for_all_children_of_a_search(forked_work: str) -> None:
    prepare(*FIRST_SEARCH_NEEDS)
    assert isolate.run_in_child(f"{forked_work}:ready_kernels") == set()
    with pytest.raises(RunFailed, match="AttributeError"):
        isolate.run_in_child("toast_lab.jobs.search_job:no_such_function")
    assert isolate.run_in_child(f"{forked_work}:ready_kernels") == set(FIRST_SEARCH_NEEDS)


def test_random_numbers_are_each_childs_own(forked_work: str) -> None:
    isolate.warm_up("toast_lab.jobs.search_job:run_search")
    assert isolate.run_in_child(f"{forked_work}:imported", "numpy.random", "random") == [True, True]
    first, other = (isolate.run_in_child(f"{forked_work}:numbers") for _ in range(2))
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_no_socket_is_open_at_exit() -> None:
    script = "from toast_lab import isolate; isolate.run_in_child('math:sqrt', 4.0)"
    child = [sys.executable, "-W", "error", "-X", "dev", "-c", script]
    run = subprocess.run(child, capture_output=True, text=True, timeout=120)
    assert (run.returncode, "ResourceWarning" in run.stderr) == (0, False), run.stderr


def test_flags_of_xla_need_no_server_of_their_own(forked_work: str) -> None:
    for count in (3, 2):
        flags = f"--xla_force_host_platform_device_count={count}"
        assert isolate.run_in_child(f"{forked_work}:devices", env={"XLA_FLAGS": flags}) == count
    assert len(fork_server._SERVERS) == 1


def test_a_child_has_the_folder_and_variables_of_now(
    forked_work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate.run_in_child(f"{forked_work}:parent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "50")
    folder, variable, leads = isolate.run_in_child(f"{forked_work}:surroundings")
    assert (Path(folder), variable, leads) == (tmp_path, None, True)
    assert len(fork_server._SERVERS) == 1
    # An import may have read this variable, so another server is needed
    monkeypatch.setenv("TOAST_LAB_TEST_FIRST", "yes")
    assert isolate.run_in_child(f"{forked_work}:surroundings")[1] == "yes"
    assert len(fork_server._SERVERS) == 2


def test_servers_are_few_and_busy_ones_are_left_alone(
    forked_work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "go on"
    workers = []
    for number in range(fork_server._MOST_SERVERS + 1):
        worker = isolate.ChildWorker(
            f"{forked_work}:wait", str(file), env={"TOAST_LAB_TEST_FIRST": str(number)}
        )
        workers.append(worker)
        assert worker.arrived(30.0)  # the function has begun
    assert len(server_pids()) == fork_server._MOST_SERVERS
    file.touch()
    pids = [worker.result(30.0) for worker in workers]
    assert len(set(pids)) == len(workers)
    for worker in workers:
        worker.stop()
    kept = set(server_pids())
    variable = {"TOAST_LAB_TEST_FIRST": "one more"}
    isolate.run_in_child(f"{forked_work}:parent", env=variable)  # replaces an idle server
    assert len(fork_server._SERVERS) == fork_server._MOST_SERVERS
    ended = [pid for pid in kept if pid not in server_pids() or is_gone(pid)]
    assert len(ended) == 1


def test_children_of_children_are_forked_off_the_same_server(forked_work: str) -> None:
    outer, inner = isolate.run_in_child(f"{forked_work}:parents")
    assert outer == inner
    assert {outer} == server_pids()


def test_a_killed_child_takes_its_children_along(forked_work: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no result within"):
        isolate.run_in_child(f"{forked_work}:nest", str(tmp_path), time_limit_s=3.0)
    for name in ("outer", "inner"):
        assert is_gone(int((tmp_path / name).read_text())), name


def test_a_child_may_be_stopped_as_soon_as_it_is_there(forked_work: str, tmp_path: Path) -> None:
    isolate.run_in_child(f"{forked_work}:parent")
    file = tmp_path / "never"
    gone = []

    def stop_many() -> None:
        for _ in range(100):
            with isolate.ChildWorker(f"{forked_work}:wait", str(file)) as worker:
                pid = worker.process.pid
            gone.append(pid)

    thread = threading.Thread(target=stop_many, daemon=True)
    thread.start()
    thread.join(60.0)
    assert len(gone) == 100, "one was not stopped"
    assert all(is_gone(pid) for pid in gone)


def test_a_child_that_never_came_to_be_is_stopped_and_nobody_else(
    forked_work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server dies before forking: there is no pid, and 0 would mean the tests' own group."""
    server = isolate.run_in_child(f"{forked_work}:parent")
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    os.kill(server, signal.SIGSTOP)
    try:
        worker = isolate.ChildWorker(f"{forked_work}:wait", str(tmp_path / "never"))
        stopping = threading.Thread(target=worker.stop, daemon=True)
        stopping.start()
        time.sleep(0.3)
        assert stopping.is_alive(), "it waits for a number"
    finally:
        os.kill(server, signal.SIGKILL)
    stopping.join(30.0)
    assert not stopping.is_alive()
    assert 0 not in killed


def test_whoever_asked_takes_all_of_them_along(forked_work: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from toast_lab import isolate
isolate.run_in_child("{forked_work}:nest", {str(tmp_path)!r})
"""
    owner = subprocess.Popen([sys.executable, "-c", program], env=isolate.child_environment())
    try:
        for _ in range(600):
            if (tmp_path / "inner").exists() and (tmp_path / "inner").read_text():
                break
            time.sleep(0.05)
        pids = [pid for pid, _ in processes.descendants(owner.pid)]
        assert len(pids) == 3  # the server and its two children
    finally:
        owner.kill()
        owner.wait()
    assert all(is_gone(pid) for pid in pids)


def test_a_server_that_is_killed_is_missed_by_nobody(forked_work: str, tmp_path: Path) -> None:
    """Its children end with it, and are reported as killed; the next child gets a new server."""
    file = tmp_path / "never"
    with isolate.ChildWorker(f"{forked_work}:wait", str(file), activity="waiting") as worker:
        ((_, (_, pid)),) = worker.arrived(30.0)
        (server,) = server_pids()
        os.kill(server, signal.SIGKILL)
        with pytest.raises(RunFailed, match=r"waiting: its process was killed \(SIGKILL\)"):
            worker.result(30.0)
    assert is_gone(pid)
    assert isolate.run_in_child(f"{forked_work}:parent") != server
