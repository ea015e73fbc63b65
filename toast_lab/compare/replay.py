"""``replay``: one device's share of a large mesh, timed for real, beside priced collectives.

    replay(model, plan, "gpu", machine="h100")

The plan's mesh may have any number of devices; one is needed.

What a device computes is measured, what it sends is priced on the machine model, and their sum is
an estimate of the step that hangs on fewer assumptions than the full prediction.  It leaves out
what the two do to each other: collectives that run beside computation, devices that wait for one
another.

Values are wrong by construction (``local_program.py``): only time and memory count.  Start reading
at ``replay``.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toast_lab import checks, isolate
from toast_lab.compare import local_program
from toast_lab.compare.local_program import LocalProgram, Removed
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import annotate
from toast_lab.runtime import _jax_private, child, inputs
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import Progress
from toast_lab.runtime.executable import Executable, Job, allocator_peak
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.machines.machine_model import Machine


@dataclasses.dataclass(frozen=True)
class Replay:
    """A measured share and priced collectives; bytes and FLOPs are those of one device."""

    name: str  #: of the model
    mesh: str
    device_kind: str  #: what was measured on
    machine: str  #: what collectives are priced for
    step_times_s: tuple[float, ...]  #: of the local program, without collectives
    compile_s: float
    flops: float | None  #: of the compiled local program, by XLA's count; None if it does not say
    #: of the matrix products that XLA left to this device; None where there are loops
    product_flops: float | None
    #: of those that the plan leaves to it, as prices count them
    planned_product_flops: float | None
    peak_bytes: int  #: see ``runtime.Run``
    allocator_peak_bytes: int | None  #: None on CPU
    removed: tuple[Removed, ...]  #: XLA's collectives, which stand-ins took the place of
    #: are all results finite?  Otherwise some ops may have been slower than with real values
    finite: bool
    priced_collectives_s: float  #: of the plan's collectives
    predicted_compute_s: float
    predicted_time_s: float  #: the two priced ones together

    @property
    def median_s(self) -> float:
        """Median of a local step."""
        return float(np.median(self.step_times_s))

    @property
    def spread_s(self) -> float:
        """Interquartile range of the local steps."""
        low, high = np.percentile(self.step_times_s, [25, 75])
        return float(high - low)

    @property
    def estimate_s(self) -> float:
        """Measured computation and priced collectives, one after the other."""
        return self.median_s + self.priced_collectives_s

    @property
    def removed_counts(self) -> dict[str, int]:
        """Number of XLA's collectives by kind."""
        return dict(collections.Counter(r.kind for r in self.removed))

    @property
    def divided_otherwise(self) -> bool:
        """Has XLA divided some matrix product otherwise than the plan says?

        If so, this device has other work to do.
        """
        return self.product_flops != self.planned_product_flops

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, with the derived ones."""
        data = dataclasses.asdict(self)
        data["removed"] = [r._asdict() for r in self.removed]
        for name in ("median_s", "spread_s", "estimate_s", "removed_counts", "divided_otherwise"):
            data[name] = getattr(self, name)
        return data

    def __str__(self) -> str:
        counts = (
            ", ".join(f"{n} {kind}" for kind, n in sorted(self.removed_counts.items())) or "none"
        )
        memory = self.allocator_peak_bytes or self.peak_bytes
        lines = [
            f"{self.name}, one device of {self.mesh}",
            f"computation   {self.median_s * 1e3:.4g} ms measured on {self.device_kind} (spread "
            f"{self.spread_s * 1e3:.2g} ms), {self.predicted_compute_s * 1e3:.4g} ms predicted",
            f"collectives   {self.priced_collectives_s * 1e3:.4g} ms priced on {self.machine}; "
            f"taken out: {counts}",
            f"step          {self.estimate_s * 1e3:.4g} ms, {self.predicted_time_s * 1e3:.4g} ms "
            "predicted",
            f"memory        {bytes_text(memory)}",
        ]
        if self.divided_otherwise:
            lines.append(
                f"XLA leaves {self.product_flops:.4g} FLOPs of matrix products to the device, "
                "the plan and its price "
                f"{self.planned_product_flops:.4g}: it divides some of them otherwise"
            )
        if not self.finite:
            lines.append(
                "some results are not finite: some ops may have been slower than with real values"
            )
        return "\n".join(lines)


class _Request(NamedTuple):
    program: Program
    local: LocalProgram
    devices: dev.Devices
    repeats: int
    warmup: int
    seed: int


class _Measured(NamedTuple):
    device_kind: str
    compile_s: float
    step_times_s: tuple[float, ...]
    flops: float | None
    memory: Mapping[str, int]
    allocator_peak_bytes: int | None
    finite: bool


def replay(
    model: Model,
    plan: ShardingPlan,
    device: str = "cpu",
    *,
    machine: str | Machine | None = None,
    problem: Problem | None = None,
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
    time_limit_s: float = 600.0,
    on_event: Callable[[Progress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Replay:
    """Time one device's share of ``plan`` on one device.

    Args:
        model: the model that the plan shards.
        plan: for a mesh of any size; XLA divides it for as many virtual CPU devices.
        device: "cpu", "gpu", "tpu" or "auto".
        machine: on which collectives are priced; the problem's, or tpu-v5e, if not given.
        problem: of this model on the plan's mesh; saves the analysis.
        repeats: timed steps, at least 1.
        warmup: steps before those.
        seed: of the made-up inputs.
        time_limit_s: for dividing, and again for running.
        on_event: receives ``Progress`` (stage, fraction).
        cancel: polled; True stops it and raises ``isolate.Cancelled``.

    Raises:
        InvalidPlan: the plan belongs to another program, or the problem to another mesh.
        InvalidProblem: there is no such device.
        UnsupportedOp: ops that cannot be replayed there (all are listed).
        RunFailed: the child crashed, hung or ran out of memory, or the compiler refused the
            program.
    """
    checks.whole("repeats", repeats, 1, checks.MOST_COUNT)
    checks.whole("warmup", warmup, 0, checks.MOST_COUNT)
    seed = checks.seed(seed)
    time_limit_s = checks.number("time_limit_s", time_limit_s, above=0.0, most=checks.MOST_SECONDS)
    plan.check_is_of(model.program, None if problem is None else problem.mesh)
    text = annotate(model, plan)
    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "cancel": cancel}
    chosen = dev.parse(device, 1)
    if chosen is None:
        chosen = isolate.run_in_child(
            "toast_lab.runtime.child:choose_devices",
            1,
            env=dev.environment(None),
            what="looking for devices",
            **limits,
        )
    local = _divided(model, plan, text, chosen.platform, on_event, limits)
    request = _Request(model.program, local, chosen, repeats, warmup, seed)
    measured: _Measured = isolate.run_in_child(
        "toast_lab.compare.replay:_measure",
        request,
        env=dev.environment(chosen),
        on_event=on_event,
        what=f"replaying {model.name} on {chosen}",
        **limits,
    )
    if problem is None or machine is not None:
        analysis = analyse(model)
        problem = Problem(analysis, plan.mesh, machine or "tpu-v5e")
    cost = price(problem, plan)
    return Replay(
        name=model.name,
        mesh=str(plan.mesh),
        device_kind=measured.device_kind,
        machine=problem.machine.name,
        step_times_s=measured.step_times_s,
        compile_s=measured.compile_s,
        flops=measured.flops,
        product_flops=None if model.program.regions else local.product_flops,
        planned_product_flops=None if model.program.regions else planned_product_flops(plan),
        peak_bytes=measured.memory["peak"],
        allocator_peak_bytes=measured.allocator_peak_bytes,
        removed=local.removed,
        finite=measured.finite,
        priced_collectives_s=cost.comm_s,
        predicted_compute_s=cost.compute_s,
        predicted_time_s=cost.time_s,
    )


def planned_product_flops(plan: ShardingPlan) -> float:
    """FLOPs of one device's matrix products.

    Each product's are divided by the sizes of the axes that its op is split on.
    """
    program, sizes = plan.program, np.asarray(plan.mesh.sizes)
    ways = np.where(plan.op_factor >= 0, sizes, 1).prod(axis=1)
    products = np.asarray([kind == "dot_general" for kind in program.kind])
    return float((program.flops * program.trips / ways)[products].sum())


def _divided(
    model: Model,
    plan: ShardingPlan,
    text: str,
    platform: str,
    on_event: Callable[[Progress], None] | None,
    limits: Mapping[str, Any],
) -> LocalProgram:
    if on_event is not None:
        on_event(Progress("dividing", 0.0))
    program, n_devices = model.program, plan.mesh.n_devices
    donated = [bool(d) for d in program.donated[: program.n_arguments]]
    env = dev.environment(dev.Devices("cpu", n_devices))
    with tempfile.TemporaryDirectory(prefix="toast-replay-") as folder:
        env["XLA_FLAGS"] += f" {local_program.flags(folder)}"  # of two dumps the last one counts
        local: LocalProgram = isolate.run_in_child(
            "toast_lab.compare.local_program:divide",
            text,
            n_devices,
            folder,
            donated,
            platform,
            env=env,
            what=f"dividing {model.name} for {n_devices} devices",
            **limits,
        )
    return local


def _measure(request: _Request) -> _Measured:
    """Runs in the child."""
    import jax

    jax.config.update("jax_enable_x64", True)
    found = dev.attached(request.devices)
    program, local = request.program, request.local

    def whole(shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
        return tuple(((),) * len(shape) for shape in shapes)

    job = Job(
        local.text, Mesh(("one",), (1,)), whole(local.argument_shapes), whole(local.result_shapes)
    )
    isolate.report(Progress("compiling", 0.3))
    donated = [bool(d) for d in program.donated[: program.n_arguments]]
    executable = Executable(job, local.result_shapes, donated, found)
    arrays = inputs.draw(program, request.seed, shapes=local.argument_shapes)
    times, finite = [], True
    total = request.warmup + request.repeats
    for number in range(total):
        isolate.report(Progress(f"running {number + 1}/{total}", 0.6 + 0.4 * number / total))
        executable.put(arrays)
        time_s, outputs = executable.step()
        times.append(time_s)
        if number == 0:
            finite = child.all_finite([np.asarray(r) for r in executable.results(outputs)])
        del outputs
    return _Measured(
        found[0].device_kind,
        executable.compile_s,
        tuple(times[request.warmup :]),
        _jax_private.flops(executable.loaded),
        executable.memory(),
        allocator_peak(found[0]),
        finite,
    )
