"""What the child process of ``compile`` does.

It compiles one annotated module and says what came out, as plain data.

Being refused for lack of memory is an outcome and not an error.  What the compiler writes to its
standard error while it compiles is read too: that is the only place where it says that it gave up
on an efficient reshard.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.runtime import _jax_private, compiler_messages, hlo, hlo_text
from toast_lab.runtime import topologies as top
from toast_lab.runtime.child import RunProgress
from toast_lab.sharding.mesh import Mesh


class CompileReport(NamedTuple):
    """The outcome of a compilation."""

    device_kind: str
    compile_s: float
    refusal: compiler_messages.Refusal | None
    remats: tuple[compiler_messages.Rematerialised, ...]
    #: estimated cycles of one step by op of ours, -1: unknown; empty where there are none
    cycles: dict[int, float]
    memory: dict[str, int] | None = None  #: see _jax_private.memory_stats; None: refused
    collectives: tuple[hlo.Collective, ...] = ()
    #: (op of ours or -1, rounds) of every loop left in the program
    loops: tuple[tuple[int, float], ...] = ()


def compile_one(
    stablehlo: str, mesh: Mesh, topology: top.Topology, rounds_by_op: dict[int, float]
) -> CompileReport:
    """Compile one module.

    Args:
        stablehlo: annotated, with located ops.
        mesh: of the plan.
        topology: the devices to compile for.
        rounds_by_op: rounds of our loops by the number of any of their ops, for compiled texts that
            do not tell.

    Raises:
        InvalidProblem: libtpu is missing, or too few devices are attached.
    """
    isolate.report(RunProgress("loading the compiler", 0.0))
    devices = top.devices(topology, mesh)
    isolate.report(RunProgress(f"compiling for {topology}", 0.1))
    started = time.perf_counter()
    refusal, executable = None, None
    with _standard_error() as log:
        try:
            executable = _jax_private.compile_module(stablehlo, devices)
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
    sizes = dict(zip(mesh.axes, mesh.sizes, strict=True))

    def rounds(instruction: hlo_text.Instruction) -> float | None:
        return rounds_by_op.get(hlo.op_of(instruction))

    return report._replace(
        memory=_jax_private.memory_stats(executable),
        collectives=tuple(hlo.collectives_of(module, hlo.source_lines(hlo_source), sizes, rounds)),
        cycles=cycles(module, rounds),
        loops=tuple(loops(module, rounds)),
    )


def cycles(module: hlo_text.Module, rounds: hlo_text.Rounds = hlo_text.unknown) -> dict[int, float]:
    """Estimated cycles of one step by op of ours, loops by their rounds.

    Op -1 stands for instructions that name none.

    TPU programs carry ``estimated_cycles`` on what runs on the core: fusions, matrix products,
    copies.  Collectives, asynchronous copies and custom fusions (gathers, scatters, sorts) have
    none.
    """
    cycles_by_op: dict[int, float] = {}
    for place in hlo_text.executed(module, rounds):
        if place.fused:  # the fusion's own estimate covers what is inside
            continue
        for instruction in place.computation.instructions:
            estimate = instruction.field("estimated_cycles")
            if estimate and int(estimate) > 0:
                op = hlo.op_of(instruction)
                if op < 0 and instruction.opcode == "fusion":
                    op = _op_inside(module, instruction)
                cycles_by_op[op] = cycles_by_op.get(op, 0.0) + int(estimate) * place.times
    return cycles_by_op


def _op_inside(module: hlo_text.Module, fusion: hlo_text.Instruction) -> int:
    """The op that most instructions of a fusion belong to; -1 if none says."""
    inside = module.computations.get(fusion.called("calls"))
    ops = [
        op
        for instruction in (inside.instructions if inside else ())
        if (op := hlo.op_of(instruction)) >= 0
    ]
    return max(ops, key=lambda op: (ops.count(op), op)) if ops else -1


def loops(
    module: hlo_text.Module, rounds: hlo_text.Rounds = hlo_text.unknown
) -> Iterator[tuple[int, float]]:
    """(op of ours or -1, rounds) of every loop that runs; 1 round where nobody knows."""
    for place in hlo_text.executed(module, rounds):
        for instruction in place.computation.instructions:
            if instruction.opcode == "while":
                count = hlo_text.loop_rounds(module, place.computation, instruction, rounds)
                yield hlo.op_of(instruction), count


@contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """Collect what native code writes to standard error; it is passed on at the end."""
    sys.stderr.flush()
    saved = os.dup(2)
    written = b""
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield lambda: written.decode(errors="replace")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            log.seek(0)
            written = log.read()
            _pass_on(written)


def _pass_on(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


def versions(packages: Sequence[str] = ("jax", "jaxlib", "libtpu")) -> dict[str, Any]:
    """Versions of packages, "" for those that are not installed; nothing is imported.

    By default those that decide what a compile gives.
    """
    by_package = {}
    for package in packages:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = ""
    return by_package
