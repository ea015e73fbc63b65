"""The work of the child process: compile, put the inputs on the devices, run, compare.

``execute`` is the only entry point: it takes a ``RunRequest``, gives plain data, and sends
``RunProgress`` on the way. The reference is the program as it was read, without annotations,
compiled for one device; it runs first, because its results decide which made-up inputs are usable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import fork_server, isolate
from toast_lab.ir.model import Padding
from toast_lab.ir.program import Program
from toast_lab.runtime import agreement, hlo, inputs
from toast_lab.runtime import devices as dev
from toast_lab.runtime.executable import Executable, ShardedProgram, allocator_peak
from toast_lab.runtime.measuring import Execution

#: Runs once, before the children that execute this module are forked (``fork_server``).
before_fork = fork_server.import_jax


class RunProgress(NamedTuple):
    """One progress event of a run."""

    stage: str  #: "compiling sharded", "running 3/10"
    fraction: float  #: 0 to 1


OnProgress = Callable[[RunProgress], None]


@dataclasses.dataclass(frozen=True, eq=False)
class RunRequest:
    """Everything that a child needs to run the jobs."""

    program: Program
    reference: ShardedProgram | None  #: the unsharded program; None: no reference
    jobs: tuple[ShardedProgram, ...]
    devices: dev.Devices
    options: Execution  #: its inputs are numpy arrays that fit the program
    padding: Padding | None = None  #: of the program's dims


class ExecutableMeasurement(NamedTuple):
    """Times and memory of one executable."""

    compile_s: float
    step_times_s: tuple[float, ...]
    memory: dict[str, int]  #: see _jax_private.memory_stats
    collectives: tuple[hlo.Collective, ...]
    errors: dict[str, float] | None  #: by output path; None if not compared with a reference
    changes: dict[str, float]  #: of a reference, by nudged inputs (``agreement``); else empty


class RunReport(NamedTuple):
    """The result of ``execute``."""

    device_kind: str
    inputs: str  #: "normal", "non-negative" or "given"
    reference: ExecutableMeasurement | None
    reference_failure: str  #: why there is no reference although one was asked for
    jobs: tuple[ExecutableMeasurement, ...]
    allocator_peak_bytes: int | None


def execute(request: RunRequest) -> RunReport:
    """Compile and run every job of ``request`` on the same inputs.

    Raises:
        InvalidProblem: too few devices are attached.
    """
    import jax

    # Otherwise JAX would truncate 64-bit inputs to 32 bits
    jax.config.update("jax_enable_x64", True)
    devices = dev.attached(request.devices)
    reference, expected, reference_failure = None, None, ""
    for inputs_kind in ("normal", "non-negative") if request.options.inputs is None else ("given",):
        arrays: Any = request.options.inputs
        if arrays is None:
            arrays = inputs.draw(
                request.program,
                request.options.seed,
                non_negative=inputs_kind == "non-negative",
                padding=request.padding,
            )
        if request.reference is None:
            break
        reference, expected, reference_failure = try_reference(
            request, request.reference, devices, arrays
        )
        if expected is None or all_finite(expected):
            break
    measured = []
    reference_share = 0.2 if request.reference is not None else 0.0
    for job_index, job in enumerate(request.jobs):
        share = (1 - reference_share) / len(request.jobs)
        stage = Stage("sharded", reference_share + share * job_index, share)
        measured.append(measure(request, job, devices, arrays, stage=stage, expected=expected))
    return RunReport(
        device_kind=devices[0].device_kind,
        inputs=inputs_kind,
        reference=reference,
        reference_failure=reference_failure,
        jobs=tuple(measured),
        allocator_peak_bytes=allocator_peak(devices[-1]),
    )


class Stage:
    """Reports the steps of one executable as progress within its share of the whole run."""

    def __init__(self, name: str, start: float, share: float) -> None:
        self.name, self.start, self.share = name, start, share

    def compiling(self) -> None:
        """Report that the program is being compiled."""
        isolate.report(RunProgress(f"compiling {self.name}", self.start))

    def running(self, number: int, total: int) -> None:
        """Report that execution ``number`` of ``total`` begins."""
        fraction = self.start + self.share * (0.6 + 0.4 * number / max(total, 1))
        isolate.report(RunProgress(f"running {self.name} {number}/{total}", fraction))


def try_reference(
    request: RunRequest, job: ShardedProgram, devices: Sequence[Any], arrays: Sequence[np.ndarray]
) -> tuple[ExecutableMeasurement | None, list[np.ndarray] | None, str]:
    """Run the unsharded program: gives measurements, results and, if it failed, the reason."""
    stage = Stage("unsharded", 0.0, 0.2)
    results: list[np.ndarray] = []
    try:
        measured = measure(
            request,
            job,
            devices[: job.mesh.n_devices],
            arrays,
            stage=stage,
            results=results,
        )
    except Exception as error:
        # Programs are sharded because they do not fit on one device: go on without a reference.
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            reason = f"the unsharded program does not fit on one device: {str(error)[:300]}"
            return None, None, reason
        raise
    return measured, results, ""


def measure(
    request: RunRequest,
    job: ShardedProgram,
    devices: Sequence[Any],
    arrays: Sequence[np.ndarray],
    stage: Stage,
    expected: Sequence[np.ndarray] | None = None,
    results: list[np.ndarray] | None = None,
) -> ExecutableMeasurement:
    """Compile and time one job, with errors against the ``expected`` results.

    If ``results`` are given instead, the first execution's are added to them, and it is measured
    how nudged inputs change them.
    """
    errors: dict[str, float] = {}
    paths = request.program.output_paths

    def take(own: list[np.ndarray]) -> None:
        if results is not None:
            results.extend(own)
        if expected is not None:
            errors.update(zip(paths, map(relative_error, own, expected), strict=True))

    stage.compiling()
    executable = Executable.of_program(job, request.program, devices)
    options = request.options
    times_s = executable.times_s(
        arrays, options.repeats, options.warmup, on_step=stage.running, on_results=take
    )
    changes: dict[str, float] = {}
    if results:
        executable.release()
        executable.put(agreement.nudged(arrays, options.seed))
        nudged = executable.results(executable.step()[1])
        for path, result, own in zip(paths, nudged, results, strict=True):
            changes[path] = relative_error(np.asarray(result), own)
    return ExecutableMeasurement(
        compile_s=executable.compile_s,
        step_times_s=times_s,
        memory=executable.memory(),
        collectives=executable.collectives(),
        errors=None if expected is None else errors,
        changes=changes,
    )


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    """``max|result - expected| / max|expected|`` over the elements where ``expected`` is finite.

    If these are all zero, the result is the largest absolute difference. It is infinite if the two
    arrays are not finite in the same places, NaN if ``expected`` has no finite element, and 0 for
    arrays without elements.
    """
    if expected.size == 0:
        return 0.0
    wide_dtype = np.complex128 if np.iscomplexobj(expected) else np.float64
    result, expected = result.astype(wide_dtype), expected.astype(wide_dtype)
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(result), finite):
        return float("inf")
    if not finite.any():
        return float("nan")
    scale = float(np.max(np.abs(expected[finite])))
    return float(np.max(np.abs(result[finite] - expected[finite]))) / (scale or 1.0)


def all_finite(arrays: Sequence[np.ndarray]) -> bool:
    """Are the arrays free of infinities and NaN?"""
    return all(bool(np.isfinite(array.astype(np.complex128)).all()) for array in arrays)
