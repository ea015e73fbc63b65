"""Measure contenders in turns, so that drift of the machine affects all of them alike.

On virtual devices all children stay alive: all compile, all warm up, then each of them runs one
timed batch in every round, in an order that changes. The others sleep until their next command.

Accelerators cannot be shared in this way. A TPU belongs to one process, and a GPU allocator never
gives back memory that it once took, preallocated or not: each of several children would see only
the memory that the others leave, so whether a plan fits would depend on the others. There, every
round starts a child for each plan, one after the other, which compiles again: there are fewer
rounds, but each child has the whole memory.

Start reading at ``measure``.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from toast_lab import isolate
from toast_lab.compare.contender import (
    Certified,
    CompileMeasurement,
    ContenderRequest,
    Process,
    Started,
)
from toast_lab.errors import ToastError
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import OnProgress, RunProgress

SERVE_FUNCTION = "toast_lab.compare.contender:serve"  #: function that runs in a child
OK = "ok"
FAILED = "failed"
CRASHED = "crashed"
MEMORY = "out of memory"
TIMEOUT = "timeout"
CANCELLED = "cancelled"


class MeasurementSettings(NamedTuple):
    """The settings of a measurement."""

    steps: tuple[int, ...]  #: number of timed steps of a plan in each round
    warmup: int
    apart: bool  #: with a new child for each plan and round
    gradients: bool
    seed: int
    #: are inputs >= 0? None: the results of the unsharded program decide
    non_negative: bool | None
    plan_time_limit_s: float


class Host(Protocol):
    """The process or processes of a contender."""

    def ask(self, command: str, time_limit_s: float, **arguments: Any) -> list[Any]:
        """Send a command, and return the answers, one from each process."""

    def stop(self) -> None:
        """End the contender."""


class TimedOut(ToastError):
    """A plan, or all plans together, took longer than allowed."""


@dataclasses.dataclass
class MeasuredContender:
    """A contender with its measurements so far."""

    request: ContenderRequest
    status: str = ""  #: empty while it runs
    message: str = ""
    batches_s: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    compiled: CompileMeasurement | None = None
    errors: dict[str, float] | None = None
    gradient_errors: dict[str, float] | None = None
    gradient_failure: str = ""
    #: of the unsharded program's results and gradients, by nudged inputs (``agreement``)
    changes: dict[str, float] = dataclasses.field(default_factory=dict)
    allocator_peak_bytes: int | None = None
    spent_s: float = 0.0
    finite: bool = True
    host: Host | None = None


class Clock:
    """The deadline, the cancellation and the progress of a whole measurement."""

    def __init__(
        self,
        time_limit_s: float,
        on_event: OnProgress | None,
        cancel: isolate.Cancel | None,
    ) -> None:
        self.deadline = time.monotonic() + time_limit_s
        self.time_limit_s, self.on_event, self.cancel = time_limit_s, on_event, cancel
        self.done, self.total = 0, 1

    def check(self) -> None:
        """Raise Cancelled or TimedOut if the measurement has to end."""
        if self.cancel is not None and self.cancel():
            raise isolate.Cancelled("cancelled")
        if time.monotonic() > self.deadline:
            raise TimedOut(
                f"stopped after {self.time_limit_s:g} s, the limit of all plans together"
            )

    def say(self, stage: str) -> None:
        """Report that one more of ``total`` units of work begins."""
        if self.on_event is not None:
            self.on_event(RunProgress(stage, min(self.done / self.total, 1.0)))
        self.done += 1


class Children:
    """A contender in child processes: one, or several that share a mesh."""

    def __init__(self, request: ContenderRequest, processes: int, clock: Clock) -> None:
        self.clock = clock
        port = _free_port() if processes > 1 else 0
        self.workers: list[isolate.ChildWorker] = []
        for index in range(processes):
            devices = dev.Devices(request.devices.platform, request.devices.count // processes)
            if processes > 1:
                request = dataclasses.replace(
                    request, process=Process(f"127.0.0.1:{port}", processes, index)
                )
            name = request.name if processes == 1 else f"{request.name}, process {index}"
            self.workers.append(
                isolate.ChildWorker(
                    SERVE_FUNCTION, request, env=dev.environment(devices), activity=name
                )
            )

    def ask(self, command: str, time_limit_s: float, **arguments: Any) -> list[Any]:
        """Send a command to all processes and wait for all answers; raise the first failure."""
        deadline = time.monotonic() + time_limit_s
        answers: list[Any] = [None] * len(self.workers)
        waiting = set(range(len(self.workers)))
        for worker in self.workers:
            worker.command((command, arguments))
        while waiting:
            for index in sorted(waiting):
                for _, message in self.workers[index].arrived(0.1 if len(waiting) == 1 else 0.02):
                    if message[0] != "event":
                        raise self.workers[index].failure(message)
                    answers[index] = message[1]
                    waiting.discard(index)
            self.clock.check()
            if time.monotonic() > deadline:
                raise TimedOut(f"stopped while waiting for {command!r}: this plan used up its time")
        return answers

    def stop(self) -> None:
        """Kill all processes."""
        for worker in self.workers:
            worker.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(
    entries: Sequence[MeasuredContender],
    settings: MeasurementSettings,
    clock: Clock,
    folder: Path,
    open_host: Callable[[ContenderRequest], Host],
) -> bool:
    """Measure all entries, in place; the reference, if there is one, is the first.

    Gives whether inputs were >= 0.

    Failures of an entry are never raised: its status and message report them.
    """
    run = _Measurement(entries, settings, clock, folder=folder, open_host=open_host)
    try:
        run.all()
    except (isolate.Cancelled, TimedOut) as error:
        status = TIMEOUT if isinstance(error, TimedOut) else CANCELLED
        for entry in entries:
            if not entry.status:
                entry.status, entry.message = status, str(error)
    finally:
        for entry in entries:
            run.close(entry)
    return bool(run.non_negative)


class _Measurement:
    def __init__(
        self,
        entries: Sequence[MeasuredContender],
        settings: MeasurementSettings,
        clock: Clock,
        folder: Path,
        open_host: Callable[[ContenderRequest], Host],
    ) -> None:
        self.entries = entries
        self.settings = settings
        self.clock = clock
        self.open_host = open_host
        self.results, self.gradients = str(folder / "results"), str(folder / "gradients")
        self.non_negative = settings.non_negative
        self.random = random.Random(settings.seed)
        turns = len(settings.steps) * (2 if settings.apart else 1) + (1 if settings.apart else 2)
        clock.total = max(turns * len(entries), 1)

    def all(self) -> None:
        children_stay = not self.settings.apart
        if children_stay:
            for entry in self.entries:
                self.guard(entry, self.begin)
        for round_index in range(len(self.settings.steps)):
            for entry in self.order(round_index):
                if not children_stay:
                    self.guard(entry, self.begin)
                self.guard(entry, self.batch, round_index)
                if not children_stay:
                    if round_index == len(self.settings.steps) - 1:
                        self.guard(entry, self.end)
                    self.close(entry)
        if children_stay:
            for entry in self.entries:
                self.guard(entry, self.end)
                self.close(entry)
        for entry in self.entries:
            entry.status = entry.status or OK

    def order(self, round_index: int) -> list[MeasuredContender]:
        """The entries in the order of a round, the reference first if others need its results."""
        order = list(self.entries)
        if round_index or not self.settings.apart:
            self.random.shuffle(order)
        if round_index == len(self.settings.steps) - 1 and self.settings.apart:
            order.sort(key=lambda entry: not entry.request.is_reference)
        return order

    def close(self, entry: MeasuredContender) -> None:
        if entry.host is not None:
            entry.host.stop()
            entry.host = None

    def guard(self, entry: MeasuredContender, step: Callable[..., None], *args: Any) -> None:
        """Do a step of an entry, unless it has ended.

        A failure ends only this entry.
        """
        if entry.status:
            return
        self.clock.check()
        try:
            step(entry, *args)
        except isolate.Cancelled:
            raise
        except Exception as error:
            if isinstance(error, TimedOut) and time.monotonic() > self.clock.deadline:
                raise
            entry.status, entry.message = status_of(error), str(error)
            self.close(entry)

    def ask(self, entry: MeasuredContender, command: str, **arguments: Any) -> list[Any]:
        assert entry.host is not None
        started = time.monotonic()
        try:
            remaining_s = self.settings.plan_time_limit_s - entry.spent_s
            return entry.host.ask(command, remaining_s, **arguments)
        finally:
            entry.spent_s += time.monotonic() - started

    def begin(self, entry: MeasuredContender) -> None:
        name = entry.request.name
        self.clock.say(f"compiling {name}")
        entry.host = self.open_host(entry.request)
        compiled: list[CompileMeasurement] = self.ask(entry, "compile")
        entry.compiled = entry.compiled or compiled[0]
        if entry.request.is_reference:
            self.begin_reference(entry)
            return
        expected = self.results if entry.errors is None and os.path.exists(self.results) else None
        starts = self.start(entry, expected=expected)
        if expected is not None:
            entry.errors = worst([start.errors or {} for start in starts])

    def begin_reference(self, entry: MeasuredContender) -> None:
        """Start the unsharded program, whose results decide between the inputs.

        Inputs are >= 0 if its results are not all finite otherwise.
        """
        keep = None if os.path.exists(self.results) else self.results
        starts = self.start(entry, keep=keep)
        if self.non_negative is None:
            self.non_negative = not all(start.finite for start in starts)
            if self.non_negative:
                starts = self.start(entry, keep=keep)
        entry.finite = all(start.finite for start in starts)
        entry.changes.update(worst([start.changes or {} for start in starts]))

    def start(
        self, entry: MeasuredContender, *, expected: str | None = None, keep: str | None = None
    ) -> list[Started]:
        return self.ask(
            entry,
            "start",
            non_negative=bool(self.non_negative),
            warmup=self.settings.warmup,
            expected=expected,
            keep=keep,
        )

    def batch(self, entry: MeasuredContender, round_index: int) -> None:
        self.clock.say(
            f"running {entry.request.name}, round {round_index + 1}/{len(self.settings.steps)}"
        )
        times: list[tuple[float, ...]] = self.ask(
            entry, "batch", steps=self.settings.steps[round_index]
        )
        # A step of several processes takes as long as the slowest of them.
        entry.batches_s.append(tuple(max(step) for step in zip(*times, strict=True)))

    def end(self, entry: MeasuredContender) -> None:
        self.clock.say(f"checking {entry.request.name}")
        peaks: list[int | None] = self.ask(entry, "finish")
        entry.allocator_peak_bytes = max(filter(None, peaks), default=None)
        if not self.settings.gradients or entry.request.gradient is None:
            return
        reference = entry.request.is_reference
        if not reference and not os.path.exists(self.gradients):
            entry.gradient_failure = "the gradient of the unsharded program could not be run"
            return
        expected, keep = (None, self.gradients) if reference else (self.gradients, None)
        try:
            answers: list[Certified] = self.ask(entry, "certify", expected=expected, keep=keep)
        except isolate.Cancelled:
            raise
        except Exception as error:  # its times stay valid without a gradient
            if isinstance(error, TimedOut) and time.monotonic() > self.clock.deadline:
                raise
            entry.gradient_failure = str(error)
            return
        entry.gradient_failure = next((answer.failure for answer in answers if answer.failure), "")
        if entry.gradient_failure:
            return
        if reference:
            entry.changes.update(worst([answer.changes or {} for answer in answers]))
        else:
            entry.gradient_errors = worst([answer.errors or {} for answer in answers])


def worst(by_process: Sequence[Any]) -> dict[str, float]:
    """The largest error over several processes, by path; NaN counts as largest."""
    return {path: float(np.max([errors[path] for errors in by_process])) for path in by_process[0]}


def status_of(error: Exception) -> str:
    """The status of a contender that ended with an error."""
    text = str(error)
    if isinstance(error, TimedOut):
        return TIMEOUT
    if "its process" in text:
        return CRASHED
    return MEMORY if "out of memory" in text.lower() or "RESOURCE_EXHAUSTED" in text else FAILED
