"""Why a plan does not fit into memory, and the cheapest single changes with which it would.

``why_not`` sorts what is in memory at the peak by its use and its source line, and prices one
change after the other: an action more, what layers keep for the backward pass, a part of the batch
at a time, a longer axis of the mesh, another machine. Each is a problem and a plan of its own, in
which the plan's actions are taken again.

Reference: TOAST section 4.5 penalises plans over the memory limit; it gives no reasons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from toast_lab.advice.padding_search import with_padding
from toast_lab.advice.priced import priced_text, state_after
from toast_lab.advice.program_choices import part_problem, parts_wanted
from toast_lab.advice.recomputation import choices_of
from toast_lab.cost import peak
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import ToastError
from toast_lab.machines.catalogue import MACHINES
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.plan import ShardingPlan, plan_of_state
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, legal_actions
from toast_lab.text import JsonObject, as_html, bytes_text, line_text, table
from toast_lab.written.parts import program_parts
from toast_lab.written.screen import time_text

WEIGHTS, STATES, INPUTS = "weights", "optimizer states", "inputs"
KEPT, GRADIENTS = "kept for the backward pass", "gradients"
GATHERED, RESULTS, TEMPORARY = "gathered copies", "results", "temporary"
MOST_LINES, MOST_CHANGES = 3, 12  #: rows of a text: lines of each kind, and changes


class PeakPart(NamedTuple):
    """What of one kind is in memory at the peak."""

    kind: str
    bytes: float  #: of a device
    #: (source line, bytes) of the ops that made them, the largest first
    lines: tuple[tuple[str, float], ...]


class SingleChange(NamedTuple):
    """One change of the set-up, with the plan's actions taken again."""

    kind: str  #: "action", "recomputation", "padding", "mesh", "batch" or "machine"
    text: str  #: what it changes
    problem: Problem
    plan: ShardingPlan
    time_s: float  #: of a step of the same examples
    peak_bytes: float  #: of a device
    fits: bool

    def __repr__(self) -> str:
        return f"<SingleChange {self}>"

    def __str__(self) -> str:
        return priced_text(self.text, self)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WhyNot:
    """What fills memory at the peak of a plan, and changes that make room, the quickest first."""

    problem: Problem
    plan: ShardingPlan
    cost: Cost
    parts: tuple[PeakPart, ...]  #: the largest first; they add up to the peak
    #: those that fit first, of them those on the same devices, the quickest first; then by peak
    changes: tuple[SingleChange, ...]
    left_out: tuple[str, ...]  #: kinds of changes that could not be tried, with the reason

    @property
    def fits(self) -> bool:
        """Does the plan fit as it is?"""
        return self.cost.fits

    def to_json(self) -> JsonObject:
        """Everything that ``str`` says, as plain data; plans as their actions."""
        return {
            "fits": self.fits,
            "peak_bytes": self.cost.peak_bytes,
            "memory_limit_bytes": self.cost.memory_limit_bytes,
            "parts": [part._asdict() for part in self.parts],
            "changes": [
                {
                    "kind": change.kind,
                    "text": change.text,
                    "actions": list(change.plan.history),
                    "mesh": dict(
                        zip(change.problem.mesh.axes, change.problem.mesh.sizes, strict=True)
                    ),
                    "machine": change.problem.machine.name,
                    "time_s": change.time_s,
                    "peak_bytes": change.peak_bytes,
                    "fits": change.fits,
                }
                for change in self.changes
            ],
            "left_out": list(self.left_out),
        }

    def __repr__(self) -> str:
        return f"<WhyNot {str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        cost, machine = self.cost, self.problem.machine
        need, limit = bytes_text(cost.peak_bytes), bytes_text(cost.memory_limit_bytes)
        share = cost.memory_limit_bytes / machine.memory_bytes
        of_all = f" ({share:.0%} of {machine.name}'s {bytes_text(machine.memory_bytes)})"
        verb = "fits into" if cost.fits else "does not fit into"
        lines = [
            f"{need} a device {verb} {limit}{of_all if share < 0.995 else f' of {machine.name}'}"
        ]
        rows = [
            (
                part.kind,
                bytes_text(part.bytes),
                f"{part.bytes / cost.peak_bytes:.0%}",
                ", ".join(f"{line} {bytes_text(held)}" for line, held in part.lines[:MOST_LINES]),
            )
            for part in self.parts
        ]
        lines.append(table(("at the peak", ">bytes", ">share", "made at"), rows))
        if self.changes:
            shown = [
                (
                    change.text,
                    time_text(change.time_s),
                    bytes_text(change.peak_bytes),
                    "fits" if change.fits else "does not fit",
                )
                for change in self.changes
            ]
            lines.append(table(("one change", ">step", ">memory", ""), shown, MOST_CHANGES))
        if not any(change.fits for change in self.changes):
            lines.append("No single change that was tried makes it fit.")
        return "\n".join([*lines, *self.left_out])

    _repr_html_ = as_html


def why_not(
    problem: Problem,
    plan: ShardingPlan,
    *,
    recompute: bool = True,
    cancel: Callable[[], bool] | None = None,
) -> WhyNot:
    """What fills memory at the peak of ``plan``, and single changes that bring it under the limit.

    Changes are tried on the plan's actions; what refined it after them is left out, so that a
    change of a refined plan may take more memory than the plan.

    Args:
        problem: program, mesh, machine and memory limit.
        plan: a plan of it.
        recompute: trace the function again for what layers may keep for the backward pass.
        cancel: polled between changes; True ends with those that were priced.

    Raises:
        InvalidPlan: ``plan`` is of another program or mesh.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("transformer", layers=2, batch=16, sequence=1024)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 4}, memory_limit_bytes=2**30)
        >>> reasons = tl.why_not(problem, tl.Plan.from_actions(problem, ["batch->data"]))
        >>> reasons.parts[0].kind, reasons.fits
        ('kept for the backward pass', False)
        >>> reasons.changes[0].fits
        True
    """
    plan.check_is_of(problem.analysis.program, problem.mesh)
    cost = price(problem, plan)
    actions = [text for text in plan.history if _is_action(problem, text)]
    changes, left_out = [], []
    for kind, find in (
        ("action", _actions),
        ("recomputation", _recomputations),
        ("padding", _paddings),
        ("batch", _batches),
        ("mesh", _meshes),
        ("machine", _machines),
    ):
        if kind == "recomputation" and not recompute:
            continue
        try:
            for change in find(problem, actions):
                changes.append(change)
                if cancel is not None and cancel():
                    break
        except ToastError as error:
            left_out.append(f"No change of {kind} was tried: {str(error).splitlines()[0]}")
        if cancel is not None and cancel():
            break
    changes = [change for change in changes if change.fits or change.peak_bytes < cost.peak_bytes]
    changes.sort(key=lambda change: (not change.fits, change.kind in _MORE, _cost_of(change)))
    return WhyNot(
        problem,
        plan,
        cost,
        parts=_parts(problem, cost),
        changes=tuple(changes),
        left_out=tuple(left_out),
    )


_MORE = ("mesh", "machine")  #: kinds of change that need other devices


def _cost_of(change: SingleChange) -> float:
    return change.time_s if change.fits else change.peak_bytes


def _is_action(problem: Problem, text: str) -> bool:
    try:
        parse_action(problem.analysis, problem.mesh, text)
    except ToastError:
        return False
    return True


# -- what is in memory -----------------------------------------------------------------------------
def _parts(problem: Problem, cost: Cost) -> tuple[PeakPart, ...]:
    """What is in memory at the peak, by its use."""
    program, parts = problem.analysis.program, program_parts(problem.analysis)
    of_value = {name: value for value, name in enumerate(program.value_name)}
    parameters, states = set(parts.parameters), set(parts.states)
    shapes = {tuple(program.dims(parameter)) for parameter in parameters}
    is_backward = ["transpose(" in name for name in program.name_stack]
    read_backward = {
        int(program.use_value[use])
        for op in program.ops()
        if is_backward[op]
        for use in program.uses(op)
    }

    def kind_of(held: peak.Held) -> str:
        value = of_value.get(held.value, -1)
        if held.kind == peak.COPY:
            return GATHERED
        if held.kind == peak.KEPT_FOR_RESULTS:
            return RESULTS
        if held.kind == peak.IN_VECTOR_MEMORY:
            return peak.IN_VECTOR_MEMORY
        if held.kind == peak.ARGUMENT:
            return WEIGHTS if value in parameters else STATES if value in states else INPUTS
        if value < 0:
            return TEMPORARY
        if held.kind == peak.COMPUTED_AGAIN:
            return held.kind
        if is_backward[held.op]:
            return GRADIENTS if tuple(program.dims(value)) in shapes else TEMPORARY
        return KEPT if value in read_backward else TEMPORARY

    bytes_of: dict[str, dict[str, float]] = {}
    for held in cost.at_peak:
        lines = bytes_of.setdefault(kind_of(held), {})
        line = line_text(held.where) if held.op >= program.n_arguments else held.value
        lines[line] = lines.get(line, 0.0) + held.bytes
    parts_at_peak = [
        PeakPart(kind, sum(lines.values()), tuple(sorted(lines.items(), key=lambda row: -row[1])))
        for kind, lines in bytes_of.items()
    ]
    return tuple(sorted(parts_at_peak, key=lambda part: -part.bytes))


# -- changes ---------------------------------------------------------------------------------------
def _changed(
    kind: str, text: str, problem: Problem, actions: Sequence[str], *, steps: int = 1
) -> SingleChange | None:
    """A change of the problem, with these actions; None: one of them is not possible there."""
    reached = state_after(problem, actions)
    if reached is None:
        return None
    state, taken = reached
    quick = problem.pricer().quick(state)
    return SingleChange(
        kind,
        text,
        problem,
        plan_of_state(state, taken),
        time_s=quick.time_s * steps,
        peak_bytes=quick.peak_bytes,
        fits=quick.fits,
    )


def _actions(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    state = State(problem.space)
    for action in actions:
        state.apply(parse_action(problem.analysis, problem.mesh, action))
    for further in legal_actions(state, pruning_threshold(problem)):
        text = problem.space.text(further)
        change = _changed("action", f"also {text}", problem, [*actions, text])
        if change is not None:
            yield change


def _recomputations(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    for name, (policies, own) in choices_of(problem, True).items():
        change = _changed("recomputation", name, own, actions) if policies else None
        if change is not None:
            yield change


def _paddings(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    for _, text, own, taken in with_padding(problem, actions):
        change = _changed("padding", text, own, taken)
        if change is not None:
            yield change


def _meshes(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    mesh = problem.mesh
    for factor in (2, 4):
        for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
            sizes = dict(zip(mesh.axes, mesh.sizes, strict=True)) | {axis: size * factor}
            try:
                own = problem.on_mesh(sizes)
                change = _changed("mesh", f"the mesh {own.mesh}", own, actions)
            except ToastError:  # more devices than the links connect
                continue
            if change is not None:
                yield change


def _batches(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    for steps in parts_wanted(problem.analysis.model, batch=True):
        own, batch = part_problem(problem.unpinned, steps)
        text = f"batch {batch} {steps} times, gradients added up"
        change = _changed("batch", text, own, actions, steps=steps)
        if change is not None:
            yield change
            if change.fits:
                break


def _machines(problem: Problem, actions: Sequence[str]) -> Iterator[SingleChange]:
    share = min(1.0, problem.memory_limit_bytes / problem.machine.memory_bytes)
    for name, machine in MACHINES.items():
        if machine.memory_bytes <= problem.machine.memory_bytes or name == problem.machine.name:
            continue
        try:
            # Whoever leaves room for something else does so on another machine, too
            limit_bytes = machine.memory_bytes * share
            own = Problem(problem.analysis, problem.mesh, machine, memory_limit_bytes=limit_bytes)
            change = _changed("machine", f"the machine {name}", own, actions)
        except ToastError:  # its links do not connect so many, or JAX lowers other ops for it
            continue
        if change is not None:
            yield change
