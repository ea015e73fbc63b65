"""A plan made by hand.

Its actions one after the other, what each adds, and how one side of a conflict is exchanged.

All functions take and give action lists; a list is replayed from the unsharded program at every
call, which takes less than a millisecond for thousands of ops.  Start reading at ``taken``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Pricer, Problem
from toast_lab.errors import InvalidPlan
from toast_lab.sharding.plan import no_effect
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS

Sent = Counter[tuple[str, tuple[str, ...], int]]  #: how many collectives of (kind, mesh axes, op)
Memo = MutableMapping[tuple[str, ...], "Taken"]


class Taken(NamedTuple):
    """The plan after one more action; estimated, for one device."""

    action: str  #: empty for the unsharded program, with which every list begins
    time_s: float
    compute_s: float
    comm_s: float
    peak_bytes: float
    fits: bool
    sent: Sent  #: all collectives of the plan so far


class SideOption(NamedTuple):
    """What it would make of a plan if a conflict were settled so on one axis."""

    side: int
    why_not: str  #: empty if it is possible
    time_s: float = 0.0
    peak_bytes: float = 0.0
    fits: bool = True


def replay(problem: Problem, actions: Iterable[object]) -> tuple[State, list[Action], list[str]]:
    """Apply actions in order, and tell those that change something from the others.

    Gives (the state that they lead to, those that change something, why each of the others does
    not).
    """
    state, kept, left_out = State(problem.space), [], []
    for item in actions:
        action = parse_action(problem.analysis, problem.mesh, item)
        if state.apply(action):
            kept.append(action)
        else:
            left_out.append(no_effect(problem.space, action))
    return state, kept, left_out


def taken(problem: Problem, actions: Sequence[str], memo: Memo | None = None) -> tuple[Taken, ...]:
    """The unsharded program and what it becomes with each action: ``len(actions) + 1`` rows.

    Args:
        problem: mesh, machine and memory limit.
        actions: as text; each has to change something.
        memo: rows of earlier calls for the same problem, by the actions that lead to them; new ones
            are added.

    Raises:
        InvalidPlan: an action names no colour or axis.
    """
    memo = {} if memo is None else memo
    pricer, state, rows = problem.pricer(), State(problem.space), []
    for n in range(len(actions) + 1):
        if n:
            state.apply(parse_action(problem.analysis, problem.mesh, actions[n - 1]))
        key = tuple(actions[:n])
        if key not in memo:
            memo[key] = _priced(pricer, state, actions[n - 1] if n else "")
        rows.append(memo[key])
    return tuple(rows)


def _priced(pricer: Pricer, state: State, action: str) -> Taken:
    problem = pricer.problem
    totals = pricer.totals(state.op_factor, state.value_dim)
    kinds = totals.steps.kind[: totals.n_steps]
    sent: Sent = Counter()
    for i in np.flatnonzero((kinds != COMPUTE) & (kinds != SLICE)).tolist():
        mask = int(totals.steps.axes[i])
        axes = tuple(a for j, a in enumerate(problem.mesh.axes) if mask >> j & 1)
        sent[STEP_KINDS[int(kinds[i])], axes, int(totals.steps.op[i])] += 1
    fits = totals.peak_bytes <= problem.memory_limit_bytes
    return Taken(
        action, totals.time_s, totals.compute_s, totals.comm_s, totals.peak_bytes, fits, sent
    )


def change(before: Sent, after: Sent) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """By kind and axes, how many collectives are new and how many are gone, op by op.

    What stayed is left out.

    A collective that moved to another op is new there and gone here.
    """
    new: Counter[tuple[str, tuple[str, ...]]] = Counter()
    gone: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for (kind, axes, _), n in (after - before).items():
        new[kind, axes] += n
    for (kind, axes, _), n in (before - after).items():
        gone[kind, axes] += n
    return {key: (new[key], gone[key]) for key in sorted({*new, *gone})}


# -- sides of a conflict ---------------------------------------------------------------------------


def owner(analysis: Analysis, resolution: int) -> tuple[Any, int]:
    """(colour group that a resolution belongs to, its place among the bits of that group)."""
    first = next(s for s in analysis.compatibility_sets if s.resolution == resolution)
    group = analysis.groups[int(analysis.group[first.colour])]
    return group, group.resolutions.index(resolution)


def side_on(problem: Problem, actions: Iterable[object], resolution: int, axis: str) -> int | None:
    """The side that actions shard on an axis; None if they leave the colour whole there."""
    group, place = owner(problem.analysis, resolution)
    for item in actions:
        action = parse_action(problem.analysis, problem.mesh, item)
        if action.group == group.index and problem.mesh.axes[action.axis] == axis:
            return action.bits >> (len(group.resolutions) - 1 - place) & 1
    return None


def with_side(
    problem: Problem, actions: Iterable[object], resolution: int, axis: str, side: int | None
) -> list[Action]:
    """The list with one side of a conflict sharded on an axis.

    It takes the place of the other side if that stood there.

    An action that is there already keeps its place and its other bits; a new one comes last, with
    the other bits of the colour on other axes.  Of colours with more bits than all settings of
    which are offered, the offered one next to that is taken.  ``side`` None takes the colour off
    the axis.

    Raises:
        InvalidPlan: no setting with this side is offered, or it would change nothing; says why,
            with the sizes.
    """
    analysis, mesh, space = problem.analysis, problem.mesh, problem.space
    group, place = owner(analysis, resolution)
    given = [parse_action(analysis, mesh, item) for item in actions]
    a = mesh.axes.index(axis)
    mine = [i for i, x in enumerate(given) if x.group == group.index and x.axis == a]
    rest = [x for i, x in enumerate(given) if i not in mine]
    if side is None:
        return rest
    mask = 1 << (len(group.resolutions) - 1 - place)
    like = (
        given[mine[0]].bits if mine else next((x.bits for x in given if x.group == group.index), 0)
    )
    wanted = (like & ~mask) | (mask if side else 0)
    offered = [
        int(b) for b in space.bits[space.group == group.index] if bool(int(b) & mask) == bool(side)
    ]
    if not offered:
        raise InvalidPlan(f"{group.name} cannot be sharded: no op can be split along it")
    bits = min(offered, key=lambda b: ((b ^ wanted).bit_count(), b))
    at = mine[0] if mine else len(given)
    action = Action(group.index, bits, a)
    if not replay(problem, rest[:at])[0].apply(action, dry=True):
        raise InvalidPlan(no_effect(space, action))
    return [*rest[:at], action, *rest[at:]]


def side_options(
    problem: Problem,
    actions: Sequence[object],
    resolution: int,
    axis: str,
    pricer: Pricer | None = None,
) -> tuple[SideOption, SideOption]:
    """Both sides on an axis, priced in the company of the other actions."""
    pricer = problem.pricer() if pricer is None else pricer
    found = []
    for side in (0, 1):
        try:
            state, _, _ = replay(problem, with_side(problem, actions, resolution, axis, side))
        except InvalidPlan as error:
            found.append(SideOption(side, str(error)))
        else:
            quick = pricer.quick(state)
            found.append(SideOption(side, "", quick.time_s, quick.peak_bytes, quick.fits))
    return found[0], found[1]
