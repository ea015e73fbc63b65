"""What happens in the child process: compile, put the inputs, run, compare.

``execute`` is the one entry point; it takes a ``Request`` and gives plain data, and sends
``Progress`` on the way.  The reference is the program as it was read, with no annotation on it,
compiled for one device; it runs first, because its results decide which made-up inputs are usable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import isolate
from toast_lab.ir.program import Program
from toast_lab.runtime import devices as dev
from toast_lab.runtime import hlo, inputs
from toast_lab.runtime.executable import Executable, Job, allocator_peak, whole_job


class Progress(NamedTuple):
    """One progress event of a run."""

    stage: str  #: "compiling sharded", "running 3/10"
    fraction: float  #: 0 to 1


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """Everything that a child needs to know."""

    program: Program
    reference: str | None  #: StableHLO without annotations; None: no reference
    jobs: tuple[Job, ...]
    devices: dev.Devices
    repeats: int
    warmup: int
    seed: int
    arrays: list[np.ndarray] | None  #: the user's inputs


class Measured(NamedTuple):
    """Times and memory of one executable."""

    compile_s: float
    step_times_s: tuple[float, ...]
    memory: dict[str, int]  #: see _jax_private.memory_stats
    collectives: tuple[hlo.Collective, ...]
    errors: dict[str, float] | None  #: by output path; None for the reference, or without one


class Report(NamedTuple):
    """The result of ``execute``."""

    device_kind: str
    inputs: str  #: "normal", "non-negative" or "given"
    reference: Measured | None
    reference_failure: str  #: why there is no reference although one was asked for
    jobs: tuple[Measured, ...]
    allocator_peak_bytes: int | None


def choose_devices(wanted: int) -> dev.Devices:
    """``devices.choose`` under a name that a child can be sent."""
    return dev.choose(wanted)


def execute(request: Request) -> Report:
    """Compile and run every job of ``request`` on the same inputs.

    Raises:
        InvalidProblem: too few devices are attached.
    """
    import jax

    jax.config.update("jax_enable_x64", True)  # or 64-bit inputs would be cut to 32 on their way in
    found = dev.attached(request.devices)
    arrays, used = request.arrays, "given"
    if arrays is None:
        arrays, used = inputs.draw(request.program, request.seed), "normal"
    reference, expected, failure = None, None, ""
    if request.reference is not None:
        reference, expected, failure = _try_reference(request, found[0], arrays)
        if expected is not None and request.arrays is None and not all_finite(expected):
            arrays = inputs.draw(request.program, request.seed, non_negative=True)
            used = "non-negative"
            reference, expected, failure = _try_reference(request, found[0], arrays)
    measured = []
    start = 0.2 if request.reference is not None else 0.0
    for number, job in enumerate(request.jobs):
        share = (1 - start) / len(request.jobs)
        stages = _Stages("sharded", start + share * number, share)
        measured.append(_measure(request, job, found, arrays, expected, stages))
    peak = allocator_peak(found[-1])
    return Report(found[0].device_kind, used, reference, failure, tuple(measured), peak)


class _Stages:
    """Turns the steps of one executable into events on its share of the whole."""

    def __init__(self, what: str, start: float, share: float) -> None:
        self.what, self.start, self.share = what, start, share

    def compiling(self) -> None:
        isolate.report(Progress(f"compiling {self.what}", self.start))

    def running(self, number: int, total: int) -> None:
        fraction = self.start + self.share * (0.6 + 0.4 * number / max(total, 1))
        isolate.report(Progress(f"running {self.what} {number}/{total}", fraction))


def _try_reference(
    request: Request, device: Any, arrays: Sequence[np.ndarray]
) -> tuple[Measured | None, list[np.ndarray] | None, str]:
    whole = whole_job(request.program, request.reference or "")
    results: list[np.ndarray] = []
    try:
        stages = _Stages("unsharded", 0.0, 0.2)
        return _measure(request, whole, [device], arrays, None, stages, results), results, ""
    except Exception as error:
        # What does not fit on one device is the very reason to shard it: go on without a reference.
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            return (
                None,
                None,
                (f"the unsharded program does not fit on one device: {str(error)[:300]}"),
            )
        raise


def _measure(
    request: Request,
    job: Job,
    found: Sequence[Any],
    arrays: Sequence[np.ndarray],
    expected: Sequence[np.ndarray] | None,
    stages: _Stages,
    results: list[np.ndarray] | None = None,
) -> Measured:
    """Compile and time one job; ``results``, if given, receives the first execution's outputs."""
    stages.compiling()
    executable = Executable.of_program(job, request.program, found)
    times, errors = [], None
    total = request.warmup + request.repeats
    for number in range(total):
        stages.running(number + 1, total)
        executable.put(arrays)
        time_s, outputs = executable.step()
        times.append(time_s)
        if number == 0 and (expected is not None or results is not None):
            whole = [np.asarray(array) for array in executable.results(outputs)]
            if results is not None:
                results.extend(whole)
            if expected is not None:
                pairs = zip(request.program.output_paths, whole, expected, strict=True)
                errors = {path: relative_error(a, b) for path, a, b in pairs}
        del outputs
    return Measured(
        executable.compile_s,
        tuple(times[request.warmup :]),
        executable.memory(),
        executable.collectives(),
        errors,
    )


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """``max|found - expected| / max|expected|`` over the elements where ``expected`` is finite.

    Where all of ``expected`` is zero the difference itself is given.  Infinity: the two are not
    finite in the same places.  NaN: there is nothing finite to compare.  0 for arrays without
    elements.
    """
    if expected.size == 0:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    if not finite.any():
        return float("nan")
    scale = float(np.max(np.abs(b[finite])))
    return float(np.max(np.abs(a[finite] - b[finite]))) / (scale or 1.0)


def all_finite(arrays: Sequence[np.ndarray]) -> bool:
    """Are there no infinities and no NaN?"""
    return all(bool(np.isfinite(a.astype(np.complex128)).all()) for a in arrays)
