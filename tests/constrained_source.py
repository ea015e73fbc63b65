"""The user's function with constraints, as it is once they are written into its source.

Constraints of plans are compiled as edits of the program (``written.annotated``); tests hold these
to what JAX makes of constraints at the same places of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toast_lab.errors import InvalidPlan
from toast_lab.frontends.instrumented import Statement, visited
from toast_lab.frontends.site_finding import _is_array, _statement
from toast_lab.ir.model import Function
from toast_lab.ir.sites import Site
from toast_lab.lowering.specs import to_partition_spec
from toast_lab.sharding.plan import Spec


def constrained(
    function: Function, constraints: Sequence[tuple[Site, Spec]], mesh: Any
) -> Callable[..., Any]:
    """The user's function as it is with these constraints written into its source.

    Args:
        function: it takes and gives what ``function.call`` does.
        constraints: sites and the mesh axes of each of their dims; each dim is exactly so.
        mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh`` with these axes.

    The result calls ``with_sharding_constraint`` whenever it is traced, so that JAX constrains
    cotangents as it does for anybody. Trace it with ``jax.jit``; it is no faster eagerly.

    Raises:
        InvalidPlan: a site cannot carry a constraint; or, while tracing, a site's source has
            changed, or its statement was not run (all are listed).
    """
    import jax

    offenders = [f"{site.where}: {site.refusal}" for site, _ in constraints if site.refusal]
    if offenders:
        raise InvalidPlan("these sites cannot carry a constraint: " + "; ".join(offenders))
    sharding_of = {
        _statement(site): jax.sharding.NamedSharding(mesh, to_partition_spec(spec))
        for site, spec in constraints
    }
    files = {site.file for site, _ in constraints}

    def call(*given: Any) -> Any:
        used: set[Statement] = set()

        def visit(value: Any, statement: Statement) -> Any:
            sharding = sharding_of.get(statement)
            if sharding is None or not _is_array(value):
                return value
            used.add(statement)
            return jax.lax.with_sharding_constraint(value, sharding)

        with visited(files, visit, only=sharding_of):
            result = function.call(*given)
        if unused := sharding_of.keys() - used:
            raise InvalidPlan(
                "no array came by these statements; has the source changed since? "
                + "; ".join(f"{item.file}:{item.line}: {item.text}" for item in unused)
            )
        return result

    call.__name__ = call.__qualname__ = getattr(function.call, "__name__", "call")
    if hasattr(function.call, "__signature__"):
        call.__signature__ = function.call.__signature__  # type: ignore[attr-defined]
    return call
