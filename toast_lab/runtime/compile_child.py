"""The work of the child process of ``compile``.

It compiles one annotated module and reports the outcome as plain data.

A refusal for lack of memory is an outcome, not an error. The compiler's standard error is read too:
only there does it say that it gave up on an efficient reshard.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata as metadata
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab import fork_server, isolate
from toast_lab.runtime import (
    _jax_private,
    compiler_messages,
    gpu_compiler,
    gpu_times,
    hlo,
    hlo_text,
    memory_report,
    schedule_steps,
    schedule_text,
)
from toast_lab.runtime import topologies as top
from toast_lab.runtime.child import RunProgress
from toast_lab.runtime.gpu_fusions import DeviceMemory
from toast_lab.runtime.gpu_target import GpuTarget
from toast_lab.runtime.schedule import ScheduleStep
from toast_lab.sharding.mesh import Mesh

#: Runs once, before the children that execute this module are forked (``fork_server``).
before_fork = fork_server.import_jax


@dataclasses.dataclass(frozen=True)
class CompileRequest:
    """One module to compile."""

    stablehlo: str  #: annotated, with located ops
    mesh: Mesh
    topology: top.Topology
    #: rounds of loops by the pseudo-ops that enter them, for texts that do not state them
    rounds_by_op: dict[int, float]
    compiler_folder: str = ""  #: put first on ``sys.path`` before JAX starts, unless ""
    dump_folder: str = ""  #: where the compiler writes its schedule and memory report, unless ""
    #: arguments and results whose sharding the compiler chooses; None: the text has them all
    left_open: _jax_private.LeftOpen | None = None


class CompileReport(NamedTuple):
    """The outcome of a compilation."""

    device_kind: str
    compile_s: float
    refusal: compiler_messages.Refusal | None
    remats: tuple[compiler_messages.Rematerialised, ...]
    #: estimated cycles of one step by op index, -1: unknown; empty without estimates
    cycles: dict[int, float]
    memory: dict[str, int] | None = None  #: see ``_memory``; None: refused
    collectives: tuple[hlo.Collective, ...] = ()
    #: (op index or -1, rounds) of every loop left in the program
    loops: tuple[tuple[int, float], ...] = ()
    times: gpu_times.CompilerTimes | None = None  #: the GPU compiler's own times
    schedule: tuple[ScheduleStep, ...] | None = None  #: steps of the compiler's schedule
    schedule_note: str = ""  #: why there is no schedule, or where it comes from


def compile_one(request: CompileRequest) -> CompileReport:
    """Compile one module.

    Raises:
        InvalidProblem: a compiler is missing, or too few devices are attached.
    """
    isolate.report(RunProgress("loading the compiler", 0.0))
    if request.compiler_folder:
        sys.path.insert(0, request.compiler_folder)
        _jax_private.set_assembler_folder(gpu_compiler.assembler_folder(request.compiler_folder))
    devices = top.devices(request.topology, request.mesh)
    isolate.report(RunProgress(f"compiling for {request.topology}", 0.1))
    started = time.perf_counter()
    refusal, executable = None, None
    with _standard_error() as log:
        try:
            executable = _compile(request, devices)
        except Exception as error:
            refusal = compiler_messages.refusal(str(error))
            if refusal is None:
                raise
    compile_s = time.perf_counter() - started
    report = CompileReport(
        device_kind=str(devices[0].device_kind),
        compile_s=compile_s,
        refusal=refusal,
        remats=compiler_messages.rematerialised(log()),
        cycles={},
    )
    if executable is None:
        return report
    isolate.report(RunProgress("reading the compiled program", 0.9))
    hlo_source = _jax_private.optimised_hlo(executable)
    module = hlo_text.parse(hlo_source)
    sizes = dict(zip(request.mesh.axes, request.mesh.sizes, strict=True))

    def rounds(instruction: hlo_text.Instruction) -> float | None:
        return request.rounds_by_op.get(hlo.op_of(instruction))

    steps, schedule_note = _schedule(request, module, rounds)
    return report._replace(
        schedule=steps,
        schedule_note=schedule_note,
        memory=_memory(request, executable),
        collectives=tuple(hlo.collectives_of(module, hlo.source_lines(hlo_source), sizes, rounds)),
        cycles=cycles(module, rounds),
        loops=tuple(loops(module, rounds)),
        times=_times(request.topology, module, rounds),
    )


def _compile(request: CompileRequest, devices: list[Any]) -> Any:
    """Compile; on GPUs that XLA has tables for, with the compiler's own times."""
    gpu = request.topology.gpu
    if gpu is None or gpu.architecture not in gpu_times.MEASURED:
        return _jax_private.compile_module(request.stablehlo, devices, left_open=request.left_open)
    flags: dict[str, Any] = dict.fromkeys(
        (gpu_compiler.TIMES_FLAG, *gpu_compiler.SCHEDULER_FLAGS), True
    )
    if request.dump_folder:
        flags |= {"xla_dump_to": request.dump_folder} | dict.fromkeys(top.DUMP_FLAGS, True)
    try:
        return _jax_private.compile_module(
            request.stablehlo, devices, flags, left_open=request.left_open
        )
    except Exception as error:
        # Another version of XLA may lack a table; a program without times is better than none
        if "Cannot find key" not in str(error):
            raise
        return _jax_private.compile_module(request.stablehlo, devices, left_open=request.left_open)


def _memory(request: CompileRequest, executable: Any) -> dict[str, int]:
    """Bytes that the program holds by use; the peak is that of the memory report, if dumped."""
    sizes = _jax_private.memory_stats(executable)
    assigned = memory_report.assigned_bytes(request.dump_folder)
    return sizes if assigned is None else {**sizes, "peak": assigned}


def _schedule(
    request: CompileRequest, module: hlo_text.Module, rounds: hlo_text.Rounds
) -> tuple[tuple[ScheduleStep, ...] | None, str]:
    """The steps of the compiler's schedule, or None and why; unreadable files raise no error."""
    topology, gpu = request.topology, request.topology.gpu
    mesh = dict(zip(request.mesh.axes, request.mesh.sizes, strict=True))
    if topology.platform != "tpu" and (gpu is None or gpu.architecture not in gpu_times.MEASURED):
        subject = f"{gpu.name}, for which it has no tables" if gpu is not None else str(topology)
        return None, f"XLA gives no schedule for {subject}"
    clocks = (
        schedule_steps.gpu_clocks(
            module,
            gpu.architecture,
            topology.count,
            hosts=topology.hosts,
            memory=_memory_of(gpu),
        )
        if gpu is not None
        else schedule_steps.tpu_clocks(module, topology.clock_hz or 1.0)
    )
    files = [*Path(request.dump_folder).glob("*.schedule.txt")] if request.dump_folder else []
    if not files:
        if not schedule_steps.is_asynchronous(module):
            steps = schedule_steps.in_order(module, mesh, clocks, rounds)
            return steps, "nothing is asynchronous: the schedule is the program's own order"
        return None, f"the compiler wrote no schedule for {topology}"
    try:
        # There is one file for each module: the largest is the program, the others are helpers
        with max(files, key=lambda file: file.stat().st_size).open(errors="replace") as file:
            scheduled, reason = schedule_text.parse(file.read())
    except OSError as error:
        return None, f"the compiler's schedule cannot be read: {error.strerror}"
    if scheduled is None:
        return None, reason
    return schedule_steps.steps_of(scheduled, module, mesh, clocks=clocks, rounds=rounds), ""


def _times(
    topology: top.Topology, module: hlo_text.Module, rounds: hlo_text.Rounds
) -> gpu_times.CompilerTimes | None:
    if topology.gpu is None:
        return None
    return gpu_times.read(
        module,
        topology.gpu.architecture,
        topology.count,
        hosts=topology.hosts,
        rounds=rounds,
        memory=_memory_of(topology.gpu),
    )


def _memory_of(gpu: GpuTarget) -> DeviceMemory:
    return DeviceMemory(gpu.reached_bytes_per_s, gpu.l2_bytes)


def cycles(module: hlo_text.Module, rounds: hlo_text.Rounds = hlo_text.unknown) -> dict[int, float]:
    """Estimated cycles of one step by op index; loop bodies count once for each round.

    Op -1 stands for instructions that name no op of the program.

    TPU programs carry ``estimated_cycles`` on instructions that run on the core: fusions, matrix
    products, copies. Collectives, asynchronous copies and custom fusions (gathers, scatters, sorts)
    have none.
    """
    cycles_by_op: dict[int, float] = {}
    for place in hlo_text.executed(module, rounds):
        if place.fused:  # the fusion's own estimate covers its body
            continue
        for instruction in place.computation.instructions:
            estimate = hlo.estimated_cycles(instruction)
            if estimate:
                op = hlo.op_or_inside(module, instruction)
                cycles_by_op[op] = cycles_by_op.get(op, 0.0) + estimate * place.times
    return cycles_by_op


def loops(
    module: hlo_text.Module, rounds: hlo_text.Rounds = hlo_text.unknown
) -> Iterator[tuple[int, float]]:
    """(op index or -1, rounds) of every loop that runs; unknown rounds count as 1."""
    for place in hlo_text.executed(module, rounds):
        for instruction in place.computation.instructions:
            if instruction.opcode == "while":
                count = hlo_text.loop_rounds(module, place.computation, instruction, rounds)
                yield hlo.op_of(instruction), count


@contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """Collect what native code writes to standard error.

    In a child that ``isolate`` started, standard error is a file, which is read back: the last
    words of a crashing compiler stay in it for the parent to report. Anything else is redirected
    meanwhile, and the output is passed on at the end.
    """
    sys.stderr.flush()
    written = b""
    readable = fcntl.fcntl(2, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    if readable and stat.S_ISREG(os.fstat(2).st_mode):
        start = os.fstat(2).st_size
        try:
            yield lambda: written.decode(errors="replace")
        finally:
            written = os.pread(2, os.fstat(2).st_size - start, start)
        return
    saved = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield lambda: written.decode(errors="replace")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            log.seek(0)
            unsent = written = log.read()
            while unsent:
                unsent = unsent[os.write(2, unsent) :]


def versions(packages: Sequence[str] = ("jax", "jaxlib", "libtpu")) -> dict[str, Any]:
    """Versions of packages, "" for those that are not installed; nothing is imported.

    The default packages are those that affect the result of a compilation.
    """
    by_package = {}
    for package in packages:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = ""
    return by_package
