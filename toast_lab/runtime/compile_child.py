"""What the child process of ``compile`` does.

It compiles one annotated module and says what came out, as plain data.

Being refused for lack of memory is an outcome and not an error.  What the compiler writes to its
standard error while it compiles is read too: that is the only place where it says that it gave up
on an efficient reshard.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.runtime import (
    _jax_private,
    compiler_messages,
    gpu_compiler,
    gpu_times,
    hlo,
    hlo_text,
)
from toast_lab.runtime import topologies as top
from toast_lab.runtime.child import Progress
from toast_lab.sharding.mesh import Mesh


@dataclasses.dataclass(frozen=True)
class Request:
    """One module to compile."""

    text: str  #: annotated StableHLO with located ops
    mesh: Mesh
    topology: top.Topology
    #: rounds of our loops by the number of any of their ops, for texts that do not tell
    rounds: dict[int, float]
    compiler_folder: str = ""  #: put first on the path before JAX starts; "": nothing is


class Report(NamedTuple):
    """What came of it."""

    device_kind: str
    compile_s: float
    memory: dict[str, int] | None  #: see _jax_private.memory_stats; None: refused
    refusal: compiler_messages.Refusal | None
    collectives: tuple[hlo.Collective, ...]
    #: estimated cycles of one step by op of ours, -1: unknown; empty where there are none
    cycles: dict[int, float]
    #: (op of ours or -1, rounds) of every loop left in the program
    loops: tuple[tuple[int, float], ...]
    remats: tuple[compiler_messages.Rematerialised, ...]
    times: gpu_times.CompilerTimes | None = None  #: the GPU compiler's own


def compile_one(request: Request) -> Report:
    """Compile ``request``.

    Raises:
        InvalidProblem: libtpu is missing, or too few devices are attached.
    """
    isolate.report(Progress("loading the compiler", 0.0))
    if request.compiler_folder:
        sys.path.insert(0, request.compiler_folder)
    devices = top.devices(request.topology, request.mesh)
    isolate.report(Progress(f"compiling for {request.topology}", 0.1))
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
    remats = compiler_messages.rematerialised(log())
    kind = str(devices[0].device_kind)
    if executable is None:
        return Report(kind, compile_s, None, refusal, (), {}, (), remats)
    isolate.report(Progress("reading the compiled program", 0.9))
    text = _jax_private.optimised_hlo(executable)
    module = hlo_text.parse(text)
    rounds = _rounds(request.rounds)
    sizes = dict(zip(request.mesh.axes, request.mesh.sizes, strict=True))
    return Report(
        kind,
        compile_s,
        _jax_private.memory_stats(executable),
        None,
        tuple(hlo.collectives_of(module, hlo.source_lines(text), sizes, rounds)),
        cycles(module, rounds),
        tuple(loops(module, rounds)),
        remats,
        _times(request.topology, module, rounds),
    )


def _compile(request: Request, devices: list[Any]) -> Any:
    """Compile, with the compiler's own times where it has what it needs for them."""
    gpu = request.topology.gpu
    if gpu is None or gpu.architecture not in gpu_times.MEASURED:
        return _jax_private.compile_module(request.text, devices)
    try:
        flags = {gpu_compiler.TIMES_FLAG: True}
        return _jax_private.compile_module(request.text, devices, flags)
    except Exception as error:
        # Another version's tables: a program without times is better than none.
        if "Cannot find key" not in str(error):
            raise
        return _jax_private.compile_module(request.text, devices)


def _times(
    topology: top.Topology,
    module: hlo_text.Module,
    rounds: Callable[[hlo_text.Instruction], float | None],
) -> gpu_times.CompilerTimes | None:
    if topology.gpu is None:
        return None
    architecture = topology.gpu.architecture
    return gpu_times.read(module, architecture, topology.count, topology.hosts, rounds)


def _rounds(ours: dict[int, float]) -> Callable[[hlo_text.Instruction], float | None]:
    return lambda instruction: ours.get(hlo.op_of(instruction))


def cycles(
    module: hlo_text.Module, rounds: Callable[[hlo_text.Instruction], float | None] | None = None
) -> dict[int, float]:
    """Estimated cycles of one step by op of ours, loops by their rounds.

    Op -1 stands for instructions that name none.

    TPU programs carry ``estimated_cycles`` on what runs on the core: fusions, matrix products,
    copies.  Collectives, asynchronous copies and custom fusions (gathers, scatters, sorts) have
    none.
    """
    found: dict[int, float] = {}
    for here in hlo_text.executed(module, rounds):
        if here.fused:  # the fusion's own estimate covers what is inside
            continue
        for instruction in here.computation.instructions:
            text = instruction.field("estimated_cycles")
            if text and int(text) > 0:
                op = hlo.op_of(instruction)
                if op < 0 and instruction.opcode == "fusion":
                    op = hlo.op_inside(module, instruction)
                found[op] = found.get(op, 0.0) + int(text) * here.times
    return found


def loops(
    module: hlo_text.Module, rounds: Callable[[hlo_text.Instruction], float | None] | None = None
) -> Iterator[tuple[int, float]]:
    """(op of ours or -1, rounds) of every loop that runs; 1 round where nobody knows."""
    for here in hlo_text.executed(module, rounds):
        for instruction in here.computation.instructions:
            if instruction.opcode == "while":
                n = hlo_text.trip_count(module, here.computation, instruction)
                if n is None and rounds is not None:
                    n = rounds(instruction)
                yield hlo.op_of(instruction), n or 1.0


@contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """Collect what native code writes to standard error.

    In a child of ours that is a file, which is read again; so what a crashing compiler says last
    stays there, for the parent to report.  Anything else is taken over meanwhile, and what was
    written is passed on at the end.
    """
    sys.stderr.flush()
    text: list[bytes] = []

    def read() -> str:
        return b"".join(text).decode(errors="replace")

    if _can_be_read_again(2):
        start = os.fstat(2).st_size
        try:
            yield read
        finally:
            text.append(os.pread(2, os.fstat(2).st_size - start, start))
        return
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield read
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            text.append(log.read())
            _pass_on(text[0])


def _can_be_read_again(descriptor: int) -> bool:
    """Is this a file that is open for reading too?"""
    readable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    return readable and stat.S_ISREG(os.fstat(descriptor).st_mode)


def _pass_on(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


def versions() -> dict[str, Any]:
    """Versions that decide what a compile gives; importing libtpu is not needed for its own."""
    import importlib.metadata as metadata

    found = {}
    for package in ("jax", "jaxlib", "libtpu"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found
