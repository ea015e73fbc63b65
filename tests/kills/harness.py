"""One trial: start a command, kill one of its child processes, wait for the end.

The moment of the kill is drawn from a seed.

``Trial`` says what was killed and when, and how the command ended.  What must hold then is for the
tests to say.
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

from tests.processes import descendants

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # on a machine that does much else
LOOK_S = 0.02


class Victim(NamedTuple):
    """A process that was killed."""

    pid: int
    what: str  #: its command line, shortened
    at_s: float  #: since the first child was there


class Trial(NamedTuple):
    """How a command ended that lost a process."""

    victim: Victim | None  #: None: it had ended before the moment came
    status: int | None  #: None: it did not end
    out: str
    err: str
    seconds: float  #: from the first child to the end


def start(argv: Sequence[str], **options: object) -> subprocess.Popen[str]:
    """``toast-lab`` as a process of its own session.

    Its output goes to files, so that it never waits for us.
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
    """Wait for a part of ``span_s``, and kill any of the descendants of ``pid``.

    ``alive()`` says whether there is still anything to be killed.
    """
    began, wait_s = time.monotonic(), rng.uniform(0.0, span_s)
    while time.monotonic() - began < wait_s and alive():
        time.sleep(LOOK_S)
    end = time.monotonic() + 10.0
    while alive() and time.monotonic() < end:  # type: ignore[operator]
        found = descendants(pid)
        if found:
            victim, what = rng.choice(sorted(found))
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return Victim(victim, what, time.monotonic() - began)
        time.sleep(LOOK_S)  # between two children: the next one that comes
    return None


def trial(argv: Sequence[str], rng: random.Random | None, span_s: float = 0.0) -> Trial:
    """Run a command and kill one of its processes within ``span_s`` of the first.

    Without ``rng`` it is left alone.
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
    """A line about a trial, for whoever reads the test's output."""
    victim = (
        "nothing, it had ended"
        if found.victim is None
        else (f"{found.victim.what!r} at {found.victim.at_s:.2f} s")
    )
    return (
        f"{kind} {number}: killed {victim}; exit status {found.status} after "
        f"{found.seconds:.1f} s {note}"
    ).rstrip()
