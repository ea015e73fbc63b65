"""``compare``: several plans of one model, each in its own process, measured in turns.

    compare(model, {"fsdp": plan_a, "megatron": plan_b})  # as many virtual CPUs as each mesh has
    compare(model, plans, devices="gpu", machine="h100")  # attached GPUs, beside predicted numbers
    compare(model, plans, processes=2)                    # one mesh over two (jax.distributed)
    compare(model, plans, devices="distributed")          # in processes that srun or mpirun started

Times on virtual devices show which plans work and what they compile to, not which is faster on
accelerators.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.compare import comparison_store as kept_rows
from toast_lab.compare import distributed, gradients, measure
from toast_lab.compare.contender import ContenderRequest
from toast_lab.compare.measure import MeasuredContender, MeasurementSettings
from toast_lab.compare.result import UNSHARDED, Certificate, Comparison, ComparisonRow, Predicted
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, StoreError, join_offenders
from toast_lab.files import PathLike
from toast_lab.isolate import Cancel
from toast_lab.runtime import devices as dev
from toast_lab.runtime import inputs as made_up
from toast_lab.runtime.child import OnProgress
from toast_lab.runtime.measuring import Turns
from toast_lab.runtime.run import job_of, reference_job
from toast_lab.sharding import plan_file
from toast_lab.sharding.carried import carry
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.machines.machine_model import Machine

DISTRIBUTED = "distributed"


def compare(
    model: Model | Problem,
    plans: Mapping[str, ShardingPlan] | Sequence[ShardingPlan],
    devices: str = "cpu",
    *,
    problem: Problem | None = None,
    machine: str | Machine | None = None,
    store: bool | PathLike = False,
    on_event: OnProgress | None = None,
    cancel: Cancel | None = None,
    **options: Any,
) -> Comparison:
    """Measure ``plans`` side by side; see ``measure`` for the order of runs.

    Args:
        model: the model that all plans shard, or the problem that prices them.
        plans: by name, or as a sequence, in which case their names are "plan 1", "plan 2", ...
        devices: as for ``tl.run``: "cpu:8", "gpu", "tpu", "auto"; or "distributed", see
            ``distributed.py``.
        problem: prices the plans on its mesh; plans on other meshes get no prediction.
        machine: prices all plans instead, each on its own mesh.
        store: True stores the rows in the default file, a path in that file (``comparison_store``).
        on_event: receives ``RunProgress`` (stage, fraction).
        cancel: polled; True ends the comparison, and rows keep what was measured.
        options: ``repeats``, ``rounds``, ``warmup`` (at least 1; on accelerators in each round),
            ``seed`` (also of the order within a round), ``inputs``, ``reference``, ``gradients``,
            ``tolerance``, ``processes``, ``apart``, ``time_limit_s`` (after which everything still
            to do is left out) and ``plan_time_limit_s``: the fields of ``runtime/measuring.Turns``.

    Raises:
        InvalidPlan: some plans are of another program (all are listed).
        InvalidProblem: unknown or too few devices, wrong options, or inputs that do not fit.

    Failures while a plan is compiled or run are never raised: its row reports them.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> rows = tl.compare(model, {"mine": plan}, "cpu:4", repeats=2, rounds=1)
        >>> rows["mine"].status, rows["mine"].certificate.passed
        ('ok', True)
    """
    if isinstance(model, Problem):
        problem = problem or model
        model = model.analysis.model
    turns = Turns(**options)
    named = _named(model, plans)
    _check_processes(named, turns.processes, devices)
    is_distributed = devices == DISTRIBUTED
    if is_distributed:
        distributed.connect()
    chosen = {name: _devices(devices, plan.mesh.n_devices, cancel) for name, plan in named.items()}
    if is_distributed:
        _check_same(model, named, turns.seed)
    if turns.inputs is not None:
        turns = dataclasses.replace(turns, inputs=made_up.check(model.program, turns.inputs))
    platform = next(iter(chosen.values())).platform
    carried = {name: carry(model, plan, platform) for name, plan in named.items()}
    run_model = next(iter(carried.values())).model
    run_plans = {name: each.plan for name, each in carried.items()}
    traced = (
        gradients.prepare(run_model, list(run_plans.values()), time_limit_s=turns.time_limit_s)
        if turns.gradients and turns.reference
        else gradients.none("gradients were not asked for", len(plans))
    )
    entries = _entries(run_model, run_plans, chosen, traced=traced, turns=turns)
    on_accelerators = platform != "cpu"
    settings = _settings(
        turns,
        plan_time_limit_s=turns.plan_time_limit_s or turns.time_limit_s / len(entries),
        gradients=traced.reference is not None,
        on_accelerators=on_accelerators,
        is_distributed=is_distributed,
    )
    clock_class = distributed.JointClock if is_distributed else measure.Clock
    clock = clock_class(turns.time_limit_s, on_event, cancel)

    def open_host(request: ContenderRequest) -> measure.Host:
        if is_distributed:
            return distributed.OwnProcess(request, clock)
        return measure.Children(request, 1 if request.is_reference else turns.processes, clock)

    with tempfile.TemporaryDirectory(prefix="toast-compare-") as folder:
        non_negative = measure.measure(entries, settings, clock, Path(folder), open_host=open_host)
    processes = len(distributed.exchange(None)) if is_distributed else turns.processes
    tolerance = turns.tolerance_for(model.program)
    prices = _prices(model, named, problem, machine)
    rows = [
        _row(
            entry,
            processes,
            mesh=str(plan.mesh),
            certificate=_certificate(entry, traced, note, tolerance, changes=entries[0].changes),
            predicted=prices.get(name),
            plan=plan_file.to_json(plan),
        )
        for entry, (name, plan), note in zip(
            entries[-len(named) :], named.items(), traced.notes, strict=True
        )
    ]
    inputs = "non-negative" if non_negative else "normal"
    comparison = Comparison(
        model=model.name,
        program_digest=model.program.digest(),
        rows=tuple(rows),
        reference=_row(entries[0], 1) if turns.reference else None,
        inputs="given" if turns.inputs is not None else inputs,
        seed=turns.seed,
        order=_order(settings, is_distributed),
        notes=tuple(dict.fromkeys(note for each in carried.values() for note in each.notes)),
    )
    return _kept(comparison, store, is_distributed)


def _named(
    model: Model, plans: Mapping[str, ShardingPlan] | Sequence[ShardingPlan]
) -> dict[str, ShardingPlan]:
    if isinstance(plans, Mapping):
        plan_of_name = {str(name): plan for name, plan in plans.items()}
    else:
        plan_of_name = {f"plan {index + 1}": plan for index, plan in enumerate(plans)}
    if not plan_of_name:
        raise InvalidProblem("there is no plan to compare")
    if UNSHARDED in plan_of_name:
        raise InvalidProblem(
            f"no plan may be called {UNSHARDED}: the unsharded program has this name"
        )
    digest = model.program.digest()
    offenders = [
        f"{name}: shards {plan.program.name} ({plan.program.digest()})"
        for name, plan in plan_of_name.items()
        if not plan.is_of(model.of_program(plan.program).program)
    ]
    if offenders:
        raise InvalidPlan(
            f"plans of another program than {model.name} ({digest}):\n{join_offenders(offenders)}"
        )
    return plan_of_name


def _check_processes(named: Mapping[str, ShardingPlan], processes: int, devices: str) -> None:
    if processes == 1:
        return
    offenders = [
        f"{name}: {plan.mesh.n_devices} devices cannot be divided among {processes} processes"
        for name, plan in named.items()
        if plan.mesh.n_devices % processes
    ]
    if not str(devices).strip().lower().startswith("cpu"):
        offenders.append(
            f"processes={processes} divides virtual CPU devices; for devices={devices!r} use "
            f'devices="{DISTRIBUTED}" in processes that a launcher starts'
        )
    if offenders:
        raise InvalidProblem(f"cannot compare:\n{join_offenders(offenders)}")


def _devices(devices_text: str, device_count: int, cancel: Cancel | None) -> dev.Devices:
    if devices_text == DISTRIBUTED:
        return dev.Devices(distributed.attached(device_count)[0].platform, device_count)
    return dev.find(devices_text, device_count, time_limit_s=120.0, cancel=cancel)


def _check_same(model: Model, named: Mapping[str, ShardingPlan], seed: int) -> None:
    """Raise InvalidProblem unless all processes compare the same, or they would wait forever."""
    own_input = (
        model.program.digest(),
        [(name, plan.op_factor.tobytes()) for name, plan in named.items()],
        seed,
    )
    differing = [
        process
        for process, other_input in enumerate(distributed.exchange(own_input))
        if other_input != own_input
    ]
    if differing:
        raise InvalidProblem(
            f"processes {differing} compare other plans or another model: start all with the same "
            "arguments"
        )


def _divided(repeats: int, rounds: int) -> tuple[int, ...]:
    """Steps of each round; the first rounds have one more if ``repeats`` does not divide evenly."""
    return tuple(
        repeats // rounds + (round_index < repeats % rounds) for round_index in range(rounds)
    )


def _settings(
    turns: Turns,
    *,
    plan_time_limit_s: float,
    gradients: bool,
    on_accelerators: bool,
    is_distributed: bool,
) -> MeasurementSettings:
    apart = (on_accelerators if turns.apart is None else turns.apart) and not is_distributed
    rounds = min(turns.repeats, turns.rounds or (3 if apart else 5))
    normal_inputs = turns.inputs is not None or not turns.reference
    return MeasurementSettings(
        steps=_divided(turns.repeats, rounds),
        warmup=max(turns.warmup, 1),
        apart=apart,
        gradients=gradients,
        seed=turns.seed,
        non_negative=False if normal_inputs else None,
        plan_time_limit_s=plan_time_limit_s,
    )


def _entries(
    model: Model,
    named: Mapping[str, ShardingPlan],
    chosen: Mapping[str, dev.Devices],
    traced: gradients.Gradients,
    turns: Turns,
) -> list[MeasuredContender]:
    """The contenders to measure: the reference first, if there is one, then the plans in order."""
    first_name = next(iter(named))
    reference = reference_job(model, named[first_name], chosen[first_name].platform)
    unsharded = ContenderRequest(
        name=UNSHARDED,
        program=model.program,
        job=reference,
        is_reference=True,
        gradient=traced.reference,
        gradient_names=traced.names,
        gradient_shapes=traced.shapes,
        devices=dev.Devices(chosen[first_name].platform, reference.mesh.n_devices),
        options=turns,
    )
    sharded = [
        dataclasses.replace(
            unsharded,
            name=name,
            job=job_of(model, plan, chosen[name].platform),
            is_reference=False,
            gradient=gradient,
            devices=chosen[name],
        )
        for (name, plan), gradient in zip(named.items(), traced.planned, strict=True)
    ]
    requests = [unsharded, *sharded] if turns.reference else sharded
    return [MeasuredContender(request) for request in requests]


def _row(entry: MeasuredContender, processes: int, mesh: str = "", **of_plan: Any) -> ComparisonRow:
    """The row of an entry with its measurements, and with the fields that concern its plan."""
    request, compiled = entry.request, entry.compiled
    memory: Mapping[str, int] = compiled.memory if compiled else {}
    return ComparisonRow(
        name=request.name,
        status=entry.status,
        message=entry.message,
        mesh=mesh,
        devices=str(request.devices),
        device_kind=compiled.device_kind if compiled else "",
        n_devices=request.devices.count,
        n_processes=processes,
        batches_s=tuple(entry.batches_s),
        compile_s=compiled.compile_s if compiled else None,
        argument_bytes=memory.get("argument"),
        output_bytes=memory.get("output"),
        temp_bytes=memory.get("temp"),
        peak_bytes=memory.get("peak"),
        allocator_peak_bytes=entry.allocator_peak_bytes,
        collectives=compiled.collectives if compiled else (),
        **of_plan,
    )


def _certificate(
    entry: MeasuredContender,
    traced: gradients.Gradients,
    note: str,
    tolerance: float,
    changes: Mapping[str, float],
) -> Certificate:
    checked, not_checked = [], []
    if entry.errors is not None:
        checked.append(
            f"{len(entry.errors)} outputs against the unsharded program on the same inputs"
        )
    else:
        not_checked.append(
            "outputs: there are no results of the unsharded program, or none of this plan"
        )
    if entry.gradient_errors is not None:
        count = len(entry.gradient_errors) // 2
        checked.append(
            f"loss ({traced.loss}), {count} gradients and {count} arguments after a step of "
            f"gradient descent (rate {gradients.RATE:g}), through plan.jit: the loss is of the "
            "planned program, the derivatives are traced by JAX with the plan's argument shardings"
        )
    else:
        reason = traced.why_not or note or entry.gradient_failure or "the plan did not get that far"
        not_checked.append(f"gradients: {reason}")
    return Certificate(
        outputs=entry.errors,
        gradients=entry.gradient_errors,
        tolerance=tolerance,
        checked=tuple(checked),
        not_checked=tuple(not_checked),
        changes=changes,
    )


def _prices(
    model: Model,
    named: Mapping[str, ShardingPlan],
    problem: Problem | None,
    machine: str | Machine | None,
) -> dict[str, Predicted]:
    if problem is None and machine is None:
        return {}
    analysis = analyse(model) if problem is None else problem.analysis
    problems = {problem.mesh: problem} if problem is not None and machine is None else {}
    predictions = {}
    for name, plan in named.items():
        if plan.mesh not in problems:
            if machine is None:
                continue
            problems[plan.mesh] = Problem(analysis, plan.mesh, machine)
        priced = problems[plan.mesh]
        cost = price(priced, carry(model, plan, priced.machine.compiler).plan)
        counts = collections.Counter(row.kind for row in cost.collectives)
        predictions[name] = Predicted(
            machine=problems[plan.mesh].machine.name,
            time_s=cost.time_s,
            overlapped_s=cost.overlapped_s,
            peak_bytes=cost.peak_bytes,
            collective_counts=dict(counts),
        )
    return predictions


def _order(settings: MeasurementSettings, is_distributed: bool) -> str:
    sizes = " or ".join(str(size) for size in sorted(set(settings.steps)))
    steps = f"{len(settings.steps)} rounds of {sizes} steps for each plan, in a changing order"
    if is_distributed:
        return f"{steps}, in the processes that were launched"
    if settings.apart:
        return f"{steps}; a process for each plan and round, one after the other"
    return f"{steps}; a process for each plan, the others waiting"


def _kept(comparison: Comparison, where: bool | PathLike, is_distributed: bool) -> Comparison:
    """Store the rows, and add their numbers in the store; a failure is only noted."""
    if where is False or (is_distributed and not is_first()):
        return comparison
    try:
        numbers = kept_rows.keep(comparison, None if where is True else where)
    except StoreError as error:
        notes = (*comparison.notes, f"not kept: {error}")
        return dataclasses.replace(comparison, notes=notes)
    return dataclasses.replace(comparison, stored_as=numbers)


def is_first() -> bool:
    """Is this the process that prints and stores results? A single process always is."""
    import jax

    return not jax.distributed.is_initialized() or jax.process_index() == 0
