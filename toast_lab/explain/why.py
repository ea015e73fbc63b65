"""Why a plan has a collective, and what removing it would take.

    for reason in tl.why(problem, plan, "all_gather"):
        print(reason)

A plan has a collective because an op needs a value in another layout than the value is kept in, or
because an op is split along a dim that it sums over. Both have causes: the plan's actions that put
a mesh axis on that value, on the op that makes it and on the op that reads it. Replaying the
actions one by one finds them; what no action explains counts as refinement. The plan is priced
without each cause. Then small changes around the place are tried, and the cheapest that removes the
collective is reported.

Start reading at ``why``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.problem import CollectiveRow, Cost, Problem, price
from toast_lab.errors import InvalidPlan, ToastError, did_you_mean
from toast_lab.ir.locations import place_text
from toast_lab.sharding.plan import ShardingPlan, Spec, spec_text
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State
from toast_lab.text import as_html, bytes_text, first_items_text, line_text

WRITTEN_CAUSE = "the program"  #: the cause of what the user wrote
SPECS_CAUSE = "the specs of the shard_map"
REFINEMENT_CAUSE = "refinement"  #: the cause given for what no action of the plan did
MAX_COLLECTIVES = 50  #: maximum number of collectives in one question
SHOWN_REASONS = 8  #: maximum number of reasons that ``str()`` writes out


class Change(NamedTuple):
    """Another plan, compared with the one asked about."""

    text: str  #: what it changes
    plan: ShardingPlan
    time_s: float  #: of its step
    peak_bytes: float
    fits: bool
    more_time_s: float  #: than the plan asked about; negative: it is faster
    more_peak_bytes: float
    removes: bool  #: the collective asked about is gone

    def __repr__(self) -> str:
        return f"<Change {self}>"

    def __str__(self) -> str:
        sign = "+" if self.more_peak_bytes >= 0 else "-"
        memory = sign + bytes_text(abs(self.more_peak_bytes))
        stays = "" if self.removes else ", but the collective stays"
        fits = "" if self.fits else ", does not fit"
        return f"{self.text}: {self.more_time_s * 1e6:+.1f} us a step, {memory}{fits}{stays}"


@dataclasses.dataclass(frozen=True)
class CollectiveReason:
    """Why a plan has one collective; ``str()`` is a paragraph."""

    collective: CollectiveRow
    op_kind: str
    place: str  #: the user's line of the op and those that call it: "model.py:31 < train.py:7"
    name_stack: str
    because: str  #: the immediate reason, as a sentence
    colours: tuple[str, ...]  #: of the dims that the axes are on
    conflict: str  #: the resolution that decided it, "" if there is no conflict on the tensor
    causes: tuple[str, ...]  #: actions, or ``REFINEMENT_CAUSE``
    undoing: tuple[Change, ...]  #: the plan without each cause that is an action
    #: of all changes tried, the one that removes the collective at the least cost; None: none does
    cheapest: Change | None

    def __repr__(self) -> str:
        return f"<Reason for {self.collective.kind} of {self.collective.value} at {self.place}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        collective = self.collective
        lines = [
            f"{collective.kind} {{{','.join(collective.axes)}}} of {collective.value}, "
            f"{bytes_text(collective.local_bytes)}, {collective.time_s * 1e6:.1f} us",
            f"  at      {self.op_kind}, {self.place}"
            + (f" ({self.name_stack})" if self.name_stack else ""),
            f"  because {self.because}",
            f"  from    {', '.join(self.causes) or 'no action: the op cannot be split'}",
        ]
        if self.conflict:
            lines.append(f"  conflict {self.conflict}")
        lines += [f"  undo    {change}" for change in self.undoing]
        lines.append(f"  instead {self.cheapest or 'no change that was tried removes it'}")
        return "\n".join(lines)


class Reasons(list[CollectiveReason]):
    """Reasons in the order of the collectives; ``str()`` shows a few, the most costly first."""

    def text(self, limit: int | None = SHOWN_REASONS) -> str:
        """At most ``limit`` reasons as paragraphs, the most costly collectives first."""
        costly = sorted(self, key=lambda reason: -reason.collective.time_s)
        shown = [str(reason) for reason in costly[:limit]]
        hidden = costly[len(shown) :]
        if hidden:
            time_s = sum(reason.collective.time_s for reason in hidden)
            shown.append(
                f"... and {len(hidden)} more, {time_s * 1e6:.1f} us together: "
                "print(reasons.text(None)) shows all, or ask about a line or a value"
            )
        return "\n\n".join(shown) or "no collectives"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<Reasons for {len(self)} collectives, "
            f"{sum(reason.collective.time_s for reason in self) * 1e6:.1f} us>"
        )

    def _repr_html_(self) -> str:
        return as_html(self)


def why(
    problem: Problem, plan: ShardingPlan, which: CollectiveRow | int | str | Iterable[int]
) -> Reasons:
    """Explain why a plan has certain collectives.

    Args:
        problem: the plan's problem.
        plan: the plan.
        which: a row of ``price(problem, plan).collectives``, its number, or several numbers; or a
            text: a kind ("all_gather"), a kind of op ("dot_general"), the name of a value, or part
            of a source line ("model.py:31") of the op or else of its callers.

    Raises:
        InvalidPlan: the plan belongs to another program or mesh.
        ToastError: the plan has no such collective, or more than ``MAX_COLLECTIVES`` of them.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> plan = tl.Plan.from_actions(problem, ["S@0->data"])
        >>> reason = tl.why(problem, plan, "all_gather")[0]
        >>> reason.collective.kind, reason.causes
        ('all_gather', ('S@0->data',))
    """
    problem = problem.unpinned  # pins are shown like the plan's other actions
    cost = price(problem, plan)
    asker = _Asker(problem, plan, cost)
    return Reasons(asker.answer(row) for row in _chosen(problem, cost, which))


def _chosen(
    problem: Problem, cost: Cost, which: CollectiveRow | int | str | Iterable[int]
) -> Iterable[CollectiveRow]:
    rows = cost.collectives
    if isinstance(which, int):
        if not 0 <= which < len(rows):
            raise ToastError(
                f"this plan has {len(rows)} collectives, so there is no number {which}"
            )
        return [rows[which]]
    if isinstance(which, CollectiveRow):
        if which not in rows:
            raise ToastError(f"this plan has no such collective: {which}")
        return [which]
    if not isinstance(which, str):
        return [row for index in which for row in _chosen(problem, cost, int(index))]
    program = problem.analysis.program
    kinds = program.kind
    matching = (
        [row for row in rows if which in (row.kind, kinds[row.op], row.value)]
        or [row for row in rows if which in row.where]
        or [row for row in rows if which in program.locations[int(program.location[row.op])]]
    )
    if not matching:
        if not rows:
            raise ToastError(
                "this plan has no collectives, so there is none of the kind, op, value or line "
                f"{which!r}"
            )
        known = sorted({name for row in rows for name in (row.kind, kinds[row.op], row.value)})
        lines = sorted({f"{row.kind} at {line_text(row.where)}" for row in rows})
        raise ToastError(
            "no collective of this plan has the kind, op, value or line "
            f"{which!r}{did_you_mean(which, known)}; there are {len(rows)}: "
            f"{first_items_text(lines, 10)}"
        )
    if len(matching) > MAX_COLLECTIVES:
        raise ToastError(
            f"{len(matching)} collectives match {which!r}, ask about at most {MAX_COLLECTIVES}: "
            "give a line or a value"
        )
    return matching


class _Asker:
    """Finds the causes of a plan's collectives and prices changes to the plan, each once."""

    def __init__(self, problem: Problem, plan: ShardingPlan, cost: Cost) -> None:
        self.problem, self.plan, self.cost = problem, plan, cost
        self.program, self.analysis = problem.analysis.program, problem.analysis
        self.actions = _actions(problem, plan)
        self.texts = list(map(problem.space.text, self.actions))
        shape = plan.op_factor.shape, plan.value_dim.shape
        # -1: refinement
        self.op_cause, self.value_cause = np.full(shape[0], -1), np.full(shape[1], -1)
        state = State(problem.space)
        for i, action in enumerate(self.actions):
            before = state.op_factor.copy(), state.value_dim.copy()
            state.apply(action)
            self.op_cause[state.op_factor != before[0]] = i
            self.value_cause[state.value_dim != before[1]] = i
        self.op_cause[state.op_factor != plan.op_factor] = -1
        self.value_cause[state.value_dim != plan.value_dim] = -1
        self.exact = bool(
            (state.op_factor == plan.op_factor).all() and (state.value_dim == plan.value_dim).all()
        )
        self.kept = plan.value_specs()
        self._wants = plan.lowered.wanted
        self.values = {name: value for value, name in enumerate(self.program.value_name)}
        self.without: dict[int, Change | None] = {}
        self.settled: dict[tuple[int, int], Change | None] = {}

    def answer(self, row: CollectiveRow) -> CollectiveReason:
        if row.by_hand:
            return self._written(row)
        program, value = self.program, self.values[row.value]
        defines = int(program.value_op[value]) == row.op
        axes = [self.plan.mesh.axes.index(axis) for axis in row.axes]
        causes = self._causes(row, value, axes, defines)
        undoing = tuple(
            change for i in causes if i >= 0 and (change := self._undo(i, row)) is not None
        )
        resettled = (change for i in causes if i >= 0 for change in self._settle(i, row))
        tried = [*undoing, *resettled, *self._around(row, value, axes)]
        removing = [change for change in tried if change.removes]
        return CollectiveReason(
            collective=row,
            op_kind=program.kind[row.op],
            place=place_text(program.locations[int(program.location[row.op])]),
            name_stack=program.name_stack[row.op],
            because=self._because(row, value, axes, defines) + self._again(row.op),
            colours=tuple(dict.fromkeys(self._colours(row, value, axes))),
            conflict=self._conflict(row, value),
            causes=tuple(self.texts[i] if i >= 0 else REFINEMENT_CAUSE for i in causes)
            or ((SPECS_CAUSE,) if program.kind[row.op] == "shard_map" else ()),
            undoing=undoing,
            cheapest=min(
                removing, key=lambda option: (not option.fits, option.time_s), default=None
            ),
        )

    def _written(self, row: CollectiveRow) -> CollectiveReason:
        """The reason of a collective that the user wrote."""
        program = self.program
        return CollectiveReason(
            collective=row,
            op_kind="shard_map",
            place=place_text(program.locations[int(program.location[row.op])]),
            name_stack=program.name_stack[row.op],
            because=f"it is written so inside the shard_map, at {line_text(row.where)}; every plan "
            "keeps it",
            colours=(),
            conflict="",
            causes=(WRITTEN_CAUSE,),
            undoing=(),
            cheapest=None,
        )

    # -- sentences --------------------------------------------------------------------------------
    def _because(self, row: CollectiveRow, value: int, axes: Sequence[int], defines: bool) -> str:
        kind, kept = self.program.kind[row.op], spec_text(self.kept[value])
        if not defines:
            read = spec_text(self._wanted(row, value))
            return f"{row.value} is kept as {kept} and {kind} reads it as {read}"
        factors = [(axis, int(self.plan.op_factor[row.op, axis])) for axis in axes]
        summed = [
            f"{self.analysis.dim_text(factor)} over {self.plan.mesh.axes[axis]}"
            for axis, factor in factors
            if factor >= 0 and factor not in self.program.def_names(value)
        ]
        if summed:
            return (
                f"{kind} is split along a dim that it sums over ({', '.join(summed)}), so partial "
                "sums must be added"
            )
        return f"{row.value} is kept as {kept}, but its op produces another layout"

    def _again(self, op: int) -> str:
        """What layers keep decides how often a collective of the forward pass is sent."""
        if not self.program.is_computed_again(op):
            return ""
        kept = "; ".join(map(str, self.analysis.model.recompute)) or "jax.checkpoint is around it"
        return f", in what the backward pass computes again ({kept})"

    def _wanted(self, row: CollectiveRow, value: int) -> Spec:
        program = self.program
        for use in program.uses(row.op):
            if int(program.use_value[use]) == value:
                return self.plan.spec(int(self._wants[use]), len(program.dims(value)))
        return self.kept[value]

    def _colours(self, row: CollectiveRow, value: int, axes: Sequence[int]) -> Iterator[str]:
        names = self.program.def_names(value)
        for axis in axes:
            dim, factor = self.plan.value_dim[value, axis], self.plan.op_factor[row.op, axis]
            if dim >= 0:
                yield self.analysis.dim_text(names[dim])
            if factor >= 0:
                yield self.analysis.dim_text(factor)

    def _conflict(self, row: CollectiveRow, value: int) -> str:
        """The first conflict on the value or the op's tensors, as the plan's actions settle it."""
        analysis, program = self.analysis, self.program
        tensors = {value, *program.operands(row.op), *program.results(row.op)}
        for conflict in analysis.conflicts:
            if not any(place.value in tensors for place in conflict.places):
                continue
            settled = analysis.compatibility_sets[conflict.set]
            group = int(analysis.group[settled.colour])
            for action in self.actions:
                if action.group == group:
                    classes = analysis.groups[group].resolutions
                    bit = action.bits >> (len(classes) - 1 - classes.index(settled.resolution)) & 1
                    dims = [analysis.name_text[name] for name in conflict.sides]
                    side = bit ^ int(settled.flipped)
                    return (
                        f"{dims[0]} and {dims[1]} of "
                        f"{program.value_name[conflict.places[0].value]} have one colour; "
                        f"{self.problem.space.text(action)} shards {dims[side]}"
                    )
        return ""

    # -- causes -----------------------------------------------------------------------------------
    def _causes(
        self, row: CollectiveRow, value: int, axes: Sequence[int], defines: bool
    ) -> list[int]:
        """Indices of the actions that put the axes on the value and its ops, -1 for refinement."""
        causes: dict[int, None] = {}
        ops = [row.op] if defines else [row.op, int(self.program.value_op[value])]
        for axis in axes:
            for op in ops:
                if self.plan.op_factor[op, axis] >= 0:
                    causes[int(self.op_cause[op, axis])] = None
            if self.plan.value_dim[value, axis] >= 0:
                causes[int(self.value_cause[value, axis])] = None
        if not causes and not self.exact:
            causes[-1] = None
        return list(causes)

    # -- changes ----------------------------------------------------------------------------------
    def _replayed(self, i: int, *instead: Action) -> tuple[State, tuple[str, ...]]:
        """State and texts of the plan's actions with ``instead`` in place of action ``i``."""
        space = self.problem.space
        state = State(space)
        actions = [*self.actions[:i], *instead, *self.actions[i + 1 :]]
        for action in actions:
            state.apply(action)
        return state, tuple(map(space.text, actions))

    def _undo(self, i: int, row: CollectiveRow) -> Change | None:
        """The plan without action ``i``; what refinement changed is left as it is."""
        if i not in self.without:
            state, actions = self._replayed(i)
            sharding = self.plan.sharding.copy()
            affected = self.op_cause >= i, self.value_cause >= i
            sharding.op_factor[affected[0]] = state.op_factor[affected[0]]
            sharding.value_dim[affected[1]] = state.value_dim[affected[1]]
            if self.exact:
                sharding = Sharding(state.op_factor, state.value_dim)
            self.without[i] = self._change(f"without {self.texts[i]}", sharding, actions=actions)
        change = self.without[i]
        return None if change is None else change._replace(removes=self._gone(change.plan, row))

    def _settle(self, i: int, row: CollectiveRow) -> Iterator[Change]:
        """The plan with each conflict of action ``i`` settled the other way; none if refined."""
        action, space = self.actions[i], self.problem.space
        if not self.exact:
            return
        for bit in range(len(self.analysis.groups[action.group].resolutions)):
            other = action._replace(bits=action.bits ^ (1 << bit))
            if not ((space.group == other.group) & (space.bits == other.bits)).any():
                continue
            if (i, bit) not in self.settled:
                state, actions = self._replayed(i, other)
                self.settled[i, bit] = self._change(
                    f"{space.text(other)} instead of {self.texts[i]}",
                    Sharding(state.op_factor, state.value_dim),
                    actions=actions,
                )
            change = self.settled[i, bit]
            if change is not None:
                yield change._replace(removes=self._gone(change.plan, row))

    def _around(self, row: CollectiveRow, value: int, axes: list[int]) -> Iterator[Change]:
        """Small local changes: take the axes off the value or an op, or keep the value as read."""
        program, plan = self.program, self.plan
        definer = int(program.value_op[value])
        op_text = f"{program.kind[row.op]} ({line_text(row.where)})"
        axis_text = " and ".join(row.axes)
        split = f"do not split {op_text} over {axis_text}"
        changes: list[tuple[str, list[int], dict[int, Spec | None]]] = [
            (split, [row.op], {}),
            (f"{split}, nor its results", [row.op], dict.fromkeys(program.results(row.op))),
            (f"keep {row.value} without {axis_text}", [], {value: None}),
        ]
        if definer != row.op:
            read = self._wanted(row, value)
            neither = f"neither split {op_text} nor keep {row.value} over {axis_text}"
            changes.append((f"keep {row.value} as {spec_text(read)}", [], {value: read}))
            changes.append((neither, [row.op], {value: None}))
            if definer >= program.n_arguments:
                neither = f"split neither {row.value} nor the op that computes it over {axis_text}"
                changes.append((neither, [definer], {value: None}))
        for change, ops, specs in changes:
            sharding = plan.sharding.copy()
            for op in ops:
                sharding.op_factor[op, axes] = -1
            for changed_value, spec in specs.items():
                if spec is None:
                    sharding.value_dim[changed_value, axes] = -1
                else:
                    sharding.value_dim[changed_value] = plan.mesh.cut_dims(spec)
            priced = self._change(change, sharding, row=row)
            if priced is not None:
                yield priced

    def _change(
        self,
        change: str,
        sharding: Sharding,
        *,
        actions: tuple[str, ...] = (),
        row: CollectiveRow | None = None,
    ) -> Change | None:
        """Price a changed plan; None if nothing changed or it cannot be executed."""
        plan = self.plan
        if sharding.same_as(plan.sharding):
            return None
        other = dataclasses.replace(
            plan,
            sharding=sharding.frozen(),
            actions=actions or plan.actions,
            refinements=plan.refinements if actions else (*plan.refinements, change),
            key=0,
        )
        try:
            other.check()
        except InvalidPlan:
            return None
        cost = price(self.problem, other)
        return Change(
            text=change,
            plan=other,
            time_s=cost.time_s,
            peak_bytes=cost.peak_bytes,
            fits=cost.fits,
            more_time_s=cost.time_s - self.cost.time_s,
            more_peak_bytes=cost.peak_bytes - self.cost.peak_bytes,
            removes=row is not None and not _has(cost, row),
        )

    def _gone(self, plan: ShardingPlan, row: CollectiveRow) -> bool:
        return not _has(price(self.problem, plan), row)


def _has(cost: Cost, row: CollectiveRow) -> bool:
    """Does a collective still move this value at this op over one of these axes?"""
    return any(
        other.op == row.op and other.value == row.value and set(other.axes) & set(row.axes)
        for other in cost.collectives
    )


def _actions(problem: Problem, plan: ShardingPlan) -> list[Action]:
    """The plan's actions, up to the first entry that is not one."""
    actions = []
    for action in plan.actions:
        try:
            actions.append(parse_action(problem.analysis, problem.mesh, action))
        except ToastError:
            break
    return actions


def to_json(reasons: Sequence[CollectiveReason]) -> list[dict[str, Any]]:
    """Plain data; plans are left out."""

    def change(candidate: Change) -> dict[str, Any]:
        return {key: field for key, field in candidate._asdict().items() if key != "plan"}

    return [
        {
            **vars(reason),
            "collective": reason.collective._asdict(),
            "undoing": list(map(change, reason.undoing)),
            "cheapest": None if reason.cheapest is None else change(reason.cheapest),
        }
        for reason in reasons
    ]
