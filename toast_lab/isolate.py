"""Runs a function in a child process with a time limit, cancellation and progress events.

Compiles, MLIR passes on foreign input and user code can crash or hang a process, so they never run
in ours. A crash, a hang, running out of memory and an exception each become a clear error in the
parent.

``run_in_child("package.module:function", ...)`` imports the function in the child, which may call
``report(event)`` to send progress. ``ChildWorker`` is a child that also takes commands.

If possible, a child is forked off a process that has already imported JAX (``fork_server``).

A child is always stopped in the same way. ``ChildWorker.ask_to_end`` asks it to return the result
that it has so far; the child polls ``end_is_asked()``. If it has not ended within its parent's
patience, it is killed. ``ChildWorker.stop`` kills it at once. Commands and the request to end
arrive through one pipe, so that a child also notices at once when its parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, BinaryIO

from toast_lab import errors, fork_server

_CHANNEL: Connection | None = None  # in a child: the pipe to the parent
_SENDING = threading.Lock()  # in a child: held while a thread sends
_ACTIVITY: list[str] = []  # in a child: the last text that it reported
_COMMANDS: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # in a child: commands not yet taken
_END_ASKED = threading.Event()  # in a child: never cleared once it is set
_END = b""  # sent instead of a command to ask for the end; also queued when the parent is gone


#: A message from a child: its kind, then its content.
Message = tuple[Any, ...]
#: Polled while work goes on; True ends the work.
Cancel = Callable[[], bool]
#: Called with each event that a child reports.
Listener = Callable[[Any], None]


#: Environment variables of a child that only traces or searches.
WITHOUT_ACCELERATOR = {"JAX_PLATFORMS": "cpu"}
#: The command that runs ``_main``, as a child or as a fork server.
_PYTHON = (sys.executable, "-m", "toast_lab.isolate")


class Cancelled(errors.ToastError):
    """The work was cancelled by its owner."""


def in_child() -> bool:
    """Is this process a child that ``run_in_child`` or ``ChildWorker`` started?"""
    return _CHANNEL is not None


def n_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(event: Any) -> None:
    """Send a progress event to the parent; does nothing outside a child.

    A text names the activity that begins now.
    """
    if isinstance(event, str):
        _ACTIVITY[:] = [event]
    if _CHANNEL is not None:
        _send("event", event)


def has_reported_activity() -> bool:
    """Has this child reported a text, so that its parent expects texts?"""
    return bool(_ACTIVITY)


@contextlib.contextmanager
def meanwhile() -> Iterator[None]:
    """After the block, report the activity from before it again.

    Until then, the activity is the one reported last inside the block.
    """
    activities = list(_ACTIVITY)
    yield
    for activity in activities:
        report(activity)


def next_command() -> Any:
    """Wait for the next command of the parent; None once the parent is gone."""
    pickled = _COMMANDS.get() if in_child() else _END
    return None if pickled == _END else pickle.loads(pickled)


def new_commands() -> list[Any]:
    """Commands that have arrived since the last call; does not wait."""
    pickled_commands = []
    with contextlib.suppress(queue.Empty):
        while True:
            pickled_commands.append(_COMMANDS.get_nowait())
    return [pickle.loads(pickled) for pickled in pickled_commands if pickled != _END]


def end_is_asked() -> bool:
    """Should this child end soon and return what it has? Also True if its parent is gone."""
    return _END_ASKED.is_set()


def run_in_child(
    target: str,
    *args: Any,
    time_limit_s: float = 600.0,
    env: Mapping[str, str] = WITHOUT_ACCELERATOR,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
    patience_s: float = 0.0,
    memory_limit_bytes: int | None = None,
    activity: str = "",
    **kwargs: Any,
) -> Any:
    """Call ``target(*args, **kwargs)`` in a new process and give its result.

    Args:
        target: ``"package.module:function"``.
        *args: its arguments; they and the result are pickled.
        time_limit_s: the child is killed after this many seconds.
        env: additional environment variables. By default the child sees no accelerator, so that
            it can be forked, see ``fork_server``, and takes no memory of one.
        on_event: called with every event that the child reports, in this thread.
        cancel: polled ten times a second; True ends the child.
        patience_s: time that the child has after ``cancel`` to return its result before it is
            killed.
        memory_limit_bytes: address space limit of the child.
        activity: name of the work, for messages ("tracing my.module:make").
        **kwargs: keyword arguments of the target.

    Raises:
        ToastError: an error of the type that the child raised; RunFailed if it crashed or ran out
            of memory; RunInterrupted if it was killed or took too long; Cancelled if ``cancel``
            ended it.
    """
    with ChildWorker(
        target, *args, env=env, memory_limit_bytes=memory_limit_bytes, activity=activity, **kwargs
    ) as worker:
        return worker.result(time_limit_s, on_event=on_event, cancel=cancel, patience_s=patience_s)


def warm_up(target: str, env: Mapping[str, str] = WITHOUT_ACCELERATOR) -> None:
    """Make the first child that runs ``target``, of this package, start as fast as later ones.

    The imports and kernels that its children need are loaded in the background. Does nothing if
    children are not forked.
    """
    environment = child_environment(env)
    if fork_server.serves(environment):
        fork_server.warm_up(_PYTHON, environment, target.partition(":")[0])


class ChildWorker:
    """A child process that runs a target and takes commands while it does.

    The target reads commands with ``next_command`` and answers with ``report``. It ends with its
    result, or when it is stopped. ``run_in_child`` is the case without commands. A worker is a
    context manager; leaving the context kills the child if it still runs.
    """

    def __init__(
        self,
        target: str,
        *args: Any,
        env: Mapping[str, str] = WITHOUT_ACCELERATOR,
        memory_limit_bytes: int | None = None,
        activity: str = "",
        commands: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        """Start the child.

        Args:
            target: ``"package.module:function"``.
            *args: its arguments.
            env: additional environment variables, as for ``run_in_child``.
            memory_limit_bytes: address space limit of the child.
            activity: name of the work, for messages.
            commands: commands that it finds when it starts.
            **kwargs: keyword arguments of the target.
        """
        self.activity = activity or target
        messages, channel = Pipe(duplex=False)
        commands_to_child, self._commands = Pipe(duplex=False)
        child_fds = (channel.fileno(), commands_to_child.fileno())
        self._log = tempfile.TemporaryFile()
        environment = child_environment(env)
        with tempfile.TemporaryFile() as request:
            module = target.partition(":")[0]
            pickle.dump(tuple(fork_server.Request(module, environment, _folder())), request)
            call = (target, args, kwargs, memory_limit_bytes, list(sys.path))
            pickle.dump((*call, [pickle.dumps(command) for command in commands]), request)
            request.seek(0)
            forked = None
            if fork_server.serves(environment):
                descriptors = (request.fileno(), self._log.fileno(), *child_fds)
                forked = fork_server.fork(_PYTHON, environment, descriptors)
            self.process: fork_server.ForkedProcess | subprocess.Popen[bytes] = (
                forked
                or subprocess.Popen(
                    [*_PYTHON, *map(str, child_fds)],
                    stdin=request,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=child_fds,
                    env=environment,
                    start_new_session=True,
                )
            )
        channel.close()
        commands_to_child.close()
        self._messages: list[tuple[float, Message]] = []  # with the time of arrival
        self._seen = 0
        self._arrived = threading.Event()
        self._sending = threading.Lock()
        self._end_asked = self._patience_lost = False
        self._listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()

    def __enter__(self) -> ChildWorker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _listen(self, messages: Connection) -> None:
        for message in _received(messages):
            self._messages.append((time.monotonic(), pickle.loads(message)))
            self._arrived.set()
        self._messages.append((time.monotonic(), ("end",)))
        self._arrived.set()

    def arrived(self, wait_s: float) -> list[tuple[float, Message]]:
        """New messages with their times of arrival; waits up to ``wait_s`` for the first one."""
        if self._seen == len(self._messages):
            self._arrived.wait(wait_s)
        self._arrived.clear()
        messages = self._messages[self._seen :]
        self._seen += len(messages)
        return messages

    @property
    def is_over(self) -> bool:
        """Has the target given its result, or failed? In that case ``result`` does not wait."""
        return any(
            message[0] in ("result", "error", "end") for _, message in self._messages[self._seen :]
        )

    def result(
        self,
        time_limit_s: float = 600.0,
        *,
        on_event: Listener | None = None,
        cancel: Cancel | None = None,
        patience_s: float = 0.0,
    ) -> Any:
        """Wait for the target's result. Arguments and errors are those of ``run_in_child``."""
        deadline = time.monotonic() + time_limit_s
        while True:
            for arrived_at, message in self.arrived(0.1):
                # Judged by its arrival, since a busy machine may run this loop late
                if arrived_at > deadline:
                    break
                if message[0] == "event" and on_event is not None:
                    on_event(message[1])
                elif message[0] == "result":
                    return message[1]
                elif message[0] in ("error", "end"):
                    raise self.failure(message)
            if cancel is not None and not self._end_asked and cancel():
                if not patience_s:
                    raise Cancelled(f"{self.activity}: cancelled")
                self.ask_to_end(patience_s)
            if time.monotonic() > deadline:
                raise errors.RunInterrupted(
                    f"{self.activity}: no result within {time_limit_s:g} s, stopped. Raise the "
                    "time limit or make the work smaller."
                )

    def command(self, command: Any) -> None:
        """Send a command to the child; does nothing if it is gone, which ``arrived`` reports."""
        self._tell(pickle.dumps(command))

    def _tell(self, message: bytes) -> None:
        with self._sending, contextlib.suppress(BrokenPipeError):
            if not self._commands.closed:
                self._commands.send_bytes(message)

    def ask_to_end(self, patience_s: float | None = None) -> None:
        """Ask the child to end and return the result that it has so far.

        Args:
            patience_s: the child is killed after this time, and ``result`` raises ``Cancelled``.
                None: there is no limit.
        """
        if self._end_asked:
            return
        self._end_asked = True
        self._tell(_END)
        if patience_s is not None:
            timer = threading.Timer(patience_s, self._lose_patience)
            timer.daemon = True
            timer.start()

    def _lose_patience(self) -> None:
        if self.process.poll() is None:
            self._patience_lost = True
            self.stop_process()

    def failure(self, message: Message) -> Exception:
        """The error that an "error" or "end" message stands for."""
        if message[0] == "error":
            return _error_of(message, self.activity)
        if self._patience_lost:
            return Cancelled(f"{self.activity}: cancelled")
        # The child has closed its pipe, but may hang nevertheless.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.stop_process()
        code = self.process.returncode
        is_killed = code is not None and -code in (signal.SIGKILL, signal.SIGTERM)
        error = errors.RunInterrupted if is_killed else errors.RunFailed
        return error(f"{self.activity}: {_death_text(code)}{_last_output(self._log)}")

    def stop_process(self) -> None:
        """Kill the child and its children; messages that it sent can still be read."""
        if self.process.poll() is None:
            pid = self.process.pid
            # A child that was never started has pid 0, which would mean our own process group.
            if pid > 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Kill the child and its children, if it still runs."""
        self.stop_process()
        self._listener.join(1)
        self._log.close()
        with self._sending:
            self._commands.close()


def child_environment(extra: Mapping[str, str] = WITHOUT_ACCELERATOR) -> dict[str, str]:
    """Environment variables for a child, with which it can import this package.

    That includes the case where only the parent's ``sys.path`` contains the package.
    """
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Added only once, so that the children of a child have the same environment.
    if package_parent not in folders:
        folders.append(package_parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **extra}


def _folder() -> str:
    """The working folder; empty if it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _error_of(message: Message, activity: str) -> Exception:
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


def _death_text(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return (
                "its process was killed (SIGKILL), most likely because the machine ran out of "
                "memory"
            )
        return f"its process crashed ({name})"
    return f"its process ended early with exit status {code}"


def _last_output(log: Any) -> str:
    log.seek(0, os.SEEK_END)
    size = log.tell()
    log.seek(max(0, size - 4000))
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return ". Last output: " + " | ".join(lines[-4:])[:800] if lines else ""


def _send(*message: Any) -> None:
    """In a child: send a message to the parent."""
    assert _CHANNEL is not None
    with _SENDING:
        _CHANNEL.send(message)


def _received(pipe: Connection) -> Iterator[bytes]:
    """The messages in a pipe, until its other end is closed."""
    with pipe, contextlib.suppress(EOFError, OSError):
        while True:
            yield pipe.recv_bytes()


def end_with(parent: int) -> None:
    """In a child: exit when the parent is gone, for whatever reason.

    No other process is left to stop it.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _listen_to_parent(commands: Connection) -> None:
    """In a child: receive messages of the parent until it is gone."""
    for command in _received(commands):
        if command == _END:
            _END_ASKED.set()
        else:
            _COMMANDS.put(command)
    _END_ASKED.set()
    _COMMANDS.put(_END)


def _run(request: BinaryIO, channel_fd: int, command_fd: int) -> int:
    """In a child: run the target that the rest of its request names. Gives the exit status."""
    global _CHANNEL
    _CHANNEL = Connection(channel_fd, readable=False)
    commands = Connection(command_fd, writable=False)
    target, args, kwargs, memory_limit, parent_path, initial_commands = pickle.load(request)
    for command in initial_commands:
        _COMMANDS.put(command)
    threading.Thread(target=_listen_to_parent, args=(commands,), daemon=True).start()
    sys.path[:] = parent_path + [folder for folder in sys.path if folder not in parent_path]
    if memory_limit:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    end_with(os.getppid())
    module, _, function = target.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(*args, **kwargs)
        _send("result", result)
        return 0
    except BaseException as error:
        is_ours = isinstance(error, errors.ToastError)
        message = str(error) or type(error).__name__
        _send("error", type(error).__name__, message, is_ours, traceback.format_exc())
        return 1


def _main() -> None:
    # With -m this file runs as the module __main__, but targets use the imported module.
    imported_module = importlib.import_module("toast_lab.isolate")
    if sys.argv[1] == "--serve":
        fork_server.serve(int(sys.argv[2]), imported_module._run)
        return
    request = sys.stdin.buffer
    pickle.load(request)  # environment and folder are set already
    # The result has been sent, so neither XLA's threads nor the listener need to be awaited.
    os._exit(imported_module._run(request, *map(int, sys.argv[1:])))


if __name__ == "__main__":
    _main()
