"""Execute a plan.

The plan is compiled for real or virtual devices, timed, and compared with the unsharded program.

    run(model, plan)                    8 virtual devices of this machine's processor
    run(model, plan, devices="gpu")     attached GPUs
    run(model, plan, devices="auto")    attached accelerators if there are enough, else virtual ones

Everything happens in a child process, so that a compiler that crashes or hangs, or a machine that
runs out of memory, raises an error with an explanation instead of ending the caller. Virtual CPU
devices show whether a plan computes the right results and which collectives it becomes; their times
say nothing about accelerators.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab import isolate
from toast_lab.errors import InvalidProblem
from toast_lab.ir.kernel_rules import WRAPPED
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.needed_constraints import needed_constraints
from toast_lab.runtime import agreement, child
from toast_lab.runtime import devices as dev
from toast_lab.runtime import inputs as made_up
from toast_lab.runtime.executable import ShardedProgram, whole_job
from toast_lab.runtime.hlo import Collective, counts_text
from toast_lab.runtime.measuring import Execution, interquartile_range
from toast_lab.sharding.carried import carry
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding

if TYPE_CHECKING:
    from toast_lab.ir.model import Model


#: Makes the program that runs for a plan of a model on a platform.
JobOf = Callable[["Model", ShardingPlan, str | None], ShardedProgram]


@dataclasses.dataclass(frozen=True)
class Run:
    """Measurements of one executed plan; bytes are those of one device.

    ``argument_bytes`` to ``peak_bytes`` are XLA's own buffer assignment of the compiled program
    (``memory_analysis`` in JAX), not a measurement; ``allocator_peak_bytes`` is the peak that an
    accelerator's allocator really reached over the whole process (on a mesh of one device this
    includes the unsharded reference).
    """

    devices: str  #: "cpu:8"
    device_kind: str  #: what the device calls itself, "cpu" or "NVIDIA H100 80GB HBM3"
    n_devices: int
    step_times_s: tuple[float, ...]  #: of each repeat, from dispatch until every result is ready
    median_s: float
    spread_s: float  #: interquartile range of the step times, 0 for fewer than 2
    compile_s: float
    argument_bytes: int
    output_bytes: int
    alias_bytes: int  #: part of the outputs that reuses donated arguments
    temp_bytes: int
    peak_bytes: int  #: arguments + outputs - aliases + temporaries
    allocator_peak_bytes: int | None  #: None on CPU
    #: of the compiled program; each is listed once, however often a loop runs it
    collectives: tuple[Collective, ...]
    #: by output path, see ``child.relative_error``; None without a reference
    errors: Mapping[str, float] | None
    inputs: str  #: "normal", "non-negative" (normal ones gave non-finite results) or "given"
    seed: int
    #: the unsharded program on one of the same devices, or on all where it has shard_maps
    reference_median_s: float | None
    reference_compile_s: float | None
    reference_peak_bytes: int | None
    note: str = ""  #: why there is no reference although one was asked for
    #: largest error that rounding explains, see ``agreement``; None without a reference
    tolerance: float | None = None
    #: of the unsharded program's outputs, by nudged inputs, see ``agreement``
    changes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    #: where these devices run other ops than the plan's own program has, see ``carried``
    notes: tuple[str, ...] = ()

    @property
    def collective_counts(self) -> dict[str, int]:
        """Number of collectives by kind."""
        return dict(collections.Counter(collective.kind for collective in self.collectives))

    @property
    def worst(self) -> agreement.Worst:
        """The error that is the largest, measured by what rounding explains."""
        return agreement.worst(self.errors, self.tolerance, self.changes)

    @property
    def max_relative_error(self) -> float | None:
        """The error of ``worst``; NaN if some output has nothing finite to compare."""
        return self.worst.error

    @property
    def agrees(self) -> bool | None:
        """Are all outputs those of the unsharded program, up to what rounding explains?

        None if they were not compared.
        """
        return agreement.agrees(*self.worst)

    def to_json(self) -> dict[str, Any]:
        """All fields and derived numbers as plain data; collectives as a list of dicts."""
        data = dataclasses.asdict(self)
        data["step_times_s"] = list(self.step_times_s)
        data["collectives"] = [collective.to_json() for collective in self.collectives]
        data["collective_counts"] = self.collective_counts
        data["max_relative_error"], data["agrees"] = self.max_relative_error, self.agrees
        return data

    def __str__(self) -> str:
        error = agreement.verdict(*self.worst)
        return (
            f"{self.devices} ({self.device_kind}): {self.median_s * 1e3:.3f} ± "
            f"{self.spread_s / 2 * 1e3:.3f} ms a step, {self.peak_bytes / 2**20:.2f} MiB peak a "
            f"device, {error}; {counts_text(self.collective_counts) or 'no collectives'}"
            + "".join(f"\n{note}" for note in self.notes)
        )


def run(
    model: Model,
    plan: ShardingPlan,
    devices: str = "cpu:8",
    *,
    on_event: isolate.Listener | None = None,
    cancel: isolate.Cancel | None = None,
    memory_limit_bytes: int | None = None,
    **options: Any,
) -> Run:
    """Compile and execute ``plan``.

    Args:
        model: the model that the plan shards.
        plan: the plan to run, from a search or ``Plan.from_actions``.
        devices: "cpu:N" for N virtual devices, "gpu" or "tpu" for attached ones, or "auto". Only
            the first are used, as many as the mesh has.
        on_event: receives ``child.RunProgress`` (stage, fraction).
        cancel: polled; True stops the child and raises ``isolate.Cancelled``.
        memory_limit_bytes: limit on the address space of the child.
        options: ``repeats``, ``warmup``, ``seed``, ``time_limit_s``, ``inputs``, ``reference`` and
            ``tolerance``: the fields of ``measuring.Execution``.

    Raises:
        InvalidPlan: the plan belongs to another program.
        InvalidProblem: unreadable or too few devices, wrong options, or inputs that do not fit the
            program.
        RunFailed: the child crashed, hung or ran out of memory, or the compiler refused the
            program.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> measured = tl.run(model, plan, devices="cpu:4", repeats=2)
        >>> measured.agrees
        True
    """
    runs = run_many(
        model,
        [plan],
        devices,
        on_event=on_event,
        cancel=cancel,
        memory_limit_bytes=memory_limit_bytes,
        **options,
    )
    return runs[0]


def run_many(
    model: Model,
    plans: Sequence[ShardingPlan],
    devices: str = "cpu:8",
    *,
    on_event: isolate.Listener | None = None,
    cancel: isolate.Cancel | None = None,
    memory_limit_bytes: int | None = None,
    job: JobOf | None = None,
    **options: Any,
) -> list[Run]:
    """``run`` for several plans of one model, in one child process.

    The plans share one reference and the same inputs. Their meshes may differ, but must all have
    the same number of devices. Arguments and errors are those of ``run``; ``job`` makes the program
    that runs for a plan, by default the one with every op as the plan says.
    """
    job = job or job_of
    execution = Execution(**options)
    device_count = _device_count(plans)
    limits: dict[str, Any] = {
        "time_limit_s": execution.time_limit_s,
        "cancel": cancel,
        "memory_limit_bytes": memory_limit_bytes,
    }
    chosen_devices = dev.find(devices, device_count, **limits)
    carried = [carry(model, plan, chosen_devices.platform) for plan in plans]
    model, plans = carried[0].model, [each.plan for each in carried]
    platform = chosen_devices.platform
    reference = reference_job(model, plans[0], platform) if execution.reference else None
    if execution.inputs is not None:
        arrays = made_up.check(model.program, execution.inputs)
        execution = dataclasses.replace(execution, inputs=arrays)
    report = isolate.run_in_child(
        "toast_lab.runtime.child:execute",
        child.RunRequest(
            program=model.program,
            reference=reference,
            jobs=tuple(job(model, plan, platform) for plan in plans),
            devices=chosen_devices,
            options=execution,
            padding=model.padding,
        ),
        env=dev.environment(chosen_devices),
        on_event=on_event,
        activity=f"running {model.name} on {chosen_devices}",
        **limits,
    )
    tolerance = execution.tolerance_for(model.program)
    runs = [
        _result(report, measured, devices=chosen_devices, seed=execution.seed, tolerance=tolerance)
        for measured in report.jobs
    ]
    return [
        dataclasses.replace(result, notes=each.notes)
        for result, each in zip(runs, carried, strict=True)
    ]


def _device_count(plans: Sequence[ShardingPlan]) -> int:
    """The number of devices, which must be the same for all of the plans."""
    if not plans:
        raise InvalidProblem("there is no plan to run")
    counts = sorted({plan.mesh.n_devices for plan in plans})
    if len(counts) > 1:
        raise InvalidProblem(
            f"plans that run together must need the same number of devices, but need {counts}"
        )
    return counts[0]


def job_of(model: Model, plan: ShardingPlan, platform: str | None = None) -> ShardedProgram:
    """The program that a child compiles and runs for ``plan`` on a platform."""
    specs = plan.value_specs()
    needed = needed_constraints(model, plan)
    return ShardedProgram(
        annotate(model, plan, located=True, constrained=needed, platform=platform),
        plan.mesh,
        argument_specs=tuple(specs[: plan.program.n_arguments]),
        result_specs=tuple(specs[int(value)] for value in plan.program.outputs),
        host=plan.program.host,
    )


def reference_job(model: Model, plan: ShardingPlan, platform: str | None = None) -> ShardedProgram:
    """The job with whose results those of ``plan`` are compared: the unsharded program.

    It runs on one device, without any shardings that the program came with. A ``shard_map`` cannot
    run on one device: a program with any runs on the plan's mesh, whole but for these.
    """
    model, program = plan.own_model(model), plan.program
    if program.shard_maps:
        whole = Sharding.whole(program, len(plan.mesh.axes))
        return job_of(model, ShardingPlan(program, plan.mesh, whole), platform)
    is_plain = not any(word in model.stablehlo for word in ("sdy.", "mhlo.sharding", WRAPPED))
    if is_plain and not program.host:
        return whole_job(program, model.stablehlo)
    one_device = Mesh(("one",), (1,))
    unsharded = ShardingPlan(program, one_device, Sharding.whole(program, 1))
    return whole_job(program, annotate(model, unsharded, platform=platform))


def _result(
    report: child.RunReport,
    measured: child.ExecutableMeasurement,
    *,
    devices: dev.Devices,
    seed: int,
    tolerance: float,
) -> Run:
    times = measured.step_times_s
    reference, uses = report.reference, ("argument", "output", "alias", "temp", "peak")
    sizes: dict[str, Any] = {f"{use}_bytes": measured.memory[use] for use in uses}
    return Run(
        devices=str(devices),
        device_kind=report.device_kind,
        n_devices=devices.count,
        step_times_s=times,
        median_s=statistics.median(times),
        spread_s=interquartile_range(times),
        compile_s=measured.compile_s,
        **sizes,
        allocator_peak_bytes=report.allocator_peak_bytes,
        collectives=measured.collectives,
        errors=measured.errors,
        inputs=report.inputs,
        seed=seed,
        reference_median_s=statistics.median(reference.step_times_s) if reference else None,
        reference_compile_s=reference.compile_s if reference else None,
        reference_peak_bytes=reference.memory["peak"] if reference else None,
        note=report.reference_failure,
        tolerance=None if measured.errors is None else tolerance,
        changes=reference.changes if reference else {},
    )
