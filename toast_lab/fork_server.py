"""Child processes that start with JAX imported and kernels loaded.

Importing JAX and loading kernels takes a child longer than most of its work. A *fork server* is a
process that has done this once, and nothing else: it runs no threads, no JAX backend and no user
code. When it is asked for a child, it imports the module of the child's target, if the module
belongs to this package, calls the module's ``before_fork``, which does the work that all its
children need, and forks.

A forked child asks the same server for its own children. A child is killed when the process that
asked for it ends, for whatever reason, and all children end with the server.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple, TypeVar

#: Environment variables that are read only when they are used. All others may have been read by an
#: import.
_READ_LATE = ("XLA_FLAGS", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST")
_MOST_SERVERS = 3
_FORK = b"fork"
_MOST_BYTES = 4096  # of one message to the server
_NUMBER = struct.Struct("<q")
AnswerT = TypeVar("AnswerT")


class Request(NamedTuple):
    """A child as the server starts it; the child itself reads the rest of the request file."""

    module: str  #: the module of the child's target
    environment: dict[str, str]
    folder: str  #: working folder; empty: that of the server


#: The work of a child: takes its request, the file descriptors of the pipe to its parent and of the
#: one from it, and gives its exit status.
Work = Callable[[BinaryIO, int, int], int]


def serves(environment: Mapping[str, str]) -> bool:
    """May a child with these environment variables be forked?

    An accelerator's library may start threads when it is imported, and systems other than Linux do
    not guarantee that a process that has loaded their libraries can be forked.
    """
    return sys.platform == "linux" and environment.get("JAX_PLATFORMS") == "cpu"


def fork(
    python: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> ForkedProcess | None:
    """Fork a child off a server with this environment, which is started if there is none.

    Args:
        python: the command that starts a server if ``--serve N`` is appended.
        environment: the child's environment variables.
        descriptors: file descriptors of the request, the log, the pipe to the parent and the pipe
            from it.

    Returns:
        The child, or None if too many servers are busy already.
    """
    return _request(python, environment, lambda server: server.fork(descriptors))


def warm_up(python: Sequence[str], environment: Mapping[str, str], module: str) -> None:
    """Let a server prepare, in the background, for children whose target is in ``module``."""
    _request(python, environment, lambda server: server.line.send(module.encode()))


def _request(
    python: Sequence[str],
    environment: Mapping[str, str],
    request: Callable[[_Server], AnswerT],
) -> AnswerT | None:
    """Send a request to a server with this environment; None if too many servers are busy."""
    with _SERVERS_LOCK:
        for _ in range(2):  # a server may have been killed since its last request
            server = _server(python, environment)
            if server is None:
                return None
            with contextlib.suppress(OSError):
                return request(server)
            _SERVERS.remove(server)
            server.end()
    return None


class ForkedProcess:
    """A process that a server forked for us, with the part of ``subprocess.Popen`` that we use."""

    def __init__(self, status_fd: int) -> None:
        self._pid, self._code = Future[int](), Future[int]()
        threading.Thread(target=self._listen, args=(status_fd,), daemon=True).start()

    def _listen(self, status_fd: int) -> None:
        with os.fdopen(status_fd, "rb") as status:
            # Without a number the server was killed, and the process with it
            for number, otherwise in ((self._pid, 0), (self._code, -signal.SIGKILL)):
                received = status.read(_NUMBER.size)
                is_whole = len(received) == _NUMBER.size
                number.set_result(_NUMBER.unpack(received)[0] if is_whole else otherwise)

    @property
    def pid(self) -> int:
        """Its process number; 0 if it was never started."""
        return self._pid.result()

    @property
    def returncode(self) -> int | None:
        """Its return code, or None while it runs."""
        return self._code.result() if self._code.done() else None

    def poll(self) -> int | None:
        """Its return code, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends and give its return code.

        Raises:
            TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        try:
            return self._code.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None


class _Server:
    """A server as seen by the process that sends it requests."""

    def __init__(self, imported_with: dict[str, str], line: socket.socket, pid: int) -> None:
        self.imported_with = imported_with  # environment variables that its imports may have read
        self.pid = pid
        self.owner = os.getpid()  # a process forked off this one needs its own server
        self.line = line
        self._forked: list[ForkedProcess] = []

    @property
    def idle(self) -> bool:
        return all(process.returncode is not None for process in self._forked)

    def fork(self, descriptors: Sequence[int]) -> ForkedProcess:
        read_fd, write_fd = os.pipe()
        with _closed_after(write_fd):
            try:
                socket.send_fds(self.line, [_FORK], [*descriptors, write_fd])
            except OSError:
                os.close(read_fd)
                raise
        running = [process for process in self._forked if process.returncode is None]
        self._forked = [*running, ForkedProcess(read_fd)]
        return self._forked[-1]

    def end(self) -> None:
        self.line.close()


_SERVERS: list[_Server] = []
_SERVERS_LOCK = threading.Lock()


@atexit.register
def _end_servers() -> None:
    """Close our ends of the sockets, whereupon the servers end."""
    for server in _SERVERS:
        server.end()


def _server(python: Sequence[str], environment: Mapping[str, str]) -> _Server | None:
    """The server with this environment, which is started if there is none.

    Gives None if there are too many servers and none of them is idle.
    """
    variables = _read_at_import(environment)
    _SERVERS[:] = [server for server in _SERVERS if server.owner == os.getpid()]
    for server in _SERVERS:
        if server.imported_with == variables:
            return server
    if len(_SERVERS) >= _MOST_SERVERS:
        idle = next((server for server in _SERVERS if server.idle), None)
        if idle is None:
            return None
        _SERVERS.remove(idle)
        idle.end()
    our_end, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [*python, "--serve", str(its_end.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(its_end.fileno(),),
        env=environment,
        start_new_session=True,
    )
    its_end.close()
    threading.Thread(target=process.wait, name="fork server", daemon=True).start()
    _SERVERS.append(_Server(variables, our_end, process.pid))
    return _SERVERS[-1]


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in _READ_LATE}


def import_jax() -> None:
    """The ``before_fork`` of modules whose children use JAX."""
    importlib.import_module("jax.numpy")


# -- in the server ---------------------------------------------------------------------------------


def serve(line_fd: int, work: Work) -> None:
    """Fork children for the process at the other end of a socket, until that process closes it."""
    host = _Host(socket.socket(fileno=line_fd), work)
    try:
        host.run()
    finally:
        host.kill_all()


class _Child(NamedTuple):
    status_fd: int  # pipe on which the requester reads the process number and the return code
    asked_by: socket.socket
    line: socket.socket  # on which it requests its own children


class _Host:
    """The server itself: a socket ("line") to each requester, and the children that it forked."""

    def __init__(self, first_line: socket.socket, work: Work) -> None:
        self._first, self._work = first_line, work
        self._children: dict[int, _Child] = {}
        self._ready = selectors.DefaultSelector()
        self._ready.register(first_line, selectors.EVENT_READ)
        self._child_ended = socket.socketpair()
        for wake_socket in self._child_ended:
            wake_socket.setblocking(False)
        self._ready.register(self._child_ended[0], selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._child_ended[1].fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        while True:
            for key, _ in self._ready.select():
                line: Any = key.fileobj
                if line is self._child_ended[0]:
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
        """Carry out a request on a line; False if its other end is closed."""
        try:
            message, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 5)
        except OSError:
            message, descriptors = b"", []
        if message == _FORK:
            self._fork(line, descriptors)
            return True
        if message:
            _make_ready(message.decode())
            return True
        self._hang_up(line)
        return False

    def _hang_up(self, line: socket.socket) -> None:
        """Close a line whose requester is gone, and kill the children that it requested."""
        for pid, child in self._children.items():
            if child.asked_by is line:
                _kill_group(pid)
        if line.fileno() >= 0:
            self._ready.unregister(line)
            line.close()

    def _reap(self) -> None:
        for pid in list(self._children):
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                child = self._children.pop(pid)
                _send_number(child.status_fd, os.waitstatus_to_exitcode(status))
                os.close(child.status_fd)
                self._hang_up(child.line)

    def _fork(self, line: socket.socket, descriptors: list[int]) -> None:
        request_fd, log_fd, channel_fd, command_fd, status_fd = descriptors
        our_end, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _closed_after(request_fd, log_fd, channel_fd, command_fd):
            request_file = os.fdopen(request_fd, "rb", closefd=False)
            request = Request(*pickle.load(request_file))
            if request.module.startswith("toast_lab."):
                _make_ready(request.module)
            gc.freeze()  # else the child's first collection would copy all our memory pages
            with warnings.catch_warnings():
                # JAX warns about forking with threads, but it has started none yet.
                warnings.simplefilter("ignore")
                pid = os.fork()
            if pid == 0:
                our_end.close()
                self._become(request, request_file, descriptors, its_end)
        its_end.close()
        _lead_group(pid)
        _send_number(status_fd, pid)
        self._children[pid] = _Child(status_fd, line, our_end)
        self._ready.register(our_end, selectors.EVENT_READ)

    def _become(
        self,
        request: Request,
        request_file: BinaryIO,
        descriptors: Sequence[int],
        line: socket.socket,
    ) -> None:
        """In a child: release the server's resources, do the work and exit."""
        status = 1
        try:
            _lead_group(0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A pipe ends only when all processes that hold it have closed it.
            for child in self._children.values():
                os.close(child.status_fd)
                child.line.close()
            for server_socket in (self._first, *self._child_ended):
                server_socket.close()
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
                numpy.random.seed()  # else every child would draw the same numbers
            _SERVERS.append(_Server(_read_at_import(request.environment), line, os.getppid()))
            status = self._work(request_file, channel_fd, command_fd)
        finally:
            os._exit(status)


def _make_ready(module: str) -> None:
    """Import a module and call its ``before_fork``, if it has one.

    ``before_fork`` does the work that each of the module's children would otherwise repeat.
    """
    with contextlib.suppress(Exception):  # the child tries again and reports the error
        getattr(importlib.import_module(module), "before_fork", lambda: None)()


@contextlib.contextmanager
def _closed_after(*descriptors: int) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _send_number(status_fd: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the requester is gone
        os.write(status_fd, _NUMBER.pack(number))


def _lead_group(pid: int) -> None:
    """Make a child the leader of a process group, so that it is killed together with its children.

    Both child and server do it, since the requester may want to kill the child as soon as it knows
    it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
