"""One trial: start a command, kill one of its child processes, and wait for the end.

The moment of the kill is drawn from a seed.

``Trial`` says what was killed and when, and how the command ended. The tests say what must hold
then.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.processes import descendants, direct_children

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # for a busy machine
LOOK_S = 0.02


class Victim(NamedTuple):
    """A process that was killed."""

    pid: int
    what: str  #: its command line, shortened
    at_s: float  #: seconds since the first child appeared
    children: int  #: processes that it had started, which end with it


class Trial(NamedTuple):
    """How a command ended of which one process was killed."""

    victim: Victim | None  #: None: the command had ended before the kill
    status: int | None  #: None: the command did not end in time
    out: str
    err: str
    seconds: float  #: from the first child to the end


def start(argv: Sequence[str], **options: object) -> subprocess.Popen[str]:
    """Start ``toast-lab`` in its own session.

    Pass files for its output, so that it never waits for a reader.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "toast_lab.cli", *argv],
        env=env,
        text=True,
        start_new_session=True,
        **options,
    )


def kill_one(
    pid: int, rng: random.Random, span_s: float, alive: Callable[[], bool]
) -> Victim | None:
    """Wait for a random part of ``span_s``, and kill a random descendant of ``pid``.

    ``alive()`` says whether the command is still running. None if nothing was killed.
    """
    began, wait_s = time.monotonic(), rng.uniform(0.0, span_s)
    while time.monotonic() - began < wait_s and alive():
        time.sleep(LOOK_S)
    end = time.monotonic() + 10.0
    while alive() and time.monotonic() < end:  # type: ignore[operator]
        candidates = descendants(pid)
        if candidates:
            victim, command = rng.choice(sorted(candidates))
            children = len(direct_children(victim))
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return Victim(victim, command, time.monotonic() - began, children)
        time.sleep(LOOK_S)  # between two children: take the next one
    return None


def trial(argv: Sequence[str], rng: random.Random | None, span_s: float = 0.0) -> Trial:
    """Run a command and kill one of its processes within ``span_s`` of the first.

    Without ``rng`` nothing is killed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(argv, stdout=out, stderr=err)
        began, victim, status = time.monotonic(), None, None
        try:
            while process.poll() is None and not descendants(process.pid):
                time.sleep(LOOK_S)
            began = time.monotonic()
            if rng is not None:
                victim = kill_one(process.pid, rng, span_s, lambda: process.poll() is None)
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            left = [pid for pid, _ in descendants(process.pid)]
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        return Trial(victim, status, texts[0], texts[1], time.monotonic() - began)


def told(kind: str, number: int, found: Trial, note: str = "") -> str:
    """A line about a trial for the test's output."""
    victim = (
        "nothing, it had ended"
        if found.victim is None
        else f"{found.victim.what!r} with {found.victim.children} children "
        f"at {found.victim.at_s:.2f} s"
    )
    return (
        f"{kind} {number}: killed {victim}; exit status {found.status} after "
        f"{found.seconds:.1f} s {note}"
    ).rstrip()
