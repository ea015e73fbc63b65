"""The manual "search": a list of actions given by a person, priced after each one."""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.errors import InvalidPlan
from toast_lab.search.contract import Recorder, Status
from toast_lab.sharding.plan import no_effect
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State


def run(recorder: Recorder, seed: int, *, actions: Sequence[object] = ()) -> Status:
    """Take ``actions`` in order.  The result is the state after all of them, whatever its price.

    Raises InvalidPlan if an action names nothing or changes nothing.
    """
    problem = recorder.problem
    state = State(problem.space)
    taken, nodes = [], [0]
    for item in actions:
        recorder.check()
        action = parse_action(problem.analysis, problem.mesh, item)
        if not state.apply(action):
            raise InvalidPlan(no_effect(problem, action))
        taken.append(action)
        nodes.append(recorder.add_node(nodes[-1], problem.space.text(action), len(taken), state.key))
        recorder.record(state, taken, nodes)
    recorder.choose(state, taken)
    return Status.DONE
