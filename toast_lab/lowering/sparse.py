"""A program with a plan's shardings at its interface and a few constraints, as users write it.

``annotate`` leaves nothing open; this module leaves everything else to propagation. Start reading
at ``constrain``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir import op_kinds, walk
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.lowering.annotate import MESH_NAME, Writer, forget_annotations
from toast_lab.sharding.plan import ShardingPlan, Spec


def constrain(
    text: str,
    plan: ShardingPlan,
    results: Mapping[int, tuple[Spec, ...]],
    operands: Mapping[int, Spec],
    *,
    numbered: bool = False,
) -> str:
    """The canonical module ``text`` with the plan's interface and the given constraints.

    Args:
        text: the module of the plan's program.
        plan: gives the shardings of arguments and results.
        results: for each value the specs that it takes after its op, in order.
        operands: for each use the spec in which it reads its value.
        numbered: write the index of every op into an attribute.
    """
    return _Sparse(plan, results, operands, numbered).write(text, locations=False)


class _Sparse(Writer):
    """Writes the given constraints and nothing else."""

    def __init__(
        self,
        plan: ShardingPlan,
        at_results: Mapping[int, tuple[Spec, ...]],
        at_operands: Mapping[int, Spec],
        numbered: bool,
    ) -> None:
        super().__init__(plan, reuse=False, scattered=True, numbered=numbered, located=False)
        self.at_results, self.at_operands = at_results, at_operands
        self.local_ops = False  # users write no manual computations

    def operands(self, number: int, item: walk.Item, copies: Any, region_end: Any) -> None:
        """Write the given constraints on the op's operands."""
        operation, uses = item.operation, self.plan.program.uses(number)
        for use, position in zip(uses, item.operands, strict=False):
            spec, operand = self.at_operands.get(use), operation.operands[position]
            if spec is not None and isinstance(operand.type, ir.RankedTensorType):
                with ir.InsertionPoint(operation), operation.location:
                    operation.operands[position] = _jaxlib.sdy.sharding_constraint(
                        operand, self.attribute(spec)
                    )

    def results(self, number: int, item: walk.Item) -> None:
        """Write the given constraints on the op's results."""
        if not op_kinds.is_control(item.kind):
            forget_annotations(item.operation.attributes)
        if item.operation.name == CONSTRAINT:
            self._adapt_constraint(item.operation)
        values = self.plan.program.results(number)
        for i, result in enumerate((*item.results, *item.aliases)):
            value = values[min(i, len(values) - 1)]
            self.pin(result, list(self.at_results.get(value, ())))

    def _adapt_constraint(self, operation: Any) -> None:
        """Adapt a constraint of the original program: the user's, or JAX's own on random keys.

        A constraint on the plan's mesh stays, as it does in the user's function. On another mesh it
        means nothing to this plan, and is left open.
        """
        sharding = operation.attributes["sharding"]
        plan_axes = zip(self.plan.mesh.axes, self.plan.mesh.sizes, strict=True)
        rank = len(operation.results[0].type.shape)
        mesh, dims, *_ = _jaxlib.sharding_parts(sharding, self.meshes, rank)
        operation.attributes["sharding"] = (
            _jaxlib.on_mesh(sharding, MESH_NAME)
            if mesh == tuple(plan_axes)
            or (not mesh and not any(set(axes) - {"*"} for axes in dims))
            else _jaxlib.sharding_attribute(MESH_NAME, [()] * rank, closed=False)
        )
