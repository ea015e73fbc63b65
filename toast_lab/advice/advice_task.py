"""One piece of an advice's work, and what a worker does with it.

A task prices the plans that experts would try on all meshes that are alike, or searches on one of
them. Its program comes as a *parcel*, a file with the analysis, so that no worker traces or
analyses anything; the last few are kept.

Start reading at ``run_advice_task``.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import json
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from toast_lab import checks
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.isolate import Cancel
from toast_lab.machines.machine_model import Machine
from toast_lab.search.contract import Budget, Status, search
from toast_lab.search.search_child import FAILED
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions, plan_of_state
from toast_lab.sharding.state import State
from toast_lab.sweep.sweep_worker import code_digest, failed_row, task_row
from toast_lab.sweep.task import SweepTask, TaskRow
from toast_lab.written.parts import program_parts

UNSHARDED = "unsharded"
SEARCH = "search"
EXPERTS, SEARCHES = "manual", "mcts"  #: methods of the tasks
#: seconds for the plans that come with a built-in model, on all assignments of axes
EXPERT_SECONDS = 20.0
KEPT_PROGRAMS = 4  #: of a worker; one with its tables takes some 100 MB


class Parcel(NamedTuple):
    """What a worker needs to make problems of one program."""

    analysis: Analysis
    machine: Machine
    memory_limit_bytes: float
    #: bytes of gradients that stay in memory between the parts of a batch, on one device, whole;
    #: by argument. Empty if the whole batch is one part
    held: Mapping[int, int]


def held_bytes(analysis: Analysis) -> dict[int, int]:
    """Bytes of the gradients of each parameter, by argument; empty without a backward pass."""
    program = analysis.program
    if not any("transpose(" in name for name in program.name_stack):
        return {}
    parameters = program_parts(analysis).parameters
    return {argument: int(program.nbytes(argument)) for argument in parameters}


@dataclasses.dataclass(frozen=True)
class AdviceTask(SweepTask):
    """Price the usual plans on alike meshes (method EXPERTS), or search on ``mesh``."""

    run_function: ClassVar[str] = "toast_lab.advice.advice_task:run_advice_task"

    program: str = ""  #: digest of the parcel
    meshes: tuple[str, ...] = ()  #: those to price usual plans on
    code: str = dataclasses.field(default_factory=code_digest)  #: that decides the rows
    folder: str = ""  #: of parcels; no part of what the task is

    @property
    def parcel(self) -> str:
        """The file with the program."""
        return str(Path(self.folder) / f"{self.program}.pickle")

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data but the folder."""
        data = super().to_json()
        del data["folder"]
        return {**data, "meshes": list(self.meshes)}


class PricedPlan(NamedTuple):
    """A plan of a task, with its price on its mesh."""

    mesh: str
    name: str  #: "fully sharded", UNSHARDED or SEARCH
    time_s: float  #: of one run of the program
    peak_bytes: float  #: of a device, with gradients that are held between parts of a batch
    fits: bool
    actions: tuple[str, ...]
    packed: str = ""  #: the whole plan as ``packed_plan`` writes it; empty: its actions give it

    def plan(self, problem: Problem) -> ShardingPlan:
        """The plan; ``problem`` is on its mesh."""
        if not self.packed:
            return plan_of_actions(problem.space, self.actions)
        data = json.loads(zlib.decompress(base64.b64decode(self.packed)))
        return plan_file.from_json(data, problem.analysis, problem.mesh)


def packed_plan(plan: ShardingPlan) -> str:
    """A plan as a short text."""
    text = json.dumps(plan_file.to_json(plan), separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def plans_of(row: Mapping[str, Any]) -> list[PricedPlan]:
    """The plans of a task's row."""
    return [
        PricedPlan(**{**plan, "actions": tuple(plan["actions"])}) for plan in row.get("plans", ())
    ]


def advice_row_offence(row: Mapping[str, Any]) -> str:
    """What is wrong with a line of a file of rows; empty if it is a row of an advice's task."""
    if offence := checks.row_offence(
        row, texts=("program", "method", "status", "message"), numbers=("elapsed_s",)
    ):
        return offence
    plans = row.get("plans")
    if not isinstance(plans, list):
        return "it lacks its plans"
    for plan in plans:
        if not isinstance(plan, dict) or plan.keys() != set(PricedPlan._fields):
            return "a plan lacks some of its fields"
        if offence := checks.row_offence(
            plan, texts=("mesh", "name", "packed"), numbers=("time_s", "peak_bytes")
        ):
            return offence
    task = {field.name: row.get(field.name) for field in dataclasses.fields(AdviceTask)}
    del task["folder"]
    task["evaluations"] = row.get("evaluations_limit")
    digest = hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:16]
    return "" if row["digest"] == digest else f"its digest is not {digest}, that of its task"


# -- in the worker ---------------------------------------------------------------------------------
_kept: collections.OrderedDict[str, tuple[Parcel, Problem]] = collections.OrderedDict()


def _program(task: AdviceTask, data: bytes | None) -> tuple[Parcel, Problem]:
    """The parcel of a task, and a problem of its program, on any mesh."""
    if task.program not in _kept:
        parcel: Parcel = pickle.loads(Path(task.parcel).read_bytes() if data is None else data)
        problem = Problem(
            parcel.analysis,
            task.mesh,
            parcel.machine,
            memory_limit_bytes=parcel.memory_limit_bytes,
        )
        _kept[task.program] = parcel, problem
        while len(_kept) > KEPT_PROGRAMS:
            _kept.popitem(last=False)
    _kept.move_to_end(task.program)
    return _kept[task.program]


def run_advice_task(
    task: AdviceTask,
    target: str = "",
    retries: int = 1,
    cancel: Cancel | None = None,
    data: bytes | None = None,
) -> TaskRow:
    """Do one task and give its row; failures of the task are in the row, and not raised.

    Args:
        task: the task.
        target: of no use here, methods are built-in ones.
        retries: of no use here, the pool tries again if this process dies.
        cancel: polled during a search.
        data: the content of the task's parcel; None: it is in its file.
    """
    try:
        parcel, base = _program(task, data)
        if task.method == EXPERTS:
            plans = [plan for mesh in task.meshes for plan in _usual(parcel, base.on_mesh(mesh))]
            status, evaluations, elapsed_s = Status.DONE.name, len(plans), None
        else:
            problem = _leaving_room(parcel, base.on_mesh(task.mesh))
            result = search(
                problem,
                task.method,
                task.seed,
                Budget(task.seconds, task.evaluations),
                cancel=cancel,
                actions_within=0.0,
                **dict(task.options),
            )
            cost = result.cost
            quick = Quick(cost.score, cost.time_s, cost.peak_bytes, fits=cost.fits)
            packed = "" if _is_of_actions(problem, result.plan) else packed_plan(result.plan)
            plans = [_priced(parcel, problem, result.plan, quick, name=SEARCH, packed=packed)]
            status, evaluations = result.status.name, result.evaluations
            elapsed_s = result.elapsed_s
    except ToastError as error:
        return {**failed_row(task, error, FAILED), "plans": []}
    return {
        **task_row(task),
        "status": status,
        "message": "",
        "evaluations": evaluations,
        "elapsed_s": elapsed_s,
        "plans": [plan._asdict() for plan in plans],
    }


def _is_of_actions(problem: Problem, plan: ShardingPlan) -> bool:
    if plan.refinements:
        return False
    return plan_of_actions(problem.space, plan.actions).sharding.same_as(plan.sharding)


def _leaving_room(parcel: Parcel, problem: Problem) -> Problem:
    """The problem with a limit that leaves room for held gradients, split over all devices."""
    held = sum(parcel.held.values()) / problem.mesh.n_devices
    if not held:
        return problem
    limit_bytes = max(parcel.memory_limit_bytes - held, 1.0)
    return problem._copy(memory_limit_bytes=limit_bytes)


def _usual(parcel: Parcel, problem: Problem) -> Iterator[PricedPlan]:
    """The unsharded program, the usual plans, and the best of those that come with the model."""
    pricer, space = problem.pricer(), problem.space

    def of_actions(name: str, actions: Iterable[Any]) -> PricedPlan:
        state, taken = State(space), []
        for action in actions:
            if state.apply(action):
                taken.append(action)
        plan = plan_of_state(state, taken)
        return _priced(parcel, problem, plan, pricer.quick(state), name=name)

    yield of_actions(UNSHARDED, ())
    if problem.mesh.n_devices == 1:
        return
    for name, actions in usual_plans(problem).items():
        yield of_actions(name, actions)
    model = problem.analysis.model
    if model.expert_plans:
        budget = Budget(EXPERT_SECONDS)
        try:
            result = search(problem, EXPERTS, budget=budget, plans=model.expert_plans)
        except InvalidPlan:  # they name a colour that a part of one example does not have
            return
        cost = result.cost
        quick = Quick(cost.score, cost.time_s, cost.peak_bytes, fits=cost.fits)
        yield _priced(parcel, problem, result.plan, quick, name=f"expert's of {model.name}")


def _priced(
    parcel: Parcel,
    problem: Problem,
    plan: ShardingPlan,
    quick: Quick,
    *,
    name: str,
    packed: str = "",
) -> PricedPlan:
    mesh = problem.mesh
    held = sum(
        size / mesh.ways(axis for axis, dim in zip(mesh.axes, dims, strict=True) if dim >= 0)
        for argument, size in parcel.held.items()
        for dims in [plan.value_dim[argument].tolist()]
    )
    peak_bytes = float(quick.peak_bytes) + held
    return PricedPlan(
        mesh=str(mesh),
        name=name,
        time_s=float(quick.time_s),
        peak_bytes=peak_bytes,
        fits=bool(peak_bytes <= parcel.memory_limit_bytes),
        actions=plan.history,
        packed=packed,
    )
