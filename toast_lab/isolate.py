"""Run a function in a child process with a time limit, a cancel and progress events.

Compiles, MLIR passes on foreign input and user code can crash or hang a process, so they never run
in ours.  A crash, a hang, running out of memory and an exception each become a clear error in the
parent.

``run_in_child("package.module:function", ...)`` imports the function in the child, which may call
``report(event)`` to send progress.  ``Worker`` is such a child that stays and takes commands.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toast_lab import errors

_CHANNEL: Any = None  # in a child: the pipe to the parent
_DOING: list[str] = []  # in a child: the last text that was reported
_COMMANDS: Any = None  # in a child: the pipe from the parent


class Cancelled(errors.ToastError):
    """The work was cancelled by its owner."""


def in_child() -> bool:
    """Is this a child that ``run_in_child`` or ``Worker`` started?"""
    return _CHANNEL is not None


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(event: Any) -> None:
    """Send a progress event to the parent; does nothing outside a child.

    A text says what is done from now on.
    """
    if isinstance(event, str):
        _DOING[:] = [event]
    if _CHANNEL is not None:
        _send(_CHANNEL, ("event", event))


def has_reported_activity() -> bool:
    """Has this child reported a text, so that its parent expects more of them?"""
    return bool(_DOING)


@contextlib.contextmanager
def meanwhile() -> Iterator[None]:
    """After the block, reports again what was being done before it.

    Whatever is reported inside stands until then.
    """
    before = list(_DOING)
    yield
    for text in before:
        report(text)


def next_command() -> Any:
    """The next thing that the parent's ``Worker.command`` says.

    None: there is no parent any more.
    """
    return None if _COMMANDS is None else _receive(_COMMANDS)


def run_in_child(
    target: str,
    *args: Any,
    time_limit_s: float = 600.0,
    env: Mapping[str, str] | None = None,
    on_event: Callable[[Any], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    memory_limit_bytes: int | None = None,
    what: str = "",
    **kwargs: Any,
) -> Any:
    """Call ``target(*args, **kwargs)`` in a fresh process and give its result.

    Args:
        target: ``"package.module:function"``.
        *args: its arguments; they and the result are pickled.
        time_limit_s: the child is killed after this many seconds.
        env: environment variables to add.
        on_event: called with every ``report``ed event, in this thread.
        cancel: polled ten times a second; True kills the child.
        memory_limit_bytes: address space limit of the child.
        what: what is being done, for messages ("tracing my.module:make").
        **kwargs: keyword arguments of the target.

    Raises:
        ToastError: of the type the child raised, RunFailed if it crashed, hung or ran out of
            memory, Cancelled.
    """
    deadline = time.monotonic() + time_limit_s
    what = what or target
    with Worker(
        target, *args, env=env, memory_limit_bytes=memory_limit_bytes, what=what, **kwargs
    ) as worker:
        while True:
            for at, message in worker.arrived(0.1):
                if at > deadline:  # too late, even if a busy machine let us look only now
                    break
                if message[0] == "event" and on_event is not None:
                    on_event(message[1])
                elif message[0] == "result":
                    return message[1]
                elif message[0] in ("error", "end"):
                    raise worker.failure(message)
            if cancel is not None and cancel():
                raise Cancelled(f"{what}: cancelled")
            if time.monotonic() > deadline:
                raise errors.RunFailed(
                    f"{what}: no result within {time_limit_s:g} s, stopped. "
                    "Raise the time limit or make the work smaller."
                )


class Worker:
    """A child process that a target runs in, and that may be told things while it does.

    The target reads commands with ``next_command`` and answers with ``report``; it ends with its
    result, or when it is stopped.  ``run_in_child`` is the case without commands.  A context:
    leaving it kills what still runs.
    """

    def __init__(
        self,
        target: str,
        *args: Any,
        env: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        what: str = "",
        **kwargs: Any,
    ) -> None:
        self.what = what or target
        read_fd, write_fd = os.pipe()
        command_fd, self._command_fd = os.pipe()
        self._log = tempfile.TemporaryFile()
        with tempfile.TemporaryFile() as request:
            pickle.dump((target, args, kwargs, memory_limit_bytes, list(sys.path)), request)
            request.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "toast_lab.isolate", str(write_fd), str(command_fd)],
                stdin=request,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(write_fd, command_fd),
                env=child_environment(env),
                start_new_session=True,
            )
        os.close(write_fd)
        os.close(command_fd)
        self._messages: list[tuple[float, tuple[Any, ...]]] = []  # with the time of arrival
        self._seen = 0
        self._arrived = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(read_fd,), daemon=True)
        self._listener.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _listen(self, read_fd: int) -> None:
        with os.fdopen(read_fd, "rb") as pipe:
            while True:
                message = _receive(pipe)
                if message is None:
                    break
                self._messages.append((time.monotonic(), message))
                self._arrived.set()
        self._messages.append((time.monotonic(), ("end",)))
        self._arrived.set()

    def arrived(self, wait_s: float) -> list[tuple[float, tuple[Any, ...]]]:
        """New messages with the time of their arrival; waits up to ``wait_s`` for the first one."""
        if self._seen == len(self._messages):
            self._arrived.wait(wait_s)
        self._arrived.clear()
        new = self._messages[self._seen :]
        self._seen += len(new)
        return new

    def command(self, command: Any) -> None:
        """Tell the child something; nothing happens if it is gone, which ``arrived`` says."""
        data = _packed(command)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._command_fd, data) :]

    def failure(self, message: tuple[Any, ...]) -> Exception:
        """The error that an "error" or "end" message means."""
        if message[0] == "error":
            return _rebuild(message, self.what)
        # Its pipe is closed, and it hangs all the same
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.stop_process()
        return errors.RunFailed(f"{self.what}: {_death(self.process.returncode)}{_tail(self._log)}")

    def stop_process(self) -> None:
        """Kill the child and its children; what it has said can still be read."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Kill the child and its children, if it still runs."""
        self.stop_process()
        self._listener.join(1)
        self._log.close()
        if self._command_fd >= 0:
            os.close(self._command_fd)
            self._command_fd = -1


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which a child finds this package.

    It does even where only the parent's ``sys.path`` leads to it.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), home)))
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


def _rebuild(message: tuple[Any, ...], activity: str) -> Exception:
    _, name, text, is_ours, trace = message
    if name == "Cancelled":
        return Cancelled(text)
    if is_ours and hasattr(errors, name):
        return getattr(errors, name)(text)
    if name == "MemoryError" or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return errors.RunFailed(f"{activity}: out of memory: {text[:500]}")
    failure = errors.RunFailed(f"{activity}: {name}: {text[:1500]}")
    failure.child_traceback = trace  # type: ignore[attr-defined]
    return failure


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return (
                "its process was killed (SIGKILL), most likely because the machine ran out of "
                "memory"
            )
        return f"its process crashed ({name})"
    return f"its process ended early with exit status {code}"


def _tail(log: Any) -> str:
    log.seek(0, os.SEEK_END)
    size = log.tell()
    log.seek(max(0, size - 4000))
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return ". Last output: " + " | ".join(lines[-4:])[:800] if lines else ""


def _packed(message: Any) -> bytes:
    data = pickle.dumps(message)
    return struct.pack("<Q", len(data)) + data


def _send(pipe: Any, message: tuple[Any, ...]) -> None:
    pipe.write(_packed(message))
    pipe.flush()


def _receive(pipe: Any) -> Any:
    """The next message, None at the end of the pipe."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    data = pipe.read(size)
    return pickle.loads(data) if len(data) == size else None


def end_with(parent: int) -> None:
    """In a child: end when the parent is gone, however it ended.

    Nobody would be left to stop the child.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main() -> None:
    global _CHANNEL, _COMMANDS
    # Under -m this file is a module of its own (__main__); report() must find the channel in the
    # imported one.
    own = importlib.import_module("toast_lab.isolate")
    own.__dict__["_CHANNEL"] = _CHANNEL = os.fdopen(int(sys.argv[1]), "wb")
    own.__dict__["_COMMANDS"] = _COMMANDS = os.fdopen(int(sys.argv[2]), "rb")
    target, args, kwargs, memory_limit, path = pickle.load(sys.stdin.buffer)
    sys.path[:] = path + [folder for folder in sys.path if folder not in path]
    if memory_limit:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    end_with(os.getppid())
    module, _, function = target.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(*args, **kwargs)
        _send(_CHANNEL, ("result", result))
    except BaseException as error:
        ours = isinstance(error, errors.ToastError)
        text = str(error) or type(error).__name__
        _send(_CHANNEL, ("error", type(error).__name__, text, ours, traceback.format_exc()))
        sys.exit(1)
    os._exit(0)  # the result is out; XLA's threads need not be waited for


if __name__ == "__main__":
    _main()
