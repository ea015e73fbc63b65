"""A plan in JAX's own terms: PartitionSpecs for the interface, constraints for values inside.

``jax.jit(fn, in_shardings=..., out_shardings=...)`` takes the result of ``partition_specs``; each
row of ``constraints`` is one ``jax.lax.with_sharding_constraint`` that the user's function would
need for the compiler to follow the plan and not its own propagation.

Example: an MLP split over ``m`` along its hidden dim needs only one constraint, where the partial
sums of the second matmul become whole: ``y: P('d')``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.ir.program import Program
from toast_lab.ir.random_keys import hidden_dims
from toast_lab.sharding import steps
from toast_lab.sharding.plan import ShardingPlan, Spec

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


class Constraint(NamedTuple):
    """One place where a plan pins a sharding that nothing else implies."""

    value: str  #: name of the value, as listings spell it
    where: str  #: source line of the op that computes or reads the value in this sharding
    partition_spec: PartitionSpec


def partition_specs(plan: ShardingPlan) -> tuple[Any, Any]:
    """Shardings of arguments and results.

    Returns:
        ``(arguments, results)``: pytrees of PartitionSpecs in the caller's structure if the plan
            knows it (arguments as the tuple of positional arguments), else dicts from path to
            PartitionSpec.
    """
    arguments = {path: to_partition_spec(spec) for path, spec in plan.argument_specs().items()}
    results = [to_partition_spec(plan.lowered.kept[value]) for value in plan.program.outputs]
    trees = None if plan.analysis is None else plan.analysis.model.trees
    if trees is None:
        return arguments, dict(zip(plan.program.output_paths, results, strict=True))
    argument_tree, result_tree = trees
    return argument_tree.unflatten(list(arguments.values())), result_tree.unflatten(results)


def constraints(plan: ShardingPlan) -> list[Constraint]:
    """Every place where the plan pins a sharding, in program order.

    A value is pinned if it is kept in another sharding than its op leaves it in, and once for each
    other sharding in which it is used. Values made of constants are left out: they are computed
    where they are used. So are operands of a ``shard_map``, which has its own specs.
    """
    program = plan.program
    kept, used, natural = plan.lowered.kept, plan.lowered.used, plan.lowered.natural
    given = steps.tables(program).use_given != steps.OPEN
    pinned: list[Constraint] = []
    seen: set[tuple[int, Spec]] = set()
    for op in program.ops():
        for use in program.uses(op):
            value, spec = int(program.use_value[use]), used[use]
            is_open = not program.value_is_constant[value] and not given[use]
            if not is_open or spec == kept[value] or (value, spec) in seen:
                continue
            seen.add((value, spec))
            pinned.append(
                Constraint(program.value_name[value], program.where(op), to_partition_spec(spec))
            )
        for value in program.results(op):
            if not program.value_is_constant[value] and kept[value] != natural[value]:
                spec = kept[value]
                pinned.append(
                    Constraint(
                        program.value_name[value], program.where(op), to_partition_spec(spec)
                    )
                )
    return pinned


def to_partition_spec(spec: Spec) -> PartitionSpec:
    """``(("d", "m"), ("a",), ())`` as ``PartitionSpec(("d", "m"), "a")``.

    Unsharded trailing dims are left out, so that the spec also fits values whose last dims JAX
    hides (typed random keys).
    """
    from jax.sharding import PartitionSpec

    entries = list(spec_entries(spec))
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def visible(program: Program, value: int, spec: Spec) -> Spec:
    """``spec`` of a value without the dims that JAX hides: those of a random key's data."""
    return spec[: len(spec) - hidden_dims(program, value)]


def spec_entries(spec: Spec) -> tuple[Any, ...]:
    """``(("d",), (), ("a", "b"))`` as ``("d", None, ("a", "b"))``."""
    return tuple(axes[0] if len(axes) == 1 else (axes or None) for axes in spec)


def partition_text(spec: Spec) -> str:
    """``P('d', None, ('a', 'b'))``."""
    return f"P({', '.join(map(repr, spec_entries(spec)))})"
