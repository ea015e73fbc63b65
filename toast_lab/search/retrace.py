"""Take the trajectories of a trace again, one after the other, and price them anew.

For looking at a search step by step, and for checking that a trace says what the evaluator says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.search.trace import Simulation, Trace
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State


class Replayed(NamedTuple):
    """One trajectory, taken again."""

    simulation: Simulation
    state: State  #: where it ended
    quick: Quick  #: its price, worked out anew


def replay(problem: Problem, trace: Trace, begin: int = 0) -> Iterator[Replayed]:
    """The simulations from ``begin`` on (counted from 0) of a trace that was made for this problem.

    Those of plans that did not come from actions are left out: their actions are words for people.

    Raises:
        InvalidPlan: an action changes nothing, so the trace was made for another problem.
    """
    pricer = problem.pricer()
    known: dict[str, Action] = {}
    for simulation in trace.since(begin):
        state = State(problem.space)
        try:
            actions = [
                known.setdefault(
                    action_text, parse_action(problem.analysis, problem.mesh, action_text)
                )
                for action_text in simulation.actions
            ]
        except ToastError:
            continue
        for text, action in zip(simulation.actions, actions, strict=True):
            if not state.apply(action):
                raise InvalidPlan(
                    f"simulation {simulation.index} took {text}, which changes nothing here: this "
                    "trace was made for "
                    "another problem"
                )
        yield Replayed(simulation, state, pricer.quick(state))
