"""Plans given by the user: actions as they stand, or expert plans on every assignment of axes.

An expert plan names roles instead of axes:
``("batch", "data"), ("d_model", "data"), ("heads", "model")``. Every assignment of mesh axes to
roles is tried: each axis goes to one role or to none, and a role may get several axes, in any order
(its actions are taken on each of these axes in turn). As an expert would, the search leaves out
actions that have no effect on an axis because nothing divides, and the label of the plan says so.

Reference: TOAST section 5.1, where all combinations of the experts' plans are tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab.errors import InvalidPlan
from toast_lab.search.limits import Status
from toast_lab.search.recorder import Recorder
from toast_lab.sharding.plan import no_effect
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State

if TYPE_CHECKING:
    from toast_lab.search.method_options import ManualOptions

Plans = Mapping[str, Iterable[Sequence[Any]]]


def run(recorder: Recorder, options: ManualOptions) -> Status:
    """Price the plans or the actions that the user gave.

    Args:
        recorder: prices and reports.
        options: see ``methods.Manual``.

    Raises:
        InvalidPlan: an action of ``actions`` names no colour or changes nothing; an action of
            ``plans`` names no colour; both options are given.
    """
    actions, plans = options.actions, options.plans
    if plans is None:
        return _take_actions(recorder, actions)
    if actions:
        raise InvalidPlan("manual: give actions or plans, not both")
    return _try_expert_plans(recorder, plans)


def _take_actions(recorder: Recorder, actions: Sequence[object]) -> Status:
    problem = recorder.problem
    state = State(problem.space)
    taken, nodes = [], [0]
    for request in actions:
        recorder.check()
        action = parse_action(problem.analysis, problem.mesh, request)
        if not state.apply(action):
            if action in problem.space.pinned_actions:
                continue
            raise InvalidPlan(no_effect(problem.space, action))
        taken.append(action)
        nodes.append(
            recorder.add_node(nodes[-1], problem.space.text(action), len(taken), state.key)
        )
        recorder.record(state, taken, nodes)
    recorder.choose(state, taken)
    return Status.DONE


def assignments(roles: Sequence[str], axes: Sequence[str]) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every assignment of mesh axes to roles.

    Each role gets at least one axis; each axis goes to one role or is not used.
    """
    for choice in itertools.product((*roles, None), repeat=len(axes)):
        axes_of_roles = [
            [axis for axis, role in zip(axes, choice, strict=True) if role == wanted_role]
            for wanted_role in roles
        ]
        if all(axes_of_roles):
            for orders in itertools.product(*map(itertools.permutations, axes_of_roles)):
                yield dict(zip(roles, orders, strict=True))


def _try_expert_plans(recorder: Recorder, plans: Plans) -> Status:
    problem = recorder.problem
    axes = [
        axis for axis, size in zip(problem.mesh.axes, problem.mesh.sizes, strict=True) if size > 1
    ]
    parsed_plans = {name: _parsed_plan(recorder, name, actions) for name, actions in plans.items()}
    known_keys = {State(problem.space).key}
    applied = False
    for name, actions in parsed_plans.items():
        roles = list(dict.fromkeys(role for _, role in actions))
        for axes_of_role in assignments(roles, axes):
            recorder.check()
            state, taken, without_effect = State(problem.space), [], []
            for action, role in actions:
                for axis in axes_of_role[role]:
                    on_axis = action._replace(axis=problem.mesh.axes.index(axis))
                    if state.apply(on_axis):
                        taken.append(on_axis)
                    elif on_axis not in problem.space.pinned_actions:
                        without_effect.append(problem.space.text(on_axis))
            applied |= bool(taken)
            if not taken or state.key in known_keys:
                continue
            known_keys.add(state.key)
            assignment = ", ".join(
                f"{role}={'+'.join(role_axes)}" for role, role_axes in axes_of_role.items()
            )
            label = f"{name} ({assignment})"
            if without_effect:
                label += f" without {', '.join(without_effect)}"
            node = recorder.add_node(0, label, 1, state.key)
            recorder.record(state, taken, (0, node))
    return Status.DONE if applied or not parsed_plans else Status.NO_ACTIONS


def _parsed_plan(
    recorder: Recorder, name: str, actions: Iterable[Sequence[Any]]
) -> list[tuple[Action, str]]:
    """(action on axis 0, role) of each action of an expert plan. Raises InvalidPlan."""
    problem, parsed = recorder.problem, []
    for request in actions:
        if (
            isinstance(request, str)
            or not 2 <= len(request) <= 3
            or not isinstance(request[1], str)
        ):
            raise InvalidPlan(
                f'plan {name!r}: give its actions as ("colour", "role") or ("colour", "role", '
                f"bits), not {request!r}"
            )
        colour, role, *bits = request
        action = parse_action(problem.analysis, problem.mesh, (colour, problem.mesh.axes[0], *bits))
        problem.space.move_of(action)
        parsed.append((action, role))
    return parsed
