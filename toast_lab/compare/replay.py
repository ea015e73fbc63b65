"""``replay``: one device's share of a large mesh, timed for real, with priced collectives.

    replay(model, plan, "gpu", machine="h100")

The plan's mesh may have any number of devices; a replay needs one.

The computation of a device is measured, its collectives are priced on the machine model, and their
sum is an estimate of the step time that rests on fewer assumptions than the full prediction. It
leaves out the interaction of the two: collectives that overlap with computation, and devices that
wait for one another.

Values are wrong by construction (``local_program.py``): only time and memory count. Start reading
at ``replay``.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab import isolate
from toast_lab.compare import local_program
from toast_lab.compare.local_program import LocalProgram, Removed
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.needed_constraints import needed_constraints
from toast_lab.runtime import _jax_private, child, inputs
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import OnProgress, RunProgress
from toast_lab.runtime.executable import (
    Executable,
    allocator_peak,
    donated_arguments,
    whole_job,
)
from toast_lab.runtime.hlo import counts_text
from toast_lab.runtime.measuring import Timing, interquartile_range
from toast_lab.sharding.carried import carry
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.machines.machine_model import Machine


@dataclasses.dataclass(frozen=True)
class Replay:
    """A measured share and priced collectives; bytes and FLOPs are those of one device."""

    name: str  #: of the model
    mesh: str
    device_kind: str  #: device on which the share was measured
    machine: str  #: machine for which collectives are priced
    step_times_s: tuple[float, ...]  #: of the local program, without collectives
    compile_s: float
    flops: float | None  #: of the compiled local program, by XLA's count; None if it does not say
    #: of the matrix products that XLA left to this device; None if the program has loops
    product_flops: float | None
    #: of the matrix products that the plan leaves to it, as prices count them
    planned_product_flops: float | None
    peak_bytes: int  #: see ``runtime.Run``
    allocator_peak_bytes: int | None  #: None on CPU
    removed: tuple[Removed, ...]  #: XLA's collectives, which stand-ins replaced
    #: are all results finite? Otherwise some ops may have been slower than with real values
    finite: bool
    priced_collectives_s: float  #: of the plan's collectives
    predicted_compute_s: float
    predicted_time_s: float  #: priced computation and collectives together

    @property
    def median_s(self) -> float:
        """Median of a local step."""
        return float(np.median(self.step_times_s))

    @property
    def spread_s(self) -> float:
        """Interquartile range of the local steps."""
        return interquartile_range(self.step_times_s)

    @property
    def estimate_s(self) -> float:
        """Measured computation and priced collectives, one after the other."""
        return self.median_s + self.priced_collectives_s

    @property
    def removed_counts(self) -> dict[str, int]:
        """Number of XLA's collectives by kind."""
        return dict(collections.Counter(collective.kind for collective in self.removed))

    @property
    def divided_otherwise(self) -> bool:
        """Did XLA divide some matrix product differently than the plan does?

        If so, this device has other work to do than the plan's.
        """
        return self.product_flops != self.planned_product_flops

    def to_json(self) -> JsonObject:
        """All fields as plain data, with the derived ones."""
        data = dataclasses.asdict(self)
        data["removed"] = [collective._asdict() for collective in self.removed]
        for name in ("median_s", "spread_s", "estimate_s", "removed_counts", "divided_otherwise"):
            data[name] = getattr(self, name)
        return data

    def __str__(self) -> str:
        memory = self.allocator_peak_bytes or self.peak_bytes
        lines = [
            f"{self.name}, one device of {self.mesh}",
            f"computation   {self.median_s * 1e3:.4g} ± {self.spread_s / 2 * 1e3:.2g} ms "
            f"measured on {self.device_kind}, {self.predicted_compute_s * 1e3:.4g} ms predicted",
            f"collectives   {self.priced_collectives_s * 1e3:.4g} ms priced on {self.machine}; "
            f"removed: {counts_text(self.removed_counts) or 'none'}",
            f"step          {self.estimate_s * 1e3:.4g} ms, {self.predicted_time_s * 1e3:.4g} ms "
            "predicted",
            f"memory        {bytes_text(memory)}",
        ]
        if self.divided_otherwise:
            lines.append(
                f"XLA leaves {self.product_flops:.4g} FLOPs of matrix products to the device, but "
                f"the plan and its price {self.planned_product_flops:.4g}: it divides some of them "
                "otherwise"
            )
        if not self.finite:
            lines.append(
                "some results are not finite: some ops may have been slower than with real values"
            )
        return "\n".join(lines)


def replay(
    model: Model,
    plan: ShardingPlan,
    device: str = "cpu",
    *,
    machine: str | Machine | None = None,
    problem: Problem | None = None,
    on_event: OnProgress | None = None,
    cancel: isolate.Cancel | None = None,
    **options: Any,
) -> Replay:
    """Time one device's share of ``plan`` on one device.

    Args:
        model: the model that the plan shards.
        plan: for a mesh of any size; XLA divides it for the same number of virtual CPU devices.
        device: "cpu", "gpu", "tpu" or "auto".
        machine: prices the collectives; by default the problem's machine, or tpu-v5e.
        problem: of this model on the plan's mesh; saves the analysis.
        on_event: receives ``RunProgress`` (stage, fraction).
        cancel: polled; True stops the replay and raises ``isolate.Cancelled``.
        options: ``repeats``, ``warmup``, ``seed`` and ``time_limit_s`` (for dividing, and again for
            running): the fields of ``runtime/measuring.Timing``.

    Raises:
        InvalidPlan: the plan belongs to another program, or the problem to another mesh.
        InvalidProblem: there is no such device, or options are wrong.
        UnsupportedOp: the program has ops that cannot be replayed on this device (all are listed).
        RunFailed: the child crashed, hung or ran out of memory, or the compiler refused the
            program.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> share = tl.replay(model, plan, "cpu", repeats=2)
        >>> len(share.step_times_s), share.finite
        (2, True)
    """
    timing = Timing(**options)
    own = plan.own_model(model)
    plan.check_is_of(own.program, None if problem is None else problem.mesh)
    limits: dict[str, Any] = {"time_limit_s": timing.time_limit_s, "cancel": cancel}
    chosen = dev.find(device, 1, **limits)
    model, run_plan, _ = carry(own, plan, chosen.platform)
    needed = needed_constraints(model, run_plan, cancel=cancel)
    annotated = annotate(model, run_plan, constrained=needed, platform=chosen.platform)
    if on_event is not None:
        on_event(RunProgress("dividing", 0.0))
    local = divided(model, plan.mesh.n_devices, annotated, platform=chosen.platform, limits=limits)
    measured: dict[str, Any] = isolate.run_in_child(
        "toast_lab.compare.replay:_measure",
        model.program,
        local,
        chosen,
        timing=timing,
        env=dev.environment(chosen),
        on_event=on_event,
        activity=f"replaying {model.name} on {chosen}",
        **limits,
    )
    if problem is None or machine is not None:
        analysis = analyse(own)
        problem = Problem(analysis, plan.mesh, machine or "tpu-v5e")
    cost = price(problem, carry(own, plan, problem.machine.compiler).plan)
    return Replay(
        name=model.name,
        mesh=str(plan.mesh),
        machine=problem.machine.name,
        product_flops=None if model.program.regions else local.product_flops,
        planned_product_flops=None if model.program.regions else planned_product_flops(run_plan),
        removed=local.removed,
        priced_collectives_s=cost.comm_s,
        predicted_compute_s=cost.compute_s,
        predicted_time_s=cost.time_s,
        **measured,
    )


def planned_product_flops(plan: ShardingPlan) -> float:
    """FLOPs of one device's matrix products under a plan.

    The FLOPs of each product are divided by the sizes of the axes on which its op is split.
    """
    program, sizes = plan.program, np.asarray(plan.mesh.sizes)
    ways = np.where(plan.op_factor >= 0, sizes, 1).prod(axis=1)
    products = np.asarray([kind == "dot_general" for kind in program.kind])
    return float((program.flops * program.trips / ways)[products].sum())


def divided(
    model: Model, n_devices: int, annotated: str, platform: str, limits: Mapping[str, Any]
) -> LocalProgram:
    """The program that one device runs of ``annotated``, a model annotated with a plan.

    Args:
        model: the model, which says which arguments are donated.
        n_devices: number of devices of the plan's mesh.
        annotated: StableHLO, as ``annotate`` gives it.
        platform: on which the result will run, "cpu", "gpu" or "tpu".
        limits: ``time_limit_s`` and ``cancel`` of the child process that divides.

    Raises:
        UnsupportedOp, RunFailed: as in ``replay``.
    """
    environment = dev.environment(dev.Devices("cpu", n_devices))
    with tempfile.TemporaryDirectory(prefix="toast-replay-") as folder:
        # If two flags name a folder, XLA uses the last
        environment["XLA_FLAGS"] += f" {local_program.flags(folder)}"
        divided: LocalProgram = isolate.run_in_child(
            "toast_lab.compare.local_program:divide",
            annotated,
            n_devices=n_devices,
            folder=folder,
            donated=donated_arguments(model.program),
            platform=platform,
            env=environment,
            activity=f"dividing {model.name} for {n_devices} devices",
            **limits,
        )
    return divided


def _measure(
    program: Program, local: LocalProgram, chosen: dev.Devices, timing: Timing
) -> dict[str, Any]:
    """Compile and time the local program: those fields of ``Replay``. Runs in a child process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    devices = dev.attached(chosen)

    def report_step(number: int, total: int) -> None:
        isolate.report(RunProgress(f"running {number}/{total}", 0.6 + 0.4 * (number - 1) / total))

    job = whole_job(program, local.text, local.result_shapes)
    isolate.report(RunProgress("compiling", 0.3))
    executable = Executable(job, local.result_shapes, donated_arguments(program), devices)
    arrays = inputs.draw(program, timing.seed, shapes=local.argument_shapes)
    results: list[np.ndarray] = []
    times_s = executable.times_s(
        arrays, timing.repeats, timing.warmup, on_step=report_step, on_results=results.extend
    )
    return dict(
        device_kind=devices[0].device_kind,
        compile_s=executable.compile_s,
        step_times_s=times_s,
        flops=_jax_private.flops(executable.loaded),
        peak_bytes=executable.memory()["peak"],
        allocator_peak_bytes=allocator_peak(devices[0]),
        finite=child.all_finite(results),
    )
