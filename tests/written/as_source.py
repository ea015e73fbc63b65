"""A written plan compiled by us, and the same in the user's source; runs on eight devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np

from tests.constrained_source import constrained
from tests.helpers import SMALL, analysed
from toast_lab.cost.problem import Problem
from toast_lab.frontends.loading import function_of
from toast_lab.frontends.site_finding import sites_of
from toast_lab.lowering.specs import to_partition_spec
from toast_lab.plan_verbs import Plan, Written
from toast_lab.runtime import _jax_private, hlo
from toast_lab.search.usual_plans import usual_plans
from toast_lab.written.agreed import Shardy
from toast_lab.written.drafts import Draft, Drafts
from toast_lab.written.written_front import written_of

MESH = {"a": 4, "b": 2}


def counts(names: tuple[str, ...]) -> tuple[Counter[str], Counter[str]]:
    """Collectives by kind, with constraints at the statements that bind these names.

    First those of the text that we compile, then those of the user's function with constraints in
    its source, jitted with the shardings of the rules.
    """
    analysis = analysed("transformer", **SMALL)
    problem = Problem(analysis, MESH)
    sites = sites_of(analysis.program, analysis.model)
    drafts = Drafts(problem, sites)
    plan = Plan.from_actions(problem, usual_plans(problem)["fully sharded + tensor parallel"])
    draft = Draft(drafts.role_layouts(plan), frozenset())
    for number, site in enumerate(sites.sites):
        layouts = [layout for at, layout in drafts.options(plan) if at == number]
        if site.name in names and layouts:
            draft = draft.with_site(number, layouts[0])
    shardy = Shardy(problem, analysis.model, drafts)
    (sharding,) = shardy.propagated([draft])
    written = Written.of(written_of(drafts, draft, sharding))
    ours = written.compile("cpu:8", store=False).counts_by_kind()

    function = function_of(analysis.model.function)
    devices = np.asarray(jax.devices()).reshape(tuple(MESH.values()))
    mesh = jax.sharding.Mesh(devices, tuple(MESH))

    def named(spec: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, to_partition_spec(spec))

    tree = jax.tree_util.tree_structure(function.given)
    in_shardings = tree.unflatten(map(named, written.argument_specs()))
    results = jax.eval_shape(function.call, *function.given)
    leaves, result_tree = jax.tree_util.tree_flatten(results)
    out_shardings = result_tree.unflatten(
        named(written.results[number]) if number in written.results else None
        for number in range(len(leaves))
    )
    call = constrained(function, [tuple(row) for row in written.constraints], mesh)
    compiled = (
        jax.jit(call, in_shardings=in_shardings, out_shardings=out_shardings)
        .lower(*function.given)
        .compile()
    )
    text = _jax_private.optimised_hlo(compiled.runtime_executable())
    theirs: Counter[str] = Counter()
    for collective in hlo.collectives(text, MESH):
        theirs[collective.kind] += collective.times
    return Counter(ours), theirs
