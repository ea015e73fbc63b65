"""The way to a plan in actions, and what changed it after them.

Refinement and integer programs change single ops and values, so the best plan of a search is often
one that no sequence of actions gives, and an integer program forgets the actions that it began at.
This module tells such a plan in the language of the method all the same: a plan of actions that the
search has seen, and what changed it afterwards (``Refinements``). Where the plan of actions is
nearly as good, it is the better answer: ``preferred`` gives it.

Start reading at ``with_actions``. The paper has actions alone (TOAST section 4.2).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import ToastError
from toast_lab.search.trace import Trace
from toast_lab.sharding.plan import (
    ShardingPlan,
    is_action,
    pinned_texts,
    plan_of_state,
)
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State
from toast_lab.text import bytes_text, counted

#: how much higher C(s) of a plan of actions may be, as a share, for it to be preferred to a plan
#: that no actions give; prices are not more exact than that
ACTIONS_WITHIN = 0.02
#: most plans of actions that are considered beside the best plan
MOST_SEEN = 24
DESCENT, INTEGER_PROGRAMS = "descent", "integer programs"


class PathStep(NamedTuple):
    """A step on the way to a plan, with the price of the plan as it is after it."""

    action: str  #: as text; "" for the program without any action, else what refined the plan
    time_s: float
    peak_bytes: float
    score: float  #: C(s)
    fits: bool


class ColourChange(NamedTuple):
    """What refinement changed in one colour on one mesh axis, in ops and values."""

    colour: str
    axis: str
    added: int  #: cut along this colour since
    removed: int  #: no longer cut along it

    def __str__(self) -> str:
        signs = [f"+{self.added}"] * (self.added > 0) + [f"-{self.removed}"] * (self.removed > 0)
        return f"{self.colour} over {self.axis} {' '.join(signs)}"


@dataclasses.dataclass(frozen=True)
class Refinements:
    """What changed a plan after its actions: which ops and values, and what that gained.

    Ops and values of repeated layers are counted in each layer.
    """

    method: str  #: what made the last change, ``DESCENT`` or ``INTEGER_PROGRAMS``
    n_ops: int  #: number of ops that are split otherwise than the actions say
    n_values: int
    before: Quick  #: price of the plan of the actions alone
    after: Quick
    colours: tuple[ColourChange, ...]  #: the largest changes first
    is_kept: bool = True  #: False: left out of the plan, since the actions alone are good enough

    @property
    def gain_s(self) -> float:
        """Seconds of a step that it saves."""
        return self.before.time_s - self.after.time_s

    @property
    def gain_bytes(self) -> float:
        """Bytes of the peak of a device that it saves."""
        return self.before.peak_bytes - self.after.peak_bytes

    @property
    def gain(self) -> float:
        """Share of C(s) that it saves."""
        return 1.0 - self.after.score / self.before.score if self.before.score else 0.0

    @property
    def changes(self) -> str:
        """The number of ops and values that it changed, as text."""
        counts = ((self.n_ops, "op"), (self.n_values, "value"))
        return " and ".join(counted(count, noun) for count, noun in counts if count)

    def __str__(self) -> str:
        before, after = self.before, self.after
        verb = "changed" if self.is_kept else "would change"
        amount = f"{abs(self.gain):.2%} {'less' if self.gain >= 0 else 'more'}"
        colours = f"; {', '.join(map(str, self.colours[:4]))}" if self.colours else ""
        return (
            f"{self.method} {verb} {self.changes}: {before.time_s * 1e3:.3f} -> "
            f"{after.time_s * 1e3:.3f} ms, {bytes_text(before.peak_bytes)} -> "
            f"{bytes_text(after.peak_bytes)}, C(s) {before.score:.4f} -> {after.score:.4f}, "
            f"{amount}{colours}"
        )


@dataclasses.dataclass(frozen=True)
class ActionPlan:
    """A plan made of actions."""

    actions: tuple[str, ...]  #: beyond the pinned ones
    sharding: Sharding


# -- plans of actions ------------------------------------------------------------------------------
def with_actions(problem: Problem, best: ShardingPlan, trace: Trace) -> ShardingPlan:
    """The best plan of a search, with the actions that lead nearest to it in its history.

    Its sharding is left as it is. A plan of actions alone is given back, and so is one of a search
    in which no actions helped.
    """
    if not best.refinements:
        return best
    bases = [*helpful(problem, trace, own_actions(problem, best))]
    if not bases:
        return best
    nearest = min(bases, key=lambda base: distance(base.sharding, best.sharding))
    return after_actions(problem, best, nearest.actions)


def preferred(
    problem: Problem, best: ShardingPlan, trace: Trace, within: float
) -> ShardingPlan | None:
    """The best plan of actions alone, if its C(s) is at most ``within`` (a share) above ``best``'s.

    None: there is none, or ``best`` is one itself. If ``best`` fits, so does the plan given.
    """
    if not best.refinements or within <= 0:
        return None
    bases = [*helpful(problem, trace, own_actions(problem, best))]
    if not bases:
        return None
    base = min(bases, key=lambda base: _rank(price_of_sharding(problem, base.sharding)))
    quick, best_quick = (price_of_sharding(problem, plan.sharding) for plan in (base, best))
    if quick.score > best_quick.score * (1.0 + within) or quick.fits < best_quick.fits:
        return None
    return _plan_of_actions(problem, base.actions)[1]


def after_actions(problem: Problem, plan: ShardingPlan, actions: Sequence[str]) -> ShardingPlan:
    """``plan`` as one that came about by ``actions`` and was changed after them, if it was."""
    base, alike = _plan_of_actions(problem, actions)[1], problem.space.alike
    places = sum(
        len(np.unique(label[(changed != given).any(axis=1)]))
        for label, changed, given in (
            (alike.ops.label, plan.op_factor, base.op_factor),
            (alike.values.label, plan.value_dim, base.value_dim),
        )
    )
    if not places:
        return dataclasses.replace(plan, actions=base.actions, refinements=())
    changed_by = "by integer programs" if method_of(plan.refinements) != DESCENT else "op by op"
    label = f"refined in {counted(places, 'place')}, {changed_by}"
    return dataclasses.replace(plan, actions=base.actions, refinements=(label,))


def helpful(problem: Problem, trace: Trace, own: Sequence[str] = ()) -> Iterator[ActionPlan]:
    """Plans of actions that a search has seen and that are better than no action.

    The best of each length, and that of ``own``, actions from which the best plan comes.
    """
    bare = _rank(price_of_sharding(problem, State(problem.space).sharding))
    for actions in dict.fromkeys([tuple(own), *seen_actions(problem, trace)]):
        plan = of_actions(problem, actions)
        if plan.actions and _rank(price_of_sharding(problem, plan.sharding)) < bare:
            yield plan


def own_actions(problem: Problem, plan: ShardingPlan) -> tuple[str, ...]:
    """The actions in a plan's history beyond the pinned ones, without those of other methods."""
    beyond_pins = plan.actions[len(pinned_texts(problem.space)) :]
    return tuple(text for text in beyond_pins if parsed(problem, text) is not None)


def parsed(problem: Problem, text: str) -> Action | None:
    """The action that a text stands for; None: it says how else a plan came about."""
    try:
        return parse_action(problem.analysis, problem.mesh, text) if is_action(text) else None
    except ToastError:
        return None


def of_actions(problem: Problem, actions: Sequence[str]) -> ActionPlan:
    """The plan of some actions; those that change nothing are left out."""
    taken, plan = _plan_of_actions(problem, actions)
    return ActionPlan(tuple(map(problem.space.text, taken)), plan.sharding)


def taken_actions(problem: Problem, plan: ShardingPlan) -> tuple[Action, ...]:
    """The actions of a plan beyond the pinned ones, without those that change nothing."""
    return tuple(_plan_of_actions(problem, own_actions(problem, plan))[0])


def _plan_of_actions(problem: Problem, actions: Sequence[str]) -> tuple[list[Action], ShardingPlan]:
    state, taken = State(problem.space), []
    for text in actions:
        action = parse_action(problem.analysis, problem.mesh, text)
        if state.apply(action):
            taken.append(action)
    return taken, plan_of_state(state, taken)


def seen_actions(problem: Problem, trace: Trace) -> list[tuple[str, ...]]:
    """The actions of the best plan of actions of each length in a trace, at most ``MOST_SEEN``.

    The best come first.
    """
    rows = trace.row
    if not rows.n:
        return []
    ends, words = rows["action_end"], trace.action["word"]
    starts = np.concatenate([[0], ends[:-1]])
    is_label = np.asarray([parsed(problem, text) is None for text in trace.vocabulary] or [False])
    labels = np.concatenate([[0], np.cumsum(is_label[words])])
    of_actions_alone = labels[ends] == labels[starts]
    length, order = ends - starts, np.lexsort((rows["score"], ~rows["fits"]))
    of_length: dict[int, int] = {}
    for index in order[of_actions_alone[order]].tolist():
        of_length.setdefault(int(length[index]), index)
    vocabulary = trace.vocabulary
    return [
        tuple(vocabulary[word] for word in words[starts[index] : ends[index]].tolist())
        for index in list(of_length.values())[:MOST_SEEN]
    ]


def distance(one: Sharding, other: Sharding) -> int:
    """Number of entries in which two shardings of ops and values differ."""
    return int((one.op_factor != other.op_factor).sum() + (one.value_dim != other.value_dim).sum())


def price_of_sharding(problem: Problem, sharding: Sharding) -> Quick:
    """The price of a plan with this sharding."""
    return problem.pricer().of_sharding(*sharding)


def _rank(quick: Quick) -> tuple[bool, float]:
    return not quick.fits, quick.score


# -- what came after them --------------------------------------------------------------------------
def method_of(history: Sequence[str]) -> str:
    """What made the last change to a plan, by its history."""
    last = history[-1] if history else ""
    return INTEGER_PROGRAMS if "integer program" in last or ":" in last else DESCENT


def refinements_of(
    problem: Problem, plan: ShardingPlan, *, is_kept: bool = True
) -> Refinements | None:
    """What changed a plan after its actions; None: nothing did.

    Args:
        problem: the problem that the plan solves.
        plan: from a search, or from a file.
        is_kept: is it part of the plan that the search gives?
    """
    if not plan.refinements:
        return None
    base = _plan_of_actions(problem, own_actions(problem, plan))[1]
    return Refinements(
        method=method_of(plan.refinements),
        n_ops=int((plan.op_factor != base.op_factor).any(axis=1).sum()),
        n_values=int((plan.value_dim != base.value_dim).any(axis=1).sum()),
        before=price_of_sharding(problem, base.sharding),
        after=price_of_sharding(problem, plan.sharding),
        colours=_colour_changes(problem, base.sharding, plan.sharding),
        is_kept=is_kept,
    )


def _colour_changes(
    problem: Problem, before: Sharding, after: Sharding
) -> tuple[ColourChange, ...]:
    """How many ops and values each colour gained and lost on each axis, the largest first."""
    analysis, program = problem.analysis, problem.analysis.program
    group_of_name = analysis.group[analysis.colour]
    added: collections.Counter[tuple[int, int]] = collections.Counter()
    removed: collections.Counter[tuple[int, int]] = collections.Counter()
    for counter, ours, theirs in ((added, after, before), (removed, before, after)):
        for op, axis in np.argwhere((ours.op_factor != theirs.op_factor) & (ours.op_factor >= 0)):
            counter[int(group_of_name[ours.op_factor[op, axis]]), int(axis)] += 1
        differs = (ours.value_dim != theirs.value_dim) & (ours.value_dim >= 0)
        for value, axis in np.argwhere(differs):
            name = program.def_names(int(value))[int(ours.value_dim[value, axis])]
            counter[int(group_of_name[name]), int(axis)] += int(name >= 0)
    changes = [
        ColourChange(
            analysis.group_name[group],
            problem.mesh.axes[axis],
            added[group, axis],
            removed[group, axis],
        )
        for group, axis in sorted({*added, *removed})
    ]
    return tuple(sorted(changes, key=lambda change: -(change.added + change.removed)))


def path_of(problem: Problem, plan: ShardingPlan) -> tuple[PathStep, ...]:
    """The way to a plan: the program without actions, then each action, then what refined it."""
    pricer, state = problem.pricer(), State(problem.space)
    steps = [PathStep("", *_step_price(pricer.quick(state)))]
    for action in taken_actions(problem, plan):
        state.apply(action)
        steps.append(PathStep(problem.space.text(action), *_step_price(pricer.quick(state))))
    if plan.refinements:
        quick = price_of_sharding(problem, plan.sharding)
        steps.append(PathStep(", ".join(plan.refinements), *_step_price(quick)))
    return tuple(steps)


def _step_price(quick: Quick) -> tuple[float, float, float, bool]:
    return quick.time_s, quick.peak_bytes, quick.score, quick.fits
