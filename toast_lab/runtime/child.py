"""What happens in the child process: compile, put the inputs, run, compare.

``execute`` is the one entry point; it takes a ``Request`` and gives plain data, and sends ``Progress`` on the
way.  The reference is the program as it was read, with no annotation on it, compiled for one device; it
runs first, because its results decide which made-up inputs are usable.

Donated arguments stay donated, so that memory is what the real program needs.  An execution then consumes
them: they are put on the devices again before every execution, outside the timed section.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import isolate
from toast_lab.ir.program import Program
from toast_lab.runtime import _jax_private, hlo, inputs
from toast_lab.runtime import devices as dev
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec


class Progress(NamedTuple):
    """One progress event of a run."""

    stage: str  #: "compiling sharded", "running 3/10"
    fraction: float  #: 0 to 1


@dataclasses.dataclass(frozen=True)
class Job:
    """One sharded program to compile and run."""

    text: str  #: annotated StableHLO
    mesh: Mesh
    argument_specs: tuple[Spec, ...]
    result_specs: tuple[Spec, ...]


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
        if expected is not None and request.arrays is None and not _all_finite(expected):
            arrays, used = inputs.draw(request.program, request.seed, non_negative=True), "non-negative"
            reference, expected, failure = _try_reference(request, found[0], arrays)
    measured = []
    start = 0.2 if request.reference is not None else 0.0
    for number, job in enumerate(request.jobs):
        share = (1 - start) / len(request.jobs)
        stages = _Stages("sharded", start + share * number, share)
        measured.append(_measure(request, job, found, arrays, expected, stages))
    peak = _allocator_peak(found[-1])
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
    program = request.program
    whole = Job(
        request.reference or "",
        Mesh(("one",), (1,)),
        tuple(((),) * len(program.dims(a)) for a in range(program.n_arguments)),
        tuple(((),) * len(program.dims(int(v))) for v in program.outputs),
    )
    results: list[np.ndarray] = []
    try:
        stages = _Stages("unsharded", 0.0, 0.2)
        return _measure(request, whole, [device], arrays, None, stages, results), results, ""
    except Exception as error:
        # What does not fit on one device is the very reason to shard it: go on without a reference.
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            return None, None, f"the unsharded program does not fit on one device: {str(error)[:300]}"
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
    import jax
    from jax.sharding import NamedSharding

    from toast_lab.lowering.specs import to_partition_spec

    program = request.program
    stages.compiling()
    started = time.perf_counter()
    executable = _jax_private.compile_module(job.text, found)
    compile_s = time.perf_counter() - started
    mesh = jax.sharding.Mesh(np.asarray(found).reshape(job.mesh.sizes), job.mesh.axes)

    def sharding(spec: Spec) -> Any:
        return NamedSharding(mesh, to_partition_spec(spec))

    put: list[Any] = [None] * program.n_arguments
    times, errors = [], None
    total = request.warmup + request.repeats
    for number in range(total):
        stages.running(number + 1, total)
        for i, array in enumerate(arrays):
            if put[i] is None or program.donated[i] or put[i].is_deleted():
                put[i] = None  # frees it before the copy is made
                put[i] = jax.device_put(array, sharding(job.argument_specs[i]))
        jax.block_until_ready(put)
        started = time.perf_counter()
        outputs = _jax_private.execute(executable, put)
        jax.block_until_ready(outputs)
        times.append(time.perf_counter() - started)
        if number == 0 and (expected is not None or results is not None):
            whole = [
                np.asarray(jax.make_array_from_single_device_arrays(program.dims(int(v)), sharding(spec), parts))
                for v, spec, parts in zip(program.outputs, job.result_specs, outputs, strict=True)
            ]
            if results is not None:
                results.extend(whole)
            if expected is not None:
                pairs = zip(program.output_paths, whole, expected, strict=True)
                errors = {path: relative_error(a, b) for path, a, b in pairs}
        del outputs
    sizes = dict(zip(job.mesh.axes, job.mesh.sizes, strict=True))
    return Measured(
        compile_s,
        tuple(times[request.warmup :]),
        _jax_private.memory_stats(executable),
        tuple(hlo.collectives(_jax_private.optimised_hlo(executable), sizes)),
        errors,
    )


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """``max|found - expected| / max|expected|`` over the elements where ``expected`` is finite.

    Where all of ``expected`` is zero the difference itself is given.  Infinity: the two are not finite in the same
    places.  NaN: there is nothing finite to compare.  0 for arrays without elements.
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


def _all_finite(arrays: Sequence[np.ndarray]) -> bool:
    return all(bool(np.isfinite(a.astype(np.complex128)).all()) for a in arrays)


def _allocator_peak(device: Any) -> int | None:
    stats = device.memory_stats() or {} if device.platform != "cpu" else {}
    peak = stats.get("peak_bytes_in_use")
    return None if peak is None else int(peak)
