"""Replay the trajectories of a trace one after the other, and price them again.

This serves to inspect a search step by step, and to check that a trace agrees with the evaluator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.search.trace import Simulation, Trace
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State


class ReplayedSimulation(NamedTuple):
    """One trajectory, replayed."""

    simulation: Simulation
    state: State  #: the state in which it ended
    quick: Quick  #: the price of that state, computed again


def replay(problem: Problem, trace: Trace, begin: int = 0) -> Iterator[ReplayedSimulation]:
    """Replay the simulations of a trace of this problem, from index ``begin`` (counted from 0).

    Plans that did not come from actions are left out: their labels cannot be replayed.

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
        yield ReplayedSimulation(simulation, state, pricer.quick(state))
