"""The whole method on one page: from a JAX function to an executed sharding.

    model    = load or trace              frontends, ir     StableHLO as flat arrays with Shardy's rules
    analysis = analyse(model)             nda, conflicts    names, M, colours, conflicts, compatibility sets
    problem  = Problem(analysis, ...)     sharding, cost    actions on a mesh, priced on a machine
    result   = search(problem)            search            MCTS over colours, resolutions and axes
    listing  = listing(problem, plan)     lowering          the device-local program
    executed = run(model, plan)           runtime           compiled and run on real or virtual devices

Reference: TOAST sections 3 and 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from toast_lab.conflicts.analysis import Analysis, analyse_program
from toast_lab.cost.problem import Cost, Problem
from toast_lab.frontends import Model
from toast_lab.frontends.model import remember
from toast_lab.lowering.listing import listing
from toast_lab.runtime.run import Run, run
from toast_lab.search.contract import Budget, Progress, SearchResult, search


def analyse(model: Model, *, phases: str = "joined") -> Analysis:
    """Name every dimension of ``model`` and find its colours, conflicts and compatibility sets.

    ``phases="separate"`` never ties a forward conflict to a backward one; see ``analyse_program``.
    """
    remember(model)
    return analyse_program(model.program, model.dim_names, phases=phases, trees=model.trees)


@dataclasses.dataclass(frozen=True)
class Shown:
    """Everything that one pass through the method produced."""

    model: Model
    analysis: Analysis
    problem: Problem
    result: SearchResult
    listing: str
    executed: Run | None

    @property
    def cost(self) -> Cost:
        """Price of the plan found."""
        return self.result.cost


def shard(
    model: Model,
    mesh: Mapping[str, int] | str,
    machine: str = "tpu-v5e",
    *,
    seconds: float = 10.0,
    seed: int = 0,
    devices: str | None = None,
    on_progress: Progress | None = None,
) -> Shown:
    """The main job, start to end: analyse, search, list and, if ``devices`` is given, execute."""
    analysis = analyse(model)
    problem = Problem(analysis, mesh, machine)
    result = search(problem, seed=seed, budget=Budget(seconds=seconds), on_progress=on_progress)
    text = listing(problem, result.plan)
    executed = run(model, result.plan, devices=devices) if devices else None
    return Shown(model, analysis, problem, result, text, executed)
