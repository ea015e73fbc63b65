"""Child processes that begin with what they need already imported and loaded.

To import JAX or to load kernels takes a child longer than most of what it is asked to do.  A *fork
server* is a process that has done this once and nothing else: it runs no threads, no backend of
JAX and no code of the user.  Asked for a child, it imports the module of the child's target, if it
is one of this package, lets it do what all its children need (``before_fork``), and forks.

Whoever was forked asks the same server for children of its own.  A child ends with the one who
asked for it, however that one ended, and all of them end with the server.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, TypeVar

#: Variables that are looked up when they are used.  All others may have been read by an import.
_READ_LATE = ("XLA_FLAGS", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST")
_MOST_SERVERS = 3
_FORK = b"fork"
_MOST_BYTES = 4096  # of what is asked for
_NUMBER = struct.Struct("<q")
AnswerT = TypeVar("AnswerT")


class Request(NamedTuple):
    """What a child is to be, in a file whose rest is for the child itself."""

    module: str  #: that the target is in
    environment: dict[str, str]
    folder: str  #: to work in; empty: that of the server


#: What a child does with its request, the pipe to its parent and that from it.  Gives its status.
Work = Callable[[BinaryIO, BinaryIO, BinaryIO], int]


def serves(environment: Mapping[str, str]) -> bool:
    """May a child with these variables be forked?

    An accelerator's library may start threads while it is imported, and other systems than Linux
    do not promise that a process with their own libraries can be forked.
    """
    return sys.platform == "linux" and environment.get("JAX_PLATFORMS") == "cpu"


def fork(
    python: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> ForkedProcess | None:
    """Fork a child off a server with this environment, which is started if there is none.

    Args:
        python: the command that starts a server once ``--serve N`` is added.
        environment: of the child.
        descriptors: of the request, the log, the pipe to the parent and the pipe from it.

    Returns:
        The child, or None if there are too many servers at work already.
    """
    return _ask(python, environment, lambda server: server.fork(descriptors))


def warm_up(python: Sequence[str], environment: Mapping[str, str], module: str) -> None:
    """Let a server make ready, beside other work, for children whose target is in this module."""
    _ask(python, environment, lambda server: server.make_ready(module))


def _ask(
    python: Sequence[str],
    environment: Mapping[str, str],
    question: Callable[[_Server], AnswerT],
) -> AnswerT | None:
    """None if there are too many servers at work."""
    with _STARTING:
        for _ in range(2):  # a server may have been killed since it was last asked
            server = _server(python, environment)
            if server is None:
                return None
            with contextlib.suppress(OSError):
                return question(server)
            _SERVERS.remove(server)
            server.end()
    return None


class ForkedProcess:
    """A process that was forked for us by another one; what we use of ``subprocess.Popen``."""

    def __init__(self, status_fd: int) -> None:
        self._status: BinaryIO | None = os.fdopen(status_fd, "rb", buffering=0)
        os.set_blocking(status_fd, False)
        self._told = b""  # its process number, then its return code
        self._reading = threading.Lock()
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Its process number; 0 if it never came to be."""
        while len(self._told) < _NUMBER.size and self.poll() is None:
            self._await(None)
        return int(_NUMBER.unpack_from(self._told)[0]) if self._told else 0

    def poll(self) -> int | None:
        """Its return code, None while it runs."""
        with self._reading:
            if self._status is not None:
                self._read(self._status)
        return self.returncode

    def _read(self, status: BinaryIO) -> None:
        # None: nothing has been said since
        while (data := status.read(2 * _NUMBER.size - len(self._told))) is not None:
            self._told += data
            if len(self._told) == 2 * _NUMBER.size:
                self.returncode = _NUMBER.unpack_from(self._told, _NUMBER.size)[0]
            elif not data:  # its server was killed, and it ends with it
                self.returncode = -signal.SIGKILL
            else:
                continue
            status.close()
            self._status = None
            return

    def _await(self, timeout_s: float | None) -> None:
        """Wait until there is something to read."""
        with contextlib.suppress(ValueError):  # closed by another thread, which has read it
            status = self._status
            if status is not None:
                poll = select.poll()
                poll.register(status.fileno(), select.POLLIN)
                # Short, since another thread may read what we wait for
                poll.poll(100 if timeout_s is None else max(0, min(100, int(timeout_s * 1000))))

    def wait(self, timeout: float | None = None) -> int:
        """Its return code, once it has ended.

        Raises:
            TimeoutExpired: it runs on after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._await(left_s)
        return code


class _Server:
    """A server as whoever asks it sees it."""

    def __init__(self, imported_with: dict[str, str], line: socket.socket, pid: int) -> None:
        self.imported_with = imported_with  # variables that its imports may have read
        self.pid = pid
        self.owner = os.getpid()  # a process that is forked off this one asks a server of its own
        self._line = line
        self._forked: list[ForkedProcess] = []

    @property
    def idle(self) -> bool:
        self._forked = [process for process in self._forked if process.poll() is None]
        return not self._forked

    def fork(self, descriptors: Sequence[int]) -> ForkedProcess:
        read_fd, write_fd = os.pipe()
        with _closing(write_fd):
            try:
                socket.send_fds(self._line, [_FORK], [*descriptors, write_fd])
            except OSError:
                os.close(read_fd)
                raise
        process = ForkedProcess(read_fd)
        self._forked = [other for other in self._forked if other.returncode is None] + [process]
        return process

    def make_ready(self, module: str) -> None:
        self._line.send(module.encode())

    def end(self) -> None:
        self._line.close()


_SERVERS: list[_Server] = []
_STARTING = threading.Lock()


def _server(python: Sequence[str], environment: Mapping[str, str]) -> _Server | None:
    """One that has this environment, started if need be.

    None: there are too many that are not idle.
    """
    wanted = _imported_with(environment)
    _SERVERS[:] = [server for server in _SERVERS if server.owner == os.getpid()]
    for server in _SERVERS:
        if server.imported_with == wanted:
            return server
    if len(_SERVERS) >= _MOST_SERVERS:
        idle = next((server for server in _SERVERS if server.idle), None)
        if idle is None:
            return None
        _SERVERS.remove(idle)
        idle.end()
    _SERVERS.append(_start(python, environment))
    return _SERVERS[-1]


def _imported_with(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in _READ_LATE}


def _start(python: Sequence[str], environment: Mapping[str, str]) -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [*python, "--serve", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        env=environment,
        start_new_session=True,
    )
    theirs.close()
    threading.Thread(target=process.wait, name="fork server", daemon=True).start()
    return _Server(_imported_with(environment), ours, process.pid)


def import_jax() -> None:
    """For modules whose children use JAX, as their ``before_fork``."""
    importlib.import_module("jax.numpy")


# -- in the server ---------------------------------------------------------------------------------


def serve(line_fd: int, work: Work) -> None:
    """Fork children for whoever is at the other end of a line, until it hangs up."""
    host = _Host(socket.socket(fileno=line_fd), work)
    try:
        host.run()
    finally:
        host.kill_all()


class _Child(NamedTuple):
    status_fd: int  # who asked for it reads here what becomes of it
    asked_by: socket.socket
    line: socket.socket  # on which it asks for children of its own


class _Host:
    """The server itself: lines to those who may ask, and the children that it has forked."""

    def __init__(self, first: socket.socket, work: Work) -> None:
        self._first, self._work = first, work
        self._children: dict[int, _Child] = {}
        self._ready = selectors.DefaultSelector()
        self._ready.register(first, selectors.EVENT_READ)
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        self._ready.register(self._wake[0], selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        while True:
            for key, _ in self._ready.select():
                line: Any = key.fileobj
                if line is self._wake[0]:
                    with contextlib.suppress(BlockingIOError):
                        while line.recv(1024):
                            pass
                    self._reap()
                elif line.fileno() >= 0 and not self._answer(line) and line is self._first:
                    return

    def kill_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)

    def _answer(self, line: socket.socket) -> bool:
        """Do what is asked on a line; False if nobody is there any more."""
        try:
            asked, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 5)
        except OSError:
            asked, descriptors = b"", []
        if asked == _FORK:
            self._fork(line, descriptors)
            return True
        if asked:
            _make_ready(asked.decode())
            return True
        self._hang_up(line)
        return False

    def _hang_up(self, line: socket.socket) -> None:
        """Nobody is left to want the children that were asked for on this line."""
        for pid, child in self._children.items():
            if child.asked_by is line:
                _kill_group(pid)
        if line.fileno() >= 0:
            self._ready.unregister(line)
            line.close()

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                child = self._children.pop(pid)
                _tell(child.status_fd, os.waitstatus_to_exitcode(status))
                os.close(child.status_fd)
                self._hang_up(child.line)

    def _fork(self, line: socket.socket, descriptors: list[int]) -> None:
        request_fd, log_fd, channel_fd, command_fd, status_fd = descriptors
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _closing(request_fd, log_fd, channel_fd, command_fd):
            request_file = os.fdopen(request_fd, "rb", closefd=False)
            request = Request(*pickle.load(request_file))
            if request.module.startswith("toast_lab."):
                _make_ready(request.module)
            gc.freeze()  # or the child's first collection would copy every page of ours
            with warnings.catch_warnings():
                # JAX warns of threads: it has none yet
                warnings.simplefilter("ignore")
                pid = os.fork()
            if pid == 0:
                ours.close()
                self._become(request, request_file, descriptors, theirs)
        theirs.close()
        _lead_group(pid)
        _tell(status_fd, pid)
        self._children[pid] = _Child(status_fd, line, ours)
        self._ready.register(ours, selectors.EVENT_READ)

    def _become(
        self,
        request: Request,
        request_file: BinaryIO,
        descriptors: Sequence[int],
        line: socket.socket,
    ) -> None:
        """In a child: leave what is the server's, and work."""
        status = 1
        try:
            _lead_group(0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Whoever waits for the end of a pipe waits for all who hold it
            for child in self._children.values():
                os.close(child.status_fd)
                child.line.close()
            for end in (self._first, *self._wake):
                end.close()
            self._ready.close()
            _, log_fd, channel_fd, command_fd, status_fd = descriptors
            os.close(status_fd)
            for stream in (1, 2):
                os.dup2(log_fd, stream)
            os.close(log_fd)
            os.environ.clear()
            os.environ.update(request.environment)
            with contextlib.suppress(OSError):
                os.chdir(request.folder)
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # not the same numbers in every child
            _SERVERS.append(_Server(_imported_with(request.environment), line, os.getppid()))
            channel, commands = os.fdopen(channel_fd, "wb"), os.fdopen(command_fd, "rb")
            status = self._work(request_file, channel, commands)
        finally:
            os._exit(status)


def _make_ready(module: str) -> None:
    """Import a module, and let it do what each of its children would do.

    A module that has something to do says so with a function ``before_fork``.
    """
    with contextlib.suppress(Exception):  # the child tries it again, and tells
        getattr(importlib.import_module(module), "before_fork", lambda: None)()


@contextlib.contextmanager
def _closing(*descriptors: int) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _tell(status_fd: int, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody wants to know
        os.write(status_fd, _NUMBER.pack(number))


def _lead_group(pid: int) -> None:
    """Make a child the leader of a group, which is how it is killed with its own children.

    Child and server both do it: whoever is told of the child may want it killed at once.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
