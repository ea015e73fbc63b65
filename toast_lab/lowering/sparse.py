"""A program that carries a plan's shardings at its interface and a few constraints inside, as a user would write it.

``annotate`` leaves nothing open; here propagation is meant to find the rest.  Start reading at ``constrain``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir import kinds, walk
from toast_lab.lowering.annotate import Writer, forget_annotations
from toast_lab.sharding.plan import ShardingPlan, Spec


def constrain(
    text: str,
    plan: ShardingPlan,
    results: Mapping[int, tuple[Spec, ...]],
    operands: Mapping[int, Spec],
    *,
    numbered: bool = False,
) -> str:
    """The canonical module ``text`` with the plan's arguments and results and these constraints.

    Args:
        text: the module of the plan's program.
        plan: says how arguments and results are sharded.
        results: for a value the specs that it is brought to behind its op, one after the other.
        operands: for a use the spec in which it reads its value.
        numbered: leave its number on every op.
    """
    return _Sparse(plan, results, operands, numbered).write(text, locations=False)


class _Sparse(Writer):
    """Writes what it is told and nothing else."""

    def __init__(
        self,
        plan: ShardingPlan,
        at_results: Mapping[int, tuple[Spec, ...]],
        at_operands: Mapping[int, Spec],
        numbered: bool,
    ) -> None:
        super().__init__(plan, reuse=False, scattered=True, numbered=numbered, located=False)
        self.at_results, self.at_operands = at_results, at_operands
        self.local_transforms = False  # what a user writes holds no manual computations

    def operands(self, number: int, item: walk.Item, copies: Any, region_end: Any) -> None:
        """Constraints before the uses that have one."""
        operation, first = item.operation, int(self.plan.program.use_ptr[number])
        for i, position in enumerate(item.operands):
            spec = self.at_operands.get(first + i)
            if spec is not None and isinstance(operation.operands[position].type, ir.RankedTensorType):
                with ir.InsertionPoint(operation), operation.location:
                    operation.operands[position] = _jaxlib.sdy.sharding_constraint(
                        operation.operands[position], self.attribute(spec)
                    )

    def results(self, number: int, item: walk.Item) -> None:
        """Constraints behind the values that have one."""
        if item.kind not in kinds.CONTROL:
            forget_annotations(item.operation.attributes)
        values = self.plan.program.results(number)
        for i, result in enumerate((*item.results, *item.twins)):
            value = int(values[min(i, len(values) - 1)])
            self.pin(result, list(self.at_results.get(value, ())))
