"""A plan in a process of its own: compiled once, then driven by commands.

The parent (``measure.py``) sends ``compile``, ``start``, ``batch`` (any number of times),
``certify`` and ``finish``, and gets plain data as answers. If devices belong to several processes,
each process has a ``Contender`` and receives the same commands. The unsharded program is a
contender too; it writes its results to a file for the others.

Results are compared shard by shard on the devices that hold them: every device's copy counts, and
nothing is gathered.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import fork_server, isolate
from toast_lab.ir.program import Program
from toast_lab.runtime import agreement, child, hlo, inputs
from toast_lab.runtime import devices as dev
from toast_lab.runtime.executable import Executable, ShardedProgram, allocator_peak
from toast_lab.runtime.measuring import Execution

#: Runs once, before the children that serve contenders are forked (``fork_server``).
before_fork = fork_server.import_jax

Errors = Mapping[str, float]  # by output path


class Process(NamedTuple):
    """One of several processes that share a mesh."""

    coordinator: str  #: "127.0.0.1:1234"
    processes: int  #: number of processes
    number: int  #: of this process, from 0


@dataclasses.dataclass(frozen=True, eq=False)
class ContenderRequest:
    """Everything that a contender needs."""

    name: str
    program: Program
    job: ShardedProgram
    is_reference: bool
    gradient: ShardedProgram | None
    gradient_names: tuple[str, ...]
    gradient_shapes: tuple[tuple[int, ...], ...]
    devices: dev.Devices
    options: Execution  #: its inputs are numpy arrays that fit the program
    process: Process | None = None


class CompileMeasurement(NamedTuple):
    """The results of compiling."""

    compile_s: float
    memory: dict[str, int]  #: see _jax_private.memory_stats
    collectives: tuple[hlo.Collective, ...]
    device_kind: str


class Started(NamedTuple):
    """The outcome of the first execution."""

    finite: bool  #: are all results of this process's devices finite?
    errors: Errors | None  #: None: the results were not compared
    changes: Errors | None = None  #: by nudged inputs, of the unsharded program (``agreement``)


class Certified(NamedTuple):
    """The outcome of the gradient program."""

    errors: Errors | None  #: None: nothing was compared
    failure: str = ""  #: why the program did not run; empty: it did, or there is none
    changes: Errors | None = None  #: as those of ``Started``


class Contender:
    """A plan, or the unsharded program, on its devices."""

    def __init__(self, request: ContenderRequest, devices: Sequence[Any]) -> None:
        self.request, self.devices = request, list(devices)
        self.executable: Executable | None = None
        self.arrays: Sequence[np.ndarray] = []

    def compile(self) -> CompileMeasurement:
        """Compile the program."""
        request = self.request
        self.executable = Executable.of_program(request.job, request.program, self.devices)
        local_devices = [
            device
            for device in self.devices
            if device.process_index == device.client.process_index()
        ]
        kind = (local_devices or self.devices)[0].device_kind
        return CompileMeasurement(
            self.executable.compile_s, self.executable.memory(), self.executable.collectives(), kind
        )

    def start(
        self, non_negative: bool, warmup: int, expected: str | None, keep: str | None
    ) -> Started:
        """Run once, compare or store the results, and warm up.

        The results are compared with those in the file ``expected``, or written to ``keep``.
        """
        request = self.request
        options = request.options
        self.arrays = options.inputs or inputs.draw(
            request.program, options.seed, non_negative=non_negative
        )
        started = self._first(self._executable(), request.program.output_paths, expected, keep)
        if warmup > 1:
            self.batch(warmup - 1)
        return started

    def _first(
        self, executable: Executable, names: Sequence[str], expected: str | None, keep: str | None
    ) -> Started:
        executable.put(self.arrays)
        results = executable.results(executable.step()[1])
        if keep is not None:
            arrays = [np.asarray(array) for array in results]
            unfinished = f"{keep}.part"
            with open(unfinished, "wb") as file:
                pickle.dump(arrays, file, protocol=5)
            os.replace(unfinished, keep)
            return Started(child.all_finite(arrays), None, self._changes(executable, names, arrays))
        if expected is None:
            return Started(True, None)
        with open(expected, "rb") as file:
            expected_results = pickle.load(file)
        errors = map(shards_error, results, expected_results)
        return Started(True, dict(zip(names, errors, strict=True)))

    def _changes(
        self, executable: Executable, names: Sequence[str], results: Sequence[np.ndarray]
    ) -> Errors:
        """The relative changes of results by nudged inputs."""
        executable.release()
        executable.put(agreement.nudged(self.arrays, self.request.options.seed))
        nudged = executable.results(executable.step()[1])
        executable.release()
        return dict(zip(names, map(shards_error, nudged, results), strict=True))

    def _executable(self) -> Executable:
        if self.executable is None:
            raise RuntimeError("not compiled")
        return self.executable

    def batch(self, steps: int) -> tuple[float, ...]:
        """Execute ``steps`` times, and return the seconds of each execution."""
        return self._executable().times_s(self.arrays, steps)

    def certify(self, expected: str | None, keep: str | None) -> Certified:
        """Compile and run the gradient program instead of the program, and compare its results."""
        request = self.request
        if request.gradient is None:
            return Certified(None)
        self._executable().release()
        try:
            shapes, donated = request.gradient_shapes, [False] * len(self.arrays)
            executable = Executable(request.gradient, shapes, donated, self.devices)
            first = self._first(executable, request.gradient_names, expected, keep)
            return Certified(first.errors, changes=first.changes)
        except Exception as error:
            return Certified(None, f"{type(error).__name__}: {str(error).splitlines()[0][:300]}")

    def finish(self) -> int | None:
        """The allocator's peak bytes on the last device; the last command of a contender."""
        return allocator_peak(self.devices[-1])


def shards_error(result: Any, expected: np.ndarray) -> float:
    """``child.relative_error`` over all shards that this process holds, copies included.

    ``result`` is a global JAX array. Errors are relative to the largest magnitude in ``expected``.
    """
    if expected.size == 0:
        return 0.0
    wide_dtype = np.complex128 if np.iscomplexobj(expected) else np.float64
    wide_expected = expected.astype(wide_dtype)
    finite = np.isfinite(wide_expected)
    largest_error = 0.0
    for shard in result.addressable_shards:
        values, is_finite = np.asarray(shard.data).astype(wide_dtype), finite[shard.index]
        if not np.array_equal(np.isfinite(values), is_finite):
            return float("inf")
        if is_finite.any():
            largest_error = max(
                largest_error,
                float(np.max(np.abs(values[is_finite] - wide_expected[shard.index][is_finite]))),
            )
    if not finite.any():
        return float("nan")
    return largest_error / (float(np.max(np.abs(wide_expected[finite]))) or 1.0)


def serve(request: ContenderRequest) -> None:
    """Run in the child: connect, then carry out commands until the parent stops it or ends."""
    import jax

    jax.config.update("jax_enable_x64", True)  # or 64-bit inputs would be cut to 32 bits
    contender = Contender(request, _devices(request))
    # Does not return after ``finish``: if the coordinator ended first, JAX would abort the other
    # processes of the mesh.
    while (command := isolate.next_command()) is not None:
        name, arguments = command
        isolate.report(getattr(contender, name)(**arguments))


def _devices(request: ContenderRequest) -> list[Any]:
    import jax

    process = request.process
    if process is None:
        return dev.attached(request.devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        process.coordinator, process.processes, process.number, initialization_timeout=60
    )
    return list(jax.devices()[: request.devices.count])
