"""A child process with eight virtual devices that tests share.

JAX fixes its number of devices once in a process, and tests run with one. Starting a process and
reading the compiled kernels takes seconds, so the tests of a worker share one child; its compiled
programs are dropped after each call.
"""

from __future__ import annotations

import atexit
import importlib
import time
import traceback
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.runtime.devices import Devices, environment

_KEPT: list[isolate.ChildWorker] = []


class Answer(NamedTuple):
    """The result of a call, or the traceback of its failure."""

    value: Any
    failure: str


def call(target: str, *args: Any, time_limit_s: float = 580.0, **options: Any) -> Any:
    """Call ``"package.module:function"`` in the child and give its result.

    Raises:
        AssertionError: the function raised, and the message is the child's traceback; or there was
            no result within ``time_limit_s``.
        RunFailed: the child died; the next call starts another.
    """
    worker = _worker()
    worker.command((target, args, options))
    end = time.monotonic() + time_limit_s
    while time.monotonic() < end:
        for _, message in worker.arrived(0.2):
            if message[0] != "event":
                _stop()
                raise worker.failure(message)
            if isinstance(message[1], Answer):
                assert not message[1].failure, message[1].failure
                return message[1].value
    _stop()
    raise AssertionError(f"{target}: no result within {time_limit_s:g} s")


def _worker() -> isolate.ChildWorker:
    if not _KEPT:
        name = f"{__name__}:serve"
        _KEPT.append(isolate.ChildWorker(name, env=environment(Devices("cpu", 8)), activity=name))
    return _KEPT[0]


@atexit.register
def _stop() -> None:
    while _KEPT:
        _KEPT.pop().stop()


def serve() -> None:
    """Answer calls until the parent is gone; runs in the child."""
    import jax

    while (command := isolate.next_command()) is not None:
        target, args, options = command
        module, _, function = target.partition(":")
        try:
            value = getattr(importlib.import_module(module), function)(*args, **options)
            answer = Answer(value, "")
        except Exception:
            answer = Answer(None, traceback.format_exc())
        isolate.report(answer)
        jax.clear_caches()
