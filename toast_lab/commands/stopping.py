"""Stops commands on signals: Ctrl-C (SIGINT) and SIGTERM.

The first signal ends a search, a race, a sweep or a comparison gently: the command prints and saves
the results so far. At other times a signal ends the command through Python's clean-up, so that
child processes and temporary files are removed. A second Ctrl-C always ends the command; a second
SIGTERM is handled by the system and ends the process at once (children notice that their parent is
gone).

A command that SIGTERM stopped has exit status 143, whatever it could still print and save.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from toast_lab.isolate import Cancel

#: the exit status, by the convention of shells
TERMINATED = 128 + signal.SIGTERM

# A global, since signals concern the whole process
_terminated = False


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived during work that has no results to keep."""


def terminated() -> bool:
    """Has SIGTERM arrived?"""
    return _terminated


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """A context in which SIGTERM raises ``Terminated``.

    It has no effect if signals cannot be caught (outside the main thread).
    """
    global _terminated
    _terminated = False
    with _handled(signal.SIGTERM, _end):
        yield


@contextlib.contextmanager
def stop_gently() -> Iterator[Cancel]:
    """Gives a function that tells whether Ctrl-C or SIGTERM asked to stop.

    A second Ctrl-C ends the command at once.

    After the block, SIGTERM no longer ends the command, which still has to print and save the
    result; for longer work see ``at_once``. This has no effect if signals cannot be caught (outside
    the main thread).
    """
    signals: list[int] = []

    def handle_signal(signal_number: int, frame: Any) -> None:
        if signal_number == signal.SIGTERM:
            _note(signal_number, frame)
        elif signals:
            raise KeyboardInterrupt
        signals.append(signal_number)

    with _handled(signal.SIGINT, handle_signal):
        _answer_termination(handle_signal)
        try:
            yield lambda: bool(signals)
        finally:
            _answer_termination(_note)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """A context for long work without results to keep: SIGTERM ends it, even if it came before."""
    _answer_termination(_end)
    if _terminated:
        raise Terminated
    yield
    _answer_termination(_note)


def _end(signal_number: int, frame: Any) -> None:
    _note(signal_number, frame)
    raise Terminated


def _note(signal_number: int, frame: Any) -> None:
    global _terminated
    _terminated = True
    # The system handles a second SIGTERM, since Python may be busy elsewhere.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _answer_termination(handler: Callable[[int, Any], None]) -> None:
    if not _terminated:
        # not the main thread
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _handled(signal_number: signal.Signals, handler: Callable[[int, Any], None]) -> Iterator[None]:
    try:
        previous_handler = signal.signal(signal_number, handler)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal_number, previous_handler)
