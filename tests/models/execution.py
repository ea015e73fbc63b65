"""Expert plans of the zoo, executed on virtual devices.

They are compared with the unsharded training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers import analysed, model
from toast_lab.cost.problem import Problem
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.inputs import draw
from toast_lab.runtime.run import run


def worst_errors(
    name: str, sizes: Mapping[str, Any], plan: str, mesh: Mapping[str, int]
) -> dict[str, float]:
    """Relative error of every output, by path.

    The optimiser starts afresh, so that its first moment is a tenth of the gradient and nothing
    hides an error in it.
    """
    found = model(name, **sizes)
    problem = Problem(analysed(name, **sizes), dict(mesh))
    arrays = [
        np.zeros_like(array) if path.startswith("opt_state") else array
        for path, array in zip(found.program.value_name, draw(found.program), strict=False)
    ]
    actions = found.expert_plans[plan]
    done = run(
        found,
        Plan.from_actions(problem, actions),
        devices="cpu:8",
        repeats=1,
        warmup=0,
        inputs=arrays,
    )
    assert done.errors is not None
    return dict(done.errors)
