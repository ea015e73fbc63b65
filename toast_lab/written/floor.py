"""The floor: plans that anybody gets for nothing, as argument shardings alone.

Data parallel, fully sharded and Megatron are a rule or a few, and no constraint: JAX's propagation
decides the rest. A plan that takes more to write should beat them. Start reading at ``floor``.
"""

from __future__ import annotations

from collections.abc import Mapping

from toast_lab import isolate
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.ir.sites import Sites
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.written.agreed import Shardy
from toast_lab.written.drafts import Draft, Drafts
from toast_lab.written.written_front import written_of
from toast_lab.written.written_plan import WrittenPlan

#: Names of the usual plans that are in the floor.
FLOOR = ("data parallel", "fully sharded", "tensor parallel", "data + tensor parallel")


def floor(
    problem: Problem,
    plans: Mapping[str, ShardingPlan],
    model: Model | None = None,
    *,
    cancel: isolate.Cancel | None = None,
) -> dict[str, WrittenPlan]:
    """The argument shardings of each of ``plans`` alone, and what propagation makes of them.

    Two plans with the same argument shardings are one, under the first of their names. One that
    Shardy refuses is left out.

    Args:
        problem: the one that the plans are for.
        plans: plans whose every op is sharded, by name.
        model: the problem's model; by default that of its analysis.
        cancel: polled; True ends the propagation with ``isolate.Cancelled``.
    """
    model = problem.analysis.model if model is None else model
    drafts = Drafts(problem, Sites((), {}))
    names: dict[Draft, str] = {}
    for name, plan in plans.items():
        names.setdefault(Draft(drafts.role_layouts(plan), frozenset()), name)
    own_model = model.of_program(problem.analysis.program)
    shardings = Shardy(problem, own_model, drafts).propagated(list(names), cancel=cancel)
    return {
        name: written_of(drafts, draft, sharding)
        for (draft, name), sharding in zip(names.items(), shardings, strict=True)
        if sharding is not None
    }
