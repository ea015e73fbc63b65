"""``compare``: several plans of one model, each in its own process, measured in turns.

    compare(model, {"fsdp": plan_a, "megatron": plan_b})  # as many virtual CPUs as each mesh has
    compare(model, plans, devices="gpu", machine="h100")  # attached GPUs, beside predicted numbers
    compare(model, plans, processes=2)                    # one mesh over two (jax.distributed)
    compare(model, plans, devices="distributed")          # in processes that srun or mpirun started

Times of virtual devices say which plan works and what it becomes, not which one is faster on
accelerators.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab import checks, isolate
from toast_lab.compare import distributed, gradients, measure, store
from toast_lab.compare.contender import Request
from toast_lab.compare.measure import Entry, Settings
from toast_lab.compare.result import Certificate, Comparison, Predicted, Row
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, StoreError, join_offenders
from toast_lab.runtime import agreement
from toast_lab.runtime import devices as dev
from toast_lab.runtime import inputs as made_up
from toast_lab.runtime.child import Progress
from toast_lab.runtime.executable import whole_job
from toast_lab.runtime.run import job_of, unsharded_text
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.machines.machine_model import Machine

DISTRIBUTED = "distributed"
UNSHARDED = "(unsharded)"


def compare(
    model: Model,
    plans: Mapping[str, ShardingPlan] | Sequence[ShardingPlan],
    devices: str = "cpu",
    *,
    repeats: int = 10,
    rounds: int | None = None,
    warmup: int = 2,
    seed: int = 0,
    inputs: Sequence[Any] | None = None,
    reference: bool = True,
    gradients: bool = True,
    problem: Problem | None = None,
    machine: str | Machine | None = None,
    processes: int = 1,
    apart: bool | None = None,
    tolerance: float | None = None,
    store: bool | str | os.PathLike[str] = False,
    time_limit_s: float = 600.0,
    plan_time_limit_s: float | None = None,
    on_event: Callable[[Progress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Comparison:
    """Measure ``plans`` side by side; see ``measure`` for who runs when.

    Args:
        model: the model that all plans shard.
        plans: by name, or in a sequence; then they are called "plan 1", "plan 2", ...
        devices: as for ``tl.run``: "cpu:8", "gpu", "tpu", "auto"; or "distributed", see
            ``distributed.py``.
        repeats: timed steps of each plan.
        rounds: into how many rounds they are divided; 5, or 3 where each costs a compile, see
            ``apart``.
        warmup: untimed steps before, at least 1; on accelerators in each round.
        seed: of the made-up inputs and of the order within a round.
        inputs: arrays to use instead, one for each argument leaf in order.
        reference: run the unsharded program, too, and compare with it.
        gradients: also compare loss, gradients and a step of gradient descent, after all times were
            taken.
        problem: prices the plans on its mesh; others have no prediction.
        machine: prices all plans instead, each on its own mesh.
        processes: processes of this machine that the virtual devices are divided among.
        apart: a process for each plan and round, one at a time, where memory does not hold all
            plans at once; None: on accelerators.
        tolerance: largest relative error that passes; by the program's types and sums if None, see
            ``agreement``.
        store: True keeps the rows in the default place, a path there; see ``store.py``.
        time_limit_s: for everything together; what is not done then is left out.
        plan_time_limit_s: for one plan; by default its share of the former, of all plans and the
            unsharded program.
        on_event: receives ``Progress`` (stage, fraction).
        cancel: polled; True ends it, and rows keep what they have.

    Raises:
        InvalidPlan: plans of another program (all are listed).
        InvalidProblem: bad devices, too few of them, inputs that do not fit.

    What happens to a plan while it is compiled and run is never raised: its row says it.
    """
    seed = checks.seed(seed)
    time_limit_s = checks.number("time_limit_s", time_limit_s, above=0.0, most=checks.MOST_SECONDS)
    if plan_time_limit_s is not None:
        checks.number("plan_time_limit_s", plan_time_limit_s, above=0.0, most=checks.MOST_SECONDS)
    if tolerance is not None:
        tolerance = checks.number("tolerance", tolerance, 0.0)
    named = _named(model, plans)
    _check(named, repeats, rounds, warmup, processes, devices)
    together = devices == DISTRIBUTED
    if together:
        distributed.connect()
    chosen = {
        name: _devices(devices, plan.mesh.n_devices, processes, cancel)
        for name, plan in named.items()
    }
    if together:
        _check_same(model, named, seed)
    arrays = None if inputs is None else made_up.check(model.program, inputs)
    platform = next(iter(chosen.values())).platform
    apart = (platform != "cpu" if apart is None else apart) and not together
    rounds = min(repeats, rounds or (3 if apart else 5))
    made = _gradients(model, list(named.values()), gradients and reference, time_limit_s)
    entries = _entries(model, named, chosen, made, reference, seed, arrays)
    settings = Settings(
        _divided(repeats, rounds),
        max(warmup, 1),
        apart,
        made.reference is not None,
        seed,
        False if inputs is not None or not reference else None,
        plan_time_limit_s or time_limit_s / len(entries),
    )
    clock = (distributed.JointClock if together else measure.Clock)(time_limit_s, on_event, cancel)
    with tempfile.TemporaryDirectory(prefix="toast-compare-") as folder:

        def host(request: Request) -> measure.Host:
            if together:
                return distributed.Here(request, clock)
            return measure.Children(request, 1 if request.is_reference else processes, clock)

        non_negative = measure.measure(entries, settings, clock, Path(folder), host)
    count = len(distributed.exchange(None)) if together else processes
    limit = agreement.tolerance(model.program) if tolerance is None else tolerance
    rows = [
        _row(
            entry, named.get(entry.request.name), made, i - len(entries) + len(named), limit, count
        )
        for i, entry in enumerate(entries)
    ]
    prices = _prices(model, named, problem, machine)
    done = Comparison(
        model=model.name,
        program_digest=model.program.digest(),
        rows=tuple(
            dataclasses.replace(r, predicted=prices.get(r.name)) for r in rows if r.name in named
        ),
        reference=next((r for r in rows if r.name not in named), None),
        inputs="given" if inputs is not None else "non-negative" if non_negative else "normal",
        seed=seed,
        order=_order(settings, together),
    )
    return _kept(done, store, together)


def _named(
    model: Model, plans: Mapping[str, ShardingPlan] | Sequence[ShardingPlan]
) -> dict[str, ShardingPlan]:
    if isinstance(plans, Mapping):
        named = {str(name): plan for name, plan in plans.items()}
    else:
        named = {f"plan {i + 1}": plan for i, plan in enumerate(plans)}
    if not named:
        raise InvalidProblem("there is no plan to compare")
    if UNSHARDED in named:
        raise InvalidProblem(
            f"no plan may be called {UNSHARDED}: this is the unsharded program beside them"
        )
    digest = model.program.digest()
    wrong = [
        f"{name}: shards {plan.program.name} ({plan.program.digest()})"
        for name, plan in named.items()
        if not plan.is_of(model.program)
    ]
    if wrong:
        raise InvalidPlan(
            f"plans of another program than {model.name} ({digest}):\n{join_offenders(wrong)}"
        )
    return named


def _check(
    named: Mapping[str, ShardingPlan],
    repeats: int,
    rounds: int | None,
    warmup: int,
    processes: int,
    devices: str,
) -> None:
    counts = {"repeats": (repeats, 1), "warmup": (warmup, 0), "processes": (processes, 1)}
    counts |= {} if rounds is None else {"rounds": (rounds, 1)}
    wrong = [
        f"{name} {text}"
        for name, (value, least) in counts.items()
        if (text := checks.whole_offence(value, least, checks.MOST_COUNT))
    ]
    if not checks.whole_offence(processes, 2):
        if not str(devices).strip().lower().startswith("cpu"):
            wrong.append(
                f"processes={processes} divides virtual CPU devices; devices={devices!r} wants "
                f'devices="{DISTRIBUTED}" '
                "in processes that a launcher starts"
            )
        wrong += [
            f"{name}: {plan.mesh.n_devices} devices cannot be divided among {processes} processes"
            for name, plan in named.items()
            if plan.mesh.n_devices % processes
        ]
    if wrong:
        raise InvalidProblem(f"cannot compare:\n{join_offenders(wrong)}")


def _devices(
    text: str, wanted: int, processes: int, cancel: Callable[[], bool] | None
) -> dev.Devices:
    if text == DISTRIBUTED:
        return dev.Devices(distributed.attached(wanted)[0].platform, wanted)
    chosen = dev.parse(text, wanted)
    if chosen is None:
        chosen = isolate.run_in_child(
            "toast_lab.runtime.child:choose_devices",
            wanted,
            env=dev.environment(None),
            time_limit_s=120.0,
            what="looking for devices",
            cancel=cancel,
        )
    return chosen


def _check_same(model: Model, named: Mapping[str, ShardingPlan], seed: int) -> None:
    """All processes must be about to do the same, or they would wait for each other for good."""
    mine = (
        model.program.digest(),
        [(name, plan.op_factor.tobytes()) for name, plan in named.items()],
        seed,
    )
    differ = [i for i, theirs in enumerate(distributed.exchange(mine)) if theirs != mine]
    if differ:
        raise InvalidProblem(
            f"processes {differ} compare other plans or another model: start all with the same "
            "arguments"
        )


def _divided(repeats: int, rounds: int) -> tuple[int, ...]:
    """Steps of each round; the first ones have one more where it does not divide."""
    return tuple(repeats // rounds + (number < repeats % rounds) for number in range(rounds))


def _gradients(
    model: Model, plans: Sequence[ShardingPlan], wanted: bool, limit_s: float
) -> gradients.Gradients:
    if not wanted:
        return gradients.none("gradients were not asked for", len(plans))
    return gradients.prepare(model, plans, time_limit_s=limit_s)


def _entries(
    model: Model,
    named: Mapping[str, ShardingPlan],
    chosen: Mapping[str, dev.Devices],
    made: gradients.Gradients,
    reference: bool,
    seed: int,
    arrays: list[np.ndarray] | None,
) -> list[Entry]:
    """The reference first, then the plans in order."""
    found = []
    whole = made.names, made.shapes
    if reference:
        job = whole_job(model.program, unsharded_text(model, next(iter(named.values()))))
        one = dev.Devices(next(iter(chosen.values())).platform, 1)
        found.append(
            Request(UNSHARDED, model.program, job, True, made.reference, *whole, one, seed, arrays)
        )
    for (name, plan), gradient in zip(named.items(), made.planned, strict=True):
        job = job_of(model, plan)
        found.append(
            Request(name, model.program, job, False, gradient, *whole, chosen[name], seed, arrays)
        )
    return [Entry(request) for request in found]


def _row(
    entry: Entry,
    plan: ShardingPlan | None,
    made: gradients.Gradients,
    index: int,
    tolerance: float,
    processes: int,
) -> Row:
    request, compiled = entry.request, entry.compiled
    memory: Mapping[str, int] = compiled.memory if compiled else {}
    return Row(
        name=request.name,
        status=entry.status,
        message=entry.message,
        mesh=str(request.job.mesh) if plan is not None else "",
        devices=str(request.devices),
        device_kind=compiled.device_kind if compiled else "",
        n_devices=request.devices.count,
        n_processes=1 if request.is_reference else processes,
        batches_s=tuple(entry.batches_s),
        compile_s=compiled.compile_s if compiled else None,
        argument_bytes=memory.get("argument"),
        output_bytes=memory.get("output"),
        temp_bytes=memory.get("temp"),
        peak_bytes=memory.get("peak"),
        allocator_peak_bytes=entry.allocator_peak_bytes,
        collectives=compiled.collectives if compiled else (),
        certificate=None
        if plan is None
        else _certificate(entry, made, made.notes[index], tolerance),
        predicted=None,
        plan=None if plan is None else plan_file.to_json(plan),
    )


def _certificate(
    entry: Entry, made: gradients.Gradients, note: str, tolerance: float
) -> Certificate:
    checked, missing = [], []
    if entry.errors is not None:
        checked.append(
            f"{len(entry.errors)} outputs against the unsharded program on the same inputs"
        )
    else:
        missing.append(
            "outputs: there are no results of the unsharded program, or none of this plan"
        )
    if entry.gradient_errors is not None:
        n = len(entry.gradient_errors) // 2
        checked.append(
            f"loss ({made.loss}), {n} gradients and {n} arguments after a step of gradient descent "
            f"(rate {gradients.RATE:g}), through plan.jit: the loss is of the planned program, "
            "the derivatives are "
            "traced by JAX with the plan's argument shardings"
        )
    else:
        missing.append(
            "gradients: "
            f"{made.why_not or note or entry.gradient_failure or 'the plan did not get so far'}"
        )
    return Certificate(
        entry.errors, entry.gradient_errors, tolerance, tuple(checked), tuple(missing)
    )


def _prices(
    model: Model,
    named: Mapping[str, ShardingPlan],
    problem: Problem | None,
    machine: str | Machine | None,
) -> dict[str, Predicted]:
    if problem is None and machine is None:
        return {}
    analysis = problem.analysis if problem is not None else None
    if analysis is None or analysis.program.digest() != model.program.digest():
        analysis = analyse(model)
    problems = {problem.mesh: problem} if problem is not None and machine is None else {}
    found = {}
    for name, plan in named.items():
        if plan.mesh not in problems:
            if machine is None:
                continue
            problems[plan.mesh] = Problem(analysis, plan.mesh, machine)
        cost = price(problems[plan.mesh], plan)
        counts = collections.Counter(c.kind for c in cost.collectives)
        where = problems[plan.mesh].machine.name
        found[name] = Predicted(
            where, cost.time_s, cost.overlapped_s, cost.peak_bytes, dict(counts)
        )
    return found


def _order(settings: Settings, together: bool) -> str:
    sizes = " or ".join(str(n) for n in sorted(set(settings.steps)))
    steps = f"{len(settings.steps)} rounds of {sizes} steps for each plan, in a changing order"
    if together:
        return f"{steps}, in the processes that were launched"
    if settings.apart:
        return f"{steps}; a process for each plan and round, one after the other"
    return f"{steps}; a process for each plan, the others waiting"


def _kept(done: Comparison, where: bool | str | os.PathLike[str], together: bool) -> Comparison:
    """With the numbers of its rows in the store.

    Results matter more than keeping them, so a failure to keep them is only noted.
    """
    if where is False or (together and not is_first()):
        return done
    try:
        return dataclasses.replace(
            done, stored_as=store.keep(done, None if where is True else where)
        )
    except StoreError as error:
        return dataclasses.replace(done, notes=(*done.notes, f"not kept: {error}"))


def is_first() -> bool:
    """Is this the process that prints and keeps?  Always, where there is only one."""
    import jax

    return not jax.distributed.is_initialized() or jax.process_index() == 0
