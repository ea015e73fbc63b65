"""The whole method on one page: from a JAX function to an executed sharding.

    model    = load or trace           frontends, ir   StableHLO as flat arrays with Shardy's rules
    analysis = analyse(model)          nda, conflicts  names, M, colours, conflicts,
                                                       compatibility sets
    problem  = Problem(analysis, ...)  sharding, cost  actions on a mesh, priced on a machine
    result   = search(problem)         search          MCTS over colours, resolutions and axes
    listing  = listing(problem, plan)  lowering        the device-local program
    executed = run(model, plan)        runtime         compiled and run on real or virtual devices

Reference: TOAST sections 3 and 4.
"""

from __future__ import annotations

from toast_lab.conflicts.analysis import Analysis, analyse_program
from toast_lab.frontends import Model
from toast_lab.frontends.model import remember


def analyse(model: Model, *, phases: str = "joined") -> Analysis:
    """Name every dimension of ``model`` and find its colours, conflicts and compatibility sets.

    ``phases="separate"`` never ties a forward conflict to a backward one; see ``analyse_program``.
    """
    remember(model)
    return analyse_program(model.program, model.dim_names, phases=phases, trees=model.trees)
