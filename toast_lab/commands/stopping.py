"""How a command is stopped from outside: Ctrl-C (SIGINT) and SIGTERM.

A search, a race, a sweep or a comparison ends gently at the first of either, and the command goes
on to print and to save what it has by then.  Elsewhere a signal ends the
command, by way of Python's clean-up, so that its child processes and temporary files go, too.  The
second Ctrl-C ends the command in any case; the second SIGTERM is the system's own and ends the
process at once (children notice that their parent is gone).

A command that SIGTERM stopped has exit status 143, whatever it could still print and save.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from toast_lab.isolate import Cancel

#: exit status, as shells give it
TERMINATED = 128 + signal.SIGTERM

# signals are the whole process's, so what came of them is, too
_terminated = False


class Terminated(KeyboardInterrupt):
    """SIGTERM came while nothing ran that could keep what it had."""


def terminated() -> bool:
    """Did SIGTERM come?"""
    return _terminated


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Within it SIGTERM raises ``Terminated``.

    Where signals cannot be caught (another thread) it does nothing.
    """
    global _terminated
    _terminated = False
    with _handled(signal.SIGTERM, _end):
        yield


@contextlib.contextmanager
def stop_gently() -> Iterator[Cancel]:
    """Gives a function that tells whether Ctrl-C or SIGTERM asked to stop.

    A second Ctrl-C ends the command at once.

    After the block SIGTERM no longer ends the command, which still has to print and to save the
    result; for longer work see ``at_once``.  Where signals cannot be caught (another thread) this
    does nothing.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            _note(number, frame)
        elif asked:
            raise KeyboardInterrupt
        asked.append(number)

    with _handled(signal.SIGINT, ask):
        _answer_termination(ask)
        try:
            yield lambda: bool(asked)
        finally:
            _answer_termination(_note)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """For long work that has nothing to keep: SIGTERM ends it, even one that came before."""
    _answer_termination(_end)
    if _terminated:
        raise Terminated
    yield
    _answer_termination(_note)


def _end(number: int, frame: Any) -> None:
    _note(number, frame)
    raise Terminated


def _note(number: int, frame: Any) -> None:
    global _terminated
    _terminated = True
    # A second one needs no Python, which may be busy elsewhere
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _answer_termination(handler: Callable[[int, Any], None]) -> None:
    if not _terminated:
        # not the main thread
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _handled(number: signal.Signals, handler: Callable[[int, Any], None]) -> Iterator[None]:
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)
