"""A plan made by hand: what each action adds, and how to switch the side of a conflict.

All functions take and return action lists. Every call replays its list from the unsharded program,
which takes less than a millisecond for thousands of ops. Start reading at ``plans_after_actions``.
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
Memo = MutableMapping[tuple[str, ...], "PlanAfterAction"]


class PlanAfterAction(NamedTuple):
    """The plan after one more action; estimated, for one device."""

    action: str  #: empty for the unsharded program, with which every list begins
    time_s: float
    compute_s: float
    comm_s: float
    peak_bytes: float
    fits: bool
    sent: Sent  #: all collectives of the plan so far


class SideOption(NamedTuple):
    """A plan's figures with one side of a conflict sharded on one axis."""

    side: int
    why_not: str  #: empty if it is possible
    time_s: float = 0.0
    peak_bytes: float = 0.0
    fits: bool = True


def replay(problem: Problem, actions: Iterable[object]) -> tuple[State, list[Action], list[str]]:
    """Apply actions in order.

    Returns:
        The resulting state, the actions that change something, and why each of the others does not.
    """
    state, effective, left_out = State(problem.space), [], []
    for action in _parsed(problem, actions):
        if state.apply(action):
            effective.append(action)
        else:
            left_out.append(no_effect(problem.space, action))
    return state, effective, left_out


def _parsed(problem: Problem, actions: Iterable[object]) -> list[Action]:
    return [parse_action(problem.analysis, problem.mesh, action) for action in actions]


def plans_after_actions(
    problem: Problem, actions: Sequence[str], memo: Memo | None = None
) -> tuple[PlanAfterAction, ...]:
    """The unsharded program, then the plan after each action: ``len(actions) + 1`` rows.

    Args:
        problem: the problem of the plan, with mesh, machine and memory limit.
        actions: the actions as text; each has to change something.
        memo: rows of earlier calls for the same problem, by the actions that lead to them; new ones
            are added.

    Raises:
        InvalidPlan: an action names no colour or axis.
    """
    memo = {} if memo is None else memo
    pricer, state, rows = problem.pricer(), State(problem.space), []
    for count, (latest, action) in enumerate(
        zip(["", *actions], [None, *_parsed(problem, actions)], strict=True)
    ):
        if action is not None:
            state.apply(action)
        key = tuple(actions[:count])
        if key not in memo:
            memo[key] = _priced(pricer, state, latest)
        rows.append(memo[key])
    return tuple(rows)


def _priced(pricer: Pricer, state: State, action: str) -> PlanAfterAction:
    problem = pricer.problem
    totals = pricer.totals(state.op_factor, state.value_dim)
    kinds = totals.steps.kind[: totals.n_steps]
    sent: Sent = Counter()
    for i in np.flatnonzero((kinds != COMPUTE) & (kinds != SLICE)).tolist():
        axes = problem.mesh.axes_in(int(totals.steps.axes[i]))
        sent[STEP_KINDS[int(kinds[i])], axes, int(totals.steps.op[i])] += 1
    return PlanAfterAction(
        action=action,
        time_s=totals.time_s,
        compute_s=totals.compute_s,
        comm_s=totals.comm_s,
        peak_bytes=totals.peak_bytes,
        fits=totals.peak_bytes <= problem.memory_limit_bytes,
        sent=sent,
    )


def collective_changes(
    before: Sent, after: Sent
) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Numbers of added and of removed collectives by kind and axes, without those that stayed.

    A collective that moved to another op counts as both.
    """
    added: Counter[tuple[str, tuple[str, ...]]] = Counter()
    gone: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for counter, difference in ((added, after - before), (gone, before - after)):
        for (kind, axes, _), count in difference.items():
            counter[kind, axes] += count
    return {key: (added[key], gone[key]) for key in sorted({*added, *gone})}


# -- sides of a conflict ---------------------------------------------------------------------------


def group_and_bit(analysis: Analysis, resolution: int) -> tuple[Any, int]:
    """(colour group of a resolution, position of its bit among the bits of that group)."""
    colour = next(
        candidate.colour
        for candidate in analysis.compatibility_sets
        if candidate.resolution == resolution
    )
    group = analysis.groups[analysis.group[colour]]
    return group, group.resolutions.index(resolution)


def side_on(problem: Problem, actions: Iterable[object], resolution: int, axis: str) -> int | None:
    """The side that actions shard on an axis; None if they leave the colour whole there."""
    group, bit_position = group_and_bit(problem.analysis, resolution)
    for action in _parsed(problem, actions):
        if action.group == group.index and problem.mesh.axes[action.axis] == axis:
            return action.bits >> (len(group.resolutions) - 1 - bit_position) & 1
    return None


def with_side(
    problem: Problem, actions: Iterable[object], resolution: int, axis: str, side: int | None
) -> list[Action]:
    """The action list with one side of a conflict sharded on an axis, in place of the other side.

    An action of this colour on this axis keeps its place and its other bits. A new action comes
    last, with the colour's bits from another axis. If the space does not offer these bits, the
    closest setting that it offers is taken. ``side`` None takes the colour off the axis.

    Raises:
        InvalidPlan: no setting with this side is offered, or it would change nothing; the message
            says why, with the sizes.
    """
    space = problem.space
    group, bit_position = group_and_bit(problem.analysis, resolution)
    all_actions = _parsed(problem, actions)
    axis_index = problem.mesh.axes.index(axis)
    colour_actions = [action for action in all_actions if action.group == group.index]
    replaced = [action for action in colour_actions if action.axis == axis_index]
    others = [action for action in all_actions if action not in replaced]
    if side is None:
        return others
    mask = 1 << (len(group.resolutions) - 1 - bit_position)
    reference_bits = next((action.bits for action in [*replaced, *colour_actions]), 0)
    wanted = (reference_bits & ~mask) | (mask * side)
    settings = space.bits[space.group == group.index].tolist()
    allowed_settings = [setting for setting in settings if setting & mask == mask * side]
    if not allowed_settings:
        raise InvalidPlan(f"{group.name} cannot be sharded: no op can be split along it")
    bits = min(allowed_settings, key=lambda setting: ((setting ^ wanted).bit_count(), setting))
    position = all_actions.index(replaced[0]) if replaced else len(all_actions)
    action = Action(group.index, bits, axis_index)
    if not replay(problem, others[:position])[0].apply(action, dry=True):
        raise InvalidPlan(no_effect(space, action))
    return [*others[:position], action, *others[position:]]


def side_options(
    problem: Problem,
    actions: Sequence[object],
    resolution: int,
    axis: str,
    pricer: Pricer | None = None,
) -> tuple[SideOption, SideOption]:
    """Both sides on an axis, priced together with the other actions."""
    pricer = problem.pricer() if pricer is None else pricer
    options = []
    for side in (0, 1):
        try:
            changed = with_side(problem, actions, resolution, axis=axis, side=side)
        except InvalidPlan as error:
            options.append(SideOption(side, str(error)))
        else:
            quick = pricer.quick(replay(problem, changed)[0])
            options.append(SideOption(side, "", quick.time_s, quick.peak_bytes, fits=quick.fits))
    return options[0], options[1]
