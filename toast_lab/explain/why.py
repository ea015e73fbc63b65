"""Why a plan has a collective, and what it would take to be rid of it.

    for reason in tl.why(problem, plan, "all_gather"):
        print(reason)

A collective is there because a value is wanted otherwise than it is kept, or because an op is split
along a dim that it sums over.  Both have causes: the actions of the plan that put a mesh axis on
that value, on the op that makes it and on the op that reads it, found by taking the plan's actions
again one by one; what refinement changed afterwards is called so.  For every cause the plan is
priced without it.  Then small changes around the place are tried, and the one is named that removes
the collective at the least cost.

Start reading at ``why``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import text
from toast_lab.cost.problem import CollectiveRow, Cost, Problem, price
from toast_lab.errors import InvalidPlan, ToastError, did_you_mean
from toast_lab.sharding.plan import ShardingPlan, Spec, spec_text
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State

REFINED = "refinement"  #: cause of what no action of the plan did
MOST = 50  #: collectives that one question may be about
SHOWN = 8  #: reasons that ``str()`` writes out


class Change(NamedTuple):
    """Another plan."""

    text: str  #: what is otherwise
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
        sign = "+" if self.more_time_s >= 0 else ""
        memory = ("+" if self.more_peak_bytes >= 0 else "-") + text.bytes_text(
            abs(self.more_peak_bytes)
        )
        left = "" if self.removes else ", but the collective stays"
        fits = "" if self.fits else ", does not fit"
        return f"{self.text}: {sign}{self.more_time_s * 1e6:.1f} us a step, {memory}{fits}{left}"


@dataclasses.dataclass(frozen=True)
class Reason:
    """The answer for one collective; ``str()`` is a paragraph."""

    collective: CollectiveRow
    op_kind: str
    place: str  #: source line of the op and the lines that call it: "linear.py:422 < model.py:31"
    name_stack: str
    because: str  #: a sentence
    colours: tuple[str, ...]  #: of the dims that the axes are on
    conflict: str  #: the resolution that decided it, "" if there is no conflict on the tensor
    causes: tuple[str, ...]  #: actions, or ``REFINED``
    undoing: tuple[Change, ...]  #: the plan without each cause that is an action
    #: of all changes tried, that which removes the collective at the least cost
    cheapest: Change | None

    def __repr__(self) -> str:
        return f"<Reason for {self.collective.kind} of {self.collective.value} at {self.place}>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        c = self.collective
        lines = [
            f"{c.kind} {{{','.join(c.axes)}}} of {c.value}, {text.bytes_text(c.local_bytes)}, "
            f"{c.time_s * 1e6:.1f} us",
            f"  at      {self.op_kind}, {self.place}"
            + (f" ({self.name_stack})" if self.name_stack else ""),
            f"  because {self.because}",
            f"  from    {', '.join(self.causes) or 'no action: the op cannot be split'}",
        ]
        if self.conflict:
            lines.append(f"  conflict {self.conflict}")
        lines += [f"  undo    {change}" for change in self.undoing]
        lines.append(f"  instead {self.cheapest or 'nothing that was tried removes it'}")
        return "\n".join(lines)


class Reasons(list[Reason]):
    """Reasons in the order of the collectives.

    ``str()`` shows those first that take the most time, and not all.
    """

    def text(self, limit: int | None = SHOWN) -> str:
        """At most ``limit`` reasons as paragraphs, the most costly collectives first."""
        costly = sorted(self, key=lambda reason: -reason.collective.time_s)
        shown = [str(reason) for reason in costly[:limit]]
        left = costly[len(shown) :]
        if left:
            time_s = sum(reason.collective.time_s for reason in left)
            shown.append(
                f"... and {len(left)} more, {time_s * 1e6:.1f} us together: "
                "print(reasons.text(None)) shows all, "
                "or ask about a line or a value"
            )
        return "\n\n".join(shown) or "no collectives"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<Reasons for {len(self)} collectives, "
            f"{sum(r.collective.time_s for r in self) * 1e6:.1f} us>"
        )

    def _repr_html_(self) -> str:
        return text.as_html(self)


def why(
    problem: Problem, plan: ShardingPlan, which: CollectiveRow | int | str | Iterable[int]
) -> Reasons:
    """Why a plan has certain collectives.

    Args:
        problem: the plan's problem.
        plan: the plan.
        which: a row of ``price(problem, plan).collectives``, its number, or several numbers; or a
            text: a kind ("all_gather"), a kind of op ("dot_general"), the name of a value, or part
            of a source line ("model.py:31"), of the op or else of whoever calls it.

    Raises:
        InvalidPlan: the plan belongs to another program or mesh.
        ToastError: the plan has no such collective, or more than ``MOST`` of them.
    """
    problem = problem.unpinned  # what pins did is shown like what the plan's other actions did
    cost = price(problem, plan)
    asker = _Asker(problem, plan, cost)
    return Reasons(asker.answer(row) for row in _chosen(problem, cost, which))


def _chosen(
    problem: Problem, cost: Cost, which: CollectiveRow | int | str | Iterable[int]
) -> Iterable[CollectiveRow]:
    rows = cost.collectives
    if isinstance(which, int):
        if not 0 <= which < len(rows):
            raise ToastError(f"this plan has {len(rows)} collectives, there is no number {which}")
        return [rows[which]]
    if isinstance(which, CollectiveRow):
        if which not in rows:
            raise ToastError(f"this plan has no such collective: {which}")
        return [which]
    if not isinstance(which, str):
        return [row for number in which for row in _chosen(problem, cost, int(number))]
    program = problem.analysis.program
    kinds = program.kind
    found = (
        [r for r in rows if which in (r.kind, kinds[r.op], r.value)]
        or [r for r in rows if which in r.where]
        or [r for r in rows if which in program.locations[int(program.location[r.op])]]
    )
    if not found:
        known = sorted(
            {r.kind for r in rows} | {kinds[r.op] for r in rows} | {r.value for r in rows}
        )
        raise ToastError(
            "no collective of this plan is of kind, op, value or line "
            f"{which!r}{did_you_mean(which, known)}; it has "
            f"{len(rows)}: "
            f"{text.few(sorted({f'{r.kind} at {text.line_text(r.where)}' for r in rows}), 10)}"
        )
    if len(found) > MOST:
        raise ToastError(
            f"{len(found)} collectives match {which!r}, ask about at most {MOST}: "
            "give a line or a value"
        )
    return found


class _Asker:
    """What is worked out once for a plan."""

    def __init__(self, problem: Problem, plan: ShardingPlan, cost: Cost) -> None:
        self.problem, self.plan, self.cost = problem, plan, cost
        self.program, self.analysis = problem.analysis.program, problem.analysis
        self.actions = _actions(problem, plan)
        self.texts = [problem.space.text(a) for a in self.actions]
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
        self.values = {name: v for v, name in enumerate(self.program.value_name)}
        self.without: dict[int, Change | None] = {}
        self.settled: dict[tuple[int, int], Change | None] = {}

    def answer(self, row: CollectiveRow) -> Reason:
        program, value = self.program, self.values[row.value]
        made = int(program.value_op[value]) == row.op
        axes = [self.plan.mesh.axes.index(a) for a in row.axes]
        causes = self._causes(row, value, axes, made)
        undoing = tuple(c for i in causes if i >= 0 and (c := self._undo(i, row)) is not None)
        settled = (c for i in causes if i >= 0 for c in self._settle(i, row))
        tried = [*undoing, *settled, *self._around(row, value, axes)]
        removing = [c for c in tried if c.removes]
        return Reason(
            row,
            program.kind[row.op],
            text.place_text(program.locations[int(program.location[row.op])]),
            program.name_stack[row.op],
            self._because(row, value, axes, made),
            tuple(dict.fromkeys(self._colours(row, value, axes))),
            self._conflict(row, value),
            tuple(self.texts[i] if i >= 0 else REFINED for i in causes),
            undoing,
            min(removing, key=lambda c: (not c.fits, c.time_s)) if removing else None,
        )

    # -- words ------------------------------------------------------------------------------------
    def _because(self, row: CollectiveRow, value: int, axes: Sequence[int], made: bool) -> str:
        program = self.program
        if made:
            summed = [
                f"{self.analysis.dim_text(int(self.plan.op_factor[row.op, a]))} over "
                f"{self.plan.mesh.axes[a]}"
                for a in axes
                if self.plan.op_factor[row.op, a] >= 0
                and int(self.plan.op_factor[row.op, a]) not in program.def_names(value)
            ]
            if summed:
                return (
                    f"{program.kind[row.op]} is split along what it sums over "
                    f"({', '.join(summed)}): parts are added"
                )
            return (
                f"{row.value} is kept as {spec_text(self.kept[value])}, and its op leaves it "
                "otherwise"
            )
        wanted = self._wanted(row, value)
        kept = spec_text(self.kept[value])
        return (
            f"{row.value} is kept as {kept} and {program.kind[row.op]} reads it as "
            f"{spec_text(wanted)}"
        )

    def _wanted(self, row: CollectiveRow, value: int) -> Spec:
        program = self.program
        for use in range(int(program.use_ptr[row.op]), int(program.use_ptr[row.op + 1])):
            if int(program.use_value[use]) == value:
                return self.plan.spec(int(self._wants[use]), len(program.dims(value)))
        return self.kept[value]

    def _colours(self, row: CollectiveRow, value: int, axes: Sequence[int]) -> Iterator[str]:
        names = self.program.def_names(value)
        for a in axes:
            if self.plan.value_dim[value, a] >= 0:
                yield self.analysis.dim_text(names[int(self.plan.value_dim[value, a])])
            if self.plan.op_factor[row.op, a] >= 0:
                yield self.analysis.dim_text(int(self.plan.op_factor[row.op, a]))

    def _conflict(self, row: CollectiveRow, value: int) -> str:
        """The first conflict on the value or on a tensor of the op, and its bit.

        The bit is the one that the plan's actions give it.
        """
        analysis, program = self.analysis, self.program
        around = {value, *program.operands(row.op), *program.results(row.op)}
        for conflict in analysis.conflicts:
            if not any(place.value in around for place in conflict.places):
                continue
            s = analysis.compatibility_sets[conflict.set]
            group = int(analysis.group[s.colour])
            for action in self.actions:
                if action.group == group:
                    classes = analysis.groups[group].resolutions
                    bit = action.bits >> (len(classes) - 1 - classes.index(s.resolution)) & 1
                    dims = [analysis.name_text[n] for n in conflict.sides]
                    side = bit ^ int(s.flipped)
                    return (
                        f"{dims[0]} and {dims[1]} of "
                        f"{program.value_name[conflict.places[0].value]} have one colour; "
                        f"{self.problem.space.text(action)} shards {dims[side]}"
                    )
        return ""

    # -- causes -----------------------------------------------------------------------------------
    def _causes(self, row: CollectiveRow, value: int, axes: Sequence[int], made: bool) -> list[int]:
        """What put the axes on the value, on its op and on the op that reads.

        Given as numbers of actions, -1 for refinement.
        """
        found: dict[int, None] = {}
        ops = [row.op] if made else [row.op, int(self.program.value_op[value])]
        for a in axes:
            for op in ops:
                if self.plan.op_factor[op, a] >= 0:
                    found[int(self.op_cause[op, a])] = None
            if self.plan.value_dim[value, a] >= 0:
                found[int(self.value_cause[value, a])] = None
        if not found and not self.exact:
            found[-1] = None
        return list(found)

    # -- changes ----------------------------------------------------------------------------------
    def _undo(self, i: int, row: CollectiveRow) -> Change | None:
        """The plan without an action.  What refinement changed stays where it still can."""
        if i not in self.without:
            state = State(self.problem.space)
            for k, action in enumerate(self.actions):
                if k != i:
                    state.apply(action)
            sharding = self.plan.sharding.copy()
            mine, its = self.op_cause == i, self.value_cause == i
            later = np.isin(self.op_cause, np.arange(i + 1, len(self.actions)))
            sharding.op_factor[mine | later] = state.op_factor[mine | later]
            later = np.isin(self.value_cause, np.arange(i + 1, len(self.actions)))
            sharding.value_dim[its | later] = state.value_dim[its | later]
            if self.exact:
                sharding = Sharding(state.op_factor, state.value_dim)
            actions = [t for k, t in enumerate(self.texts) if k != i]
            self.without[i] = self._change(
                f"without {self.texts[i]}", sharding, tuple(actions), None
            )
        change = self.without[i]
        return None if change is None else change._replace(removes=self._gone(change.plan, row))

    def _settle(self, i: int, row: CollectiveRow) -> Iterator[Change]:
        """The plan with one conflict of an action's colour settled the other way.

        There is none for refined plans.
        """
        action, space = self.actions[i], self.problem.space
        if not self.exact:
            return
        for bit in range(len(self.analysis.groups[action.group].resolutions)):
            other = action._replace(bits=action.bits ^ (1 << bit))
            if not ((space.group == other.group) & (space.bits == other.bits)).any():
                continue
            if (i, bit) not in self.settled:
                state = State(space)
                for k, taken in enumerate(self.actions):
                    state.apply(other if k == i else taken)
                texts = tuple(space.text(other) if k == i else t for k, t in enumerate(self.texts))
                self.settled[i, bit] = self._change(
                    f"{space.text(other)} instead of {self.texts[i]}",
                    Sharding(state.op_factor, state.value_dim),
                    texts,
                    None,
                )
            change = self.settled[i, bit]
            if change is not None:
                yield change._replace(removes=self._gone(change.plan, row))

    def _around(self, row: CollectiveRow, value: int, axes: Sequence[int]) -> Iterator[Change]:
        """Small changes at the place.

        The value, its op or the op that reads it goes without the axes, or is kept as wanted.
        """
        program, plan = self.program, self.plan
        made_by = int(program.value_op[value])
        called = f"{program.kind[row.op]} ({text.line_text(row.where)})"
        wanted = self._wanted(row, value)

        def changed(what: str, ops: Sequence[int], values: dict[int, Spec | None]) -> Change | None:
            sharding = plan.sharding.copy()
            for op in ops:
                sharding.op_factor[op, list(axes)] = -1
            for v, spec in values.items():
                for a in range(len(plan.mesh.axes)):
                    if spec is not None:
                        dims = [d for d, here in enumerate(spec) if plan.mesh.axes[a] in here]
                        sharding.value_dim[v, a] = dims[0] if dims else -1
                    elif a in axes:
                        sharding.value_dim[v, a] = -1
            return self._change(what, sharding, (), row)

        axis_text = " and ".join(row.axes)
        results = list(program.results(row.op))
        candidates = [
            changed(f"do not split {called} over {axis_text}", [row.op], {}),
            changed(
                f"do not split {called} over {axis_text}, and keep its results so",
                [row.op],
                dict.fromkeys(results),
            ),
            changed(f"keep {row.value} without {axis_text}", [], {value: None}),
        ]
        if made_by != row.op:
            candidates.append(
                changed(f"keep {row.value} as {spec_text(wanted)}", [], {value: wanted})
            )
            candidates.append(
                changed(
                    f"neither split {called} nor keep {row.value} over {axis_text}",
                    [row.op],
                    {value: None},
                )
            )
            if made_by >= program.n_arguments:
                candidates.append(
                    changed(
                        f"neither make nor keep {row.value} over {axis_text}",
                        [made_by],
                        {value: None},
                    )
                )
        yield from (c for c in candidates if c is not None)

    def _change(
        self,
        what: str,
        sharding: Sharding,
        actions: tuple[str, ...],
        row: CollectiveRow | None,
    ) -> Change | None:
        """None if the plan is the same or cannot be carried out."""
        plan = self.plan
        if sharding.same_as(plan.sharding):
            return None
        other = dataclasses.replace(
            plan,
            sharding=sharding.frozen(),
            actions=actions or (*plan.actions, what),
            key=0,
        )
        try:
            other.check()
        except InvalidPlan:
            return None
        cost = price(self.problem, other)
        return Change(
            what,
            other,
            cost.time_s,
            cost.peak_bytes,
            cost.fits,
            cost.time_s - self.cost.time_s,
            cost.peak_bytes - self.cost.peak_bytes,
            row is not None and not _has(cost, row),
        )

    def _gone(self, plan: ShardingPlan, row: CollectiveRow) -> bool:
        return not _has(price(self.problem, plan), row)


def _has(cost: Cost, row: CollectiveRow) -> bool:
    """Does a collective still move this value at this op over one of these axes?"""
    return any(
        r.op == row.op and r.value == row.value and set(r.axes) & set(row.axes)
        for r in cost.collectives
    )


def _actions(problem: Problem, plan: ShardingPlan) -> list[Action]:
    """The plan's actions as far as they are actions."""
    found = []
    for item in plan.actions:
        try:
            found.append(parse_action(problem.analysis, problem.mesh, item))
        except ToastError:
            break
    return found


def to_json(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Plain data; plans are left out."""

    def change(c: Change | None) -> dict[str, Any] | None:
        return None if c is None else {k: v for k, v in c._asdict().items() if k != "plan"}

    return [
        {
            **{f.name: getattr(r, f.name) for f in dataclasses.fields(r)},
            "collective": r.collective._asdict(),
            "undoing": [change(c) for c in r.undoing],
            "cheapest": change(r.cheapest),
        }
        for r in reasons
    ]
