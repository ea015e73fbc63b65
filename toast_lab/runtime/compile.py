"""Compile a plan without running it, so that the compiler can judge its price.

    compile_plan(model, plan, "tpu:v5e:4x4")   the real TPU compiler, with no TPU attached
    compile_plan(model, plan, "gpu:h100:8")    XLA's compiler for GPUs, with no GPU and no CUDA
    compile_plan(model, plan, "cpu:8")         virtual devices of this machine's processor
    compile_plan(model, plan, "gpu")           attached GPUs

The module is the annotated one that ``run`` executes. It is compiled in a child process, and the
result is kept: the same module for the same topology, with the same versions and flags, is compiled
only once (see ``compiled_store``). A program that does not fit is a result (``fits`` is False), not
an error.

Compiling for TPUs opens no TPU, so it is exempt from libtpu's limit of one process at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab import isolate
from toast_lab.errors import InvalidProblem, StoreError, join_offenders
from toast_lab.files import PathLike
from toast_lab.ir.rounds import unknown_loops
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.needed_constraints import needed_constraints
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.collectives import named_time_s
from toast_lab.machines.permutes import permute_time_s
from toast_lab.machines.topology import lay_out
from toast_lab.runtime import compile_child, gpu_compiler, gpu_target, schedule
from toast_lab.runtime import topologies as top
from toast_lab.runtime._jax_private import LeftOpen
from toast_lab.runtime.child import RunProgress
from toast_lab.runtime.compiled import FORMAT, Compiled
from toast_lab.runtime.compiled_store import CompiledStore
from toast_lab.sharding.carried import carry
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.ir.program import Program

#: Version, by platform, of how plans are written and compiled texts are read: plans whose results
#: are of an older version are compiled again.
_READINGS = {"tpu": 16, "gpu": 16, "cpu": 14}
_CONSTRAINED_EVERYWHERE = (
    "every op has a sharding constraint, because propagation crashed or took too long when asked "
    "which are needed: XLA simplifies less, and the program may be slower than necessary"
)
_LOCATION = re.compile(r' loc\((?:#loc\d*|"(?:[^"\\]|\\.)*"(?:\([^()]*\))?|unknown)\)')
_LOCATION_LINE = re.compile(r"^#loc.*\n", re.MULTILINE)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TPU_MEGACORE")
_ORDERS = {
    "tpu": "jax.experimental.mesh_utils.create_device_mesh",
    "cpu": "JAX's order",
    "gpu": "JAX's order",
}


def compile_plan(
    model: Model,
    plan: ShardingPlan,
    topology: str = "tpu:v5e:4x4",
    *,
    time_limit_s: float = 600.0,
    on_progress: Callable[[RunProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    store: bool | PathLike = True,
    memory_limit_bytes: int | None = None,
) -> Compiled:
    """Compile ``plan`` ahead of time.

    Args:
        model: the model that the plan shards.
        plan: the plan to compile, from a search or ``Plan.from_actions``; its mesh has as many
            devices as the topology.
        topology: "tpu:v5e:4x4" (see ``topologies.known``), "gpu:h100:8" or "gpu:a100:2x8" (hosts x
            GPUs in each; see ``gpu_target`` for GPUs of your own), "cpu:8" or "gpu".
        time_limit_s: limit in seconds for the child process.
        on_progress: receives ``RunProgress`` (stage, fraction).
        cancel: polled; True stops the child and raises ``isolate.Cancelled``.
        store: where earlier results are looked up and this one is kept: True is the default place
            (see ``compiled_store``), a path names another file, and False compiles anew and keeps
            nothing.
        memory_limit_bytes: limit on the address space of the child.

    Raises:
        InvalidPlan: the plan belongs to another program.
        InvalidProblem: there is no such topology, it has another number of devices than the mesh,
            or libtpu or the compiler for GPUs is missing.
        RunFailed: the compiler crashed, hung or refused the program for a reason other than its
            memory.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> compiled = tl.compile(model, plan, topology="cpu:4", store=False)
        >>> compiled.fits, compiled.bytes_by_kind()
        (True, {'all_reduce': 2048.0})
    """
    wanted = top.parse(topology, plan.mesh)
    model, plan, carried_notes = carry(model, plan, wanted.platform)

    def write() -> tuple[str, tuple[str, ...]]:
        if on_progress is not None:
            on_progress(RunProgress("finding the constraints that it needs", 0.0))
        needed = needed_constraints(model, plan, cancel=cancel)
        text = annotate(model, plan, located=True, constrained=needed, platform=wanted.platform)
        return text, () if needed is not None else (_CONSTRAINED_EVERYWHERE,)

    compiled = _kept_or_compiled(
        model.name,
        plan,
        wanted,
        annotate(model, plan, located=True),
        write=write,
        assumed_rounds=[loop.rounds for loop in unknown_loops(plan.program)],
        store=store,
        time_limit_s=time_limit_s,
        on_event=on_progress,
        cancel=cancel,
        memory_limit_bytes=memory_limit_bytes,
    )
    return dataclasses.replace(compiled, notes=(*carried_notes, *compiled.notes))


def compile_written(
    model: Model,
    plan: ShardingPlan,
    stablehlo: str,
    topology: str,
    *,
    left_open: LeftOpen,
    time_limit_s: float = 600.0,
    cancel: Callable[[], bool] | None = None,
    store: bool | PathLike = True,
) -> Compiled:
    """Compile a program with the user's own annotations instead of a plan's.

    Args:
        model: the model of the program.
        plan: what the annotations mean as a plan; the result is said to be compiled from it.
        stablehlo: the annotated text, with located ops.
        topology: as for ``compile_plan``, which documents the further arguments and errors.
        left_open: arguments and results whose sharding the compiler chooses.
        time_limit_s: limit in seconds for the child process.
        cancel: polled; True stops the child.
        store: as for ``compile_plan``.
    """
    return _kept_or_compiled(
        model.name,
        plan,
        top.parse(topology, plan.mesh),
        stablehlo,
        write=lambda: (stablehlo, ()),
        left_open=left_open,
        store=store,
        time_limit_s=time_limit_s,
        cancel=cancel,
    )


def _kept_or_compiled(
    name: str,
    plan: ShardingPlan,
    wanted: top.Topology,
    text: str,
    write: Callable[[], tuple[str, tuple[str, ...]]],
    *,
    left_open: LeftOpen | None = None,
    assumed_rounds: Sequence[float] = (),
    store: bool | PathLike,
    **limits: Any,
) -> Compiled:
    """The result that is kept of a text, or else a new one, which is kept then.

    ``text`` identifies the one that ``write`` gives to the compiler, with notes on the result.
    ``limits`` are those of ``isolate.run_in_child``.
    """
    versions, flags = compile_child.versions(), _flags()
    compiler = check_compiler(wanted)
    if compiler is not None:
        _check_calls(plan.program, text, wanted)
        versions, flags = {**versions, **compiler.versions}, gpu_compiler.recorded_flags()
    key_text = text if left_open is None else f"{text} {left_open}"
    key = _key(key_text, wanted, versions, flags, assumed_rounds=assumed_rounds)
    path = None if isinstance(store, bool) else store
    if store is not False:
        # A store that fails costs no more than another compilation
        with contextlib.suppress(StoreError), CompiledStore(path) as results:
            if (kept := results.find(key)) is not None:
                # Different plans can have the same annotated text
                kept = located(kept, plan.program)
                program = plan.program.digest()
                return dataclasses.replace(kept, program=program, plan_key=plan.key, cached=True)
    stablehlo, notes = write()
    # This process owns the folder, so it is deleted even if the child dies
    with tempfile.TemporaryDirectory(prefix="toast-lab-schedule-") as dump_folder:
        report = isolate.run_in_child(
            "toast_lab.runtime.compile_child:compile_one",
            compile_child.CompileRequest(
                stablehlo=stablehlo,
                mesh=plan.mesh,
                topology=wanted,
                rounds_by_op=rounds_of(plan.program),
                compiler_folder=compiler.folder if compiler is not None else "",
                dump_folder=dump_folder,
                left_open=left_open,
            ),
            env=top.environment(wanted, dump_folder),
            activity=f"compiling {name} for {wanted}",
            **limits,
        )
    compiled = _result(plan, wanted, report, versions=versions, flags=flags)
    compiled = dataclasses.replace(compiled, notes=(*compiled.notes, *notes))
    if store is not False:
        try:
            with CompiledStore(path) as results:
                results.keep(key, compiled, name)
        except StoreError as error:
            compiled = dataclasses.replace(compiled, not_kept=str(error))
    return located(compiled, plan.program)


def check_compiler(wanted: top.Topology) -> gpu_compiler.GpuCompiler | None:
    """Raise InvalidProblem if the compiler for these devices is not installed.

    Gives the location of the compiler if it is for GPUs that need not be attached, else None.
    """
    if wanted.gpu is not None:
        compiler = gpu_compiler.find()
        gpu_compiler.check(compiler, wanted.gpu)
        return compiler
    if wanted.platform == "tpu" and not compile_child.versions()["libtpu"]:
        raise InvalidProblem(
            f"compiling for {wanted} needs libtpu, which is not installed (no TPU has to be "
            'attached). Install it with pip install "toast-lab[tpu]", or pip install "jax[tpu]".'
        )
    return None


def _check_calls(program: Program, stablehlo: str, wanted: top.Topology) -> None:
    """Raise InvalidProblem if the program calls LAPACK, which only CPUs have."""
    routines = sorted({*re.findall(r"custom_call @(lapack_\w+)", stablehlo)})
    if not routines:
        return
    sources = [program.where(op) for op in program.ops() if program.kind[op] == "custom_call"]
    raise InvalidProblem(
        f"{program.name} cannot be compiled for {wanted}: it calls {', '.join(routines)}, "
        "linear algebra of CPUs, which JAX uses when it traces without a GPU. They are called "
        "at:\n"
        f'{join_offenders(dict.fromkeys(sources))}\nCompile it for "cpu:{wanted.count}", or remove '
        "these steps from the function"
    )


def reading_of(topology: str) -> int:
    """Version of how plans for these devices are written and their compiled texts are read."""
    return _READINGS[topology.partition(":")[0]]


def _flags() -> dict[str, str]:
    return {name: os.environ[name] for name in _FLAGS if os.environ.get(name)}


def _key(
    stablehlo: str,
    topology: top.Topology,
    versions: Mapping[str, str],
    flags: Mapping[str, str],
    *,
    assumed_rounds: Sequence[float] = (),
) -> str:
    parts = [
        FORMAT,
        reading_of(str(topology)),
        without_locations(stablehlo),
        # A described GPU is identified by its description, not by the name of its file
        str(topology) if topology.gpu is None else [str(topology), topology.gpu.proto_text()],
        sorted(versions.items()),
        sorted(flags.items()),
    ]
    if any(rounds != 1.0 for rounds in assumed_rounds):
        parts.append(list(assumed_rounds))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def without_locations(stablehlo: str) -> str:
    """StableHLO without its locations.

    They change with every line added above a model, and do not affect compilation.
    """
    return _LOCATION_LINE.sub("", _LOCATION.sub("", stablehlo))


def located(compiled: Compiled, program: Program) -> Compiled:
    """``compiled`` with the current source lines of ``program``.

    A kept result has the source lines of the day of its compilation.
    """
    collectives = tuple(
        row._replace(source=program.where(row.op)) if 0 <= row.op < program.n_ops else row
        for row in compiled.collectives
    )
    timeline = compiled.schedule
    if timeline is not None:
        timeline = timeline.located(lambda op: program.where(op) if op < program.n_ops else "")
    return dataclasses.replace(compiled, collectives=collectives, schedule=timeline)


def rounds_of(program: Program) -> dict[int, float]:
    """Trip count of every loop, by the op indices of the pseudo-ops that enter it.

    Compiled loops carry these indices in their names.
    """
    rounds_by_op = {}
    for region in program.regions:
        if region.kind == "body":
            op = program.regions[region.parent].begin
            while program.kind[op] == "while.enter":
                rounds_by_op[op] = region.times
                op += 1
    return rounds_by_op


def _result(
    plan: ShardingPlan,
    topology: top.Topology,
    report: compile_child.CompileReport,
    versions: Mapping[str, str],
    flags: Mapping[str, str],
) -> Compiled:
    memory: dict[str, Any] = report.memory or {}
    refusal, gpu = report.refusal, topology.gpu
    uses = ("peak", "argument", "output", "alias", "temp", "code")
    sizes: dict[str, Any] = {f"{use}_bytes": memory.get(use) for use in uses}
    within_default_memory = gpu is None or memory.get("peak", 0) <= gpu.default_memory_bytes
    return Compiled(
        program=plan.program.digest(),
        plan_key=plan.key,
        mesh=dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
        topology=str(topology),
        device_kind=report.device_kind,
        device_order=_ORDERS[topology.platform],
        fits=refusal is None and within_default_memory,
        **sizes,
        needed_bytes=refusal.needed_bytes if refusal else None,
        limit_bytes=refusal.limit_bytes if refusal else None,
        needed_temporaries_only=refusal.only_temporaries if refusal else False,
        allocations=refusal.allocations if refusal else (),
        refusal=refusal.message if refusal else "",
        collectives=report.collectives,
        loops=report.loops,
        cycles_by_op=report.cycles,
        clock_hz=topology.clock_hz,
        rematerialised=report.remats,
        compile_s=report.compile_s,
        versions=dict(versions),
        flags=dict(flags),
        machine=top.machine_name(topology, report.device_kind),
        device_memory_bytes=gpu.memory_bytes if gpu is not None else None,
        default_memory_bytes=gpu.default_memory_bytes if gpu is not None else None,
        times=report.times,
        notes=_notes(plan.program, gpu, report),
        schedule=_schedule(plan.mesh, top.machine_name(topology, report.device_kind), report),
    )


def _schedule(
    mesh: Mesh, machine: str, report: compile_child.CompileReport
) -> schedule.Schedule | None:
    """The timeline of the compiler's schedule; None if it wrote none."""
    if report.schedule is None:
        return None
    links = None
    if machine in MACHINES:
        with contextlib.suppress(InvalidProblem):  # more devices than it has links for
            links = lay_out(MACHINES[machine], mesh)

    def price_s(step: schedule.ScheduleStep) -> float | None:
        if links is None or step.axes is None:
            return None
        if step.pairs:
            time_s = permute_time_s(MACHINES[machine], mesh, step.pairs, step.bytes)
            if time_s is not None:
                return time_s
        return named_time_s(step.kind, step.axes, step.bytes, mesh=mesh, links=links)

    notes = [report.schedule_note] if report.schedule_note else []
    return schedule.replay(report.schedule, price_s, notes=notes)


def _notes(
    program: Program, gpu: gpu_target.GpuTarget | None, report: compile_child.CompileReport
) -> tuple[str, ...]:
    """Notes on the result: why it has no schedule or no times, and how bfloat16 is stored."""
    reason = report.schedule_note if report.schedule is None and report.memory is not None else ""
    reasons = [f"no schedule: {reason}"] if reason else []
    if gpu is None:
        return tuple(reasons)
    notes = []
    if not gpu.has_bfloat16 and "bf16" in program.value_dtype:
        notes.append(
            f"{gpu.name} has no bfloat16: XLA keeps such values as float32, at twice the memory"
        )
    if report.times is None:
        notes.append(
            f"XLA has no measured tables for {gpu.name} ({gpu.architecture}), so there are no times"
        )
    return (*notes, *reasons)
