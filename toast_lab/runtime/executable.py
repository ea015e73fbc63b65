"""One annotated program, compiled and ready to run repeatedly on its devices.

Every measurement in a child process uses an ``Executable``: ``child.execute`` runs one after the
other, ``toast_lab.compare`` keeps several and runs them in turns.

Donated arguments stay donated, so that memory is what the real program needs. Each execution then
consumes them: they are put on the devices again before the next one, outside the timed section.

The devices may belong to several processes (``jax.distributed``): every process then makes the same
calls, and holds and times only its own shards.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from toast_lab.errors import RunFailed
from toast_lab.ir.host_memory import PINNED_HOST
from toast_lab.ir.program import NO_HOST_MEMORY, HostMemory, Program
from toast_lab.runtime import _jax_private, compiler_bugs, hlo
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec


@dataclasses.dataclass(frozen=True)
class ShardedProgram:
    """One sharded program to compile and run."""

    text: str  #: annotated StableHLO
    mesh: Mesh
    argument_specs: tuple[Spec, ...]
    result_specs: tuple[Spec, ...]
    host: HostMemory = NO_HOST_MEMORY  #: arguments and results in host memory


def whole_job(
    program: Program, text: str, result_shapes: Sequence[tuple[int, ...]] | None = None
) -> ShardedProgram:
    """The job that runs ``text`` unsharded, on one device.

    ``text`` has the arguments of ``program`` and, unless ``result_shapes`` are given, its results.
    """
    argument_shapes = map(program.dims, range(program.n_arguments))
    # Other results than the program's, such as its gradients, are on the device
    results = program.host.results if result_shapes is None else ()
    result_shapes = output_shapes(program) if result_shapes is None else result_shapes
    return ShardedProgram(
        text,
        Mesh(("one",), (1,)),
        argument_specs=_whole_specs(argument_shapes),
        result_specs=_whole_specs(result_shapes),
        host=program.host._replace(results=results),
    )


def _whole_specs(shapes: Iterable[tuple[int, ...]]) -> tuple[Spec, ...]:
    return tuple(((),) * len(shape) for shape in shapes)


def output_shapes(program: Program) -> list[tuple[int, ...]]:
    """Global shapes of the results."""
    return [program.dims(int(value)) for value in program.outputs]


def donated_arguments(program: Program) -> list[bool]:
    """For each argument, may results reuse its memory?"""
    return [bool(donated) for donated in program.donated[: program.n_arguments]]


class Executable:
    """A compiled job; ``compile_s`` is how long compilation took."""

    def __init__(
        self,
        job: ShardedProgram,
        result_shapes: Sequence[tuple[int, ...]],
        donated: Sequence[bool],
        devices: Sequence[Any],
        program: Program | None = None,
    ) -> None:
        """Compile ``job``; error messages name ops of ``program``, if given."""
        import jax

        self.program = program
        self.job, self.result_shapes, self.donated = job, result_shapes, donated
        self.mesh = jax.sharding.Mesh(np.asarray(devices).reshape(job.mesh.sizes), job.mesh.axes)
        started = time.perf_counter()
        with self._explained():
            self.loaded = _jax_private.compile_module(job.text, devices)
        self.compile_s = time.perf_counter() - started
        self._put: list[Any] = [None] * len(donated)

    @classmethod
    def of_program(
        cls, job: ShardedProgram, program: Program, devices: Sequence[Any]
    ) -> Executable:
        """Compile ``job`` with the result shapes and donations of ``program``."""
        return cls(
            job, output_shapes(program), donated_arguments(program), devices, program=program
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.program and (cause := compiler_bugs.explain(str(error), self.program)):
                raise RunFailed(cause) from error
            raise

    def _sharding(self, spec: Spec, on_host: bool) -> Any:
        from jax.sharding import NamedSharding

        from toast_lab.lowering.specs import to_partition_spec

        memory = PINNED_HOST if on_host else None
        return NamedSharding(self.mesh, to_partition_spec(spec), memory_kind=memory)

    def put(self, arrays: Sequence[np.ndarray]) -> None:
        """Put arrays on the devices, except those that are still there."""
        import jax

        for i, array in enumerate(arrays):
            on_device = self._put[i]
            if on_device is not None and not self.donated[i] and not on_device.is_deleted():
                continue
            self._put[i] = on_device = None  # frees it before the copy is made
            sharding = self._sharding(self.job.argument_specs[i], i in self.job.host.arguments)
            if sharding.is_fully_addressable:
                self._put[i] = jax.device_put(array, sharding)
            else:
                self._put[i] = jax.make_array_from_callback(
                    array.shape, sharding, array.__getitem__
                )
        jax.block_until_ready(self._put)

    def step(self) -> tuple[float, list[list[Any]]]:
        """Run once on the arguments that were ``put``.

        Gives the seconds until every result is ready, and the results as single-device arrays.

        Raises:
            RunFailed: a known fault of the compiler (``compiler_bugs``).
        """
        import jax

        started = time.perf_counter()
        with self._explained():
            outputs = _jax_private.execute(self.loaded, self._put)
            jax.block_until_ready(outputs)
        return time.perf_counter() - started, outputs

    def times_s(
        self,
        arrays: Sequence[np.ndarray],
        repeats: int,
        warmup: int = 0,
        *,
        on_step: Callable[[int, int], None] | None = None,
        on_results: Callable[[list[np.ndarray]], None] | None = None,
    ) -> tuple[float, ...]:
        """Warm up, then run on ``arrays``; gives the seconds of each timed execution.

        Args:
            arrays: one global array for each argument.
            repeats: timed executions.
            warmup: untimed executions before them.
            on_step: called before each execution with its number, from 1 on, and the total.
            on_results: receives the global results of the first execution.
        """
        times = []
        total = warmup + repeats
        for run_number in range(1, total + 1):
            if on_step is not None:
                on_step(run_number, total)
            self.put(arrays)
            time_s, outputs = self.step()
            times.append(time_s)
            if run_number == 1 and on_results is not None:
                on_results([np.asarray(array) for array in self.results(outputs)])
            del outputs
        return tuple(times[warmup:])

    def results(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of ``step`` as global JAX arrays."""
        import jax

        return [
            jax.make_array_from_single_device_arrays(
                shape, self._sharding(spec, i in self.job.host.results), list(shards)
            )
            for i, (shape, spec, shards) in enumerate(
                zip(self.result_shapes, self.job.result_specs, outputs, strict=True)
            )
        ]

    def release(self) -> None:
        """Free the arguments on the devices."""
        self._put = [None] * len(self._put)

    def memory(self) -> dict[str, int]:
        """Bytes on one device by use, see ``_jax_private.memory_stats``."""
        return _jax_private.memory_stats(self.loaded)

    def collectives(self) -> tuple[hlo.Collective, ...]:
        """Collectives of the compiled program, each listed once however often a loop runs it."""
        sizes = dict(zip(self.job.mesh.axes, self.job.mesh.sizes, strict=True))
        return tuple(hlo.collectives(_jax_private.optimised_hlo(self.loaded), sizes))


def allocator_peak(device: Any) -> int | None:
    """The most bytes that a device's allocator has held since the process began; None on CPU."""
    stats = device.memory_stats() or {} if device.platform != "cpu" else {}
    peak = stats.get("peak_bytes_in_use")
    return None if peak is None else int(peak)
