"""Dims along which a loop stacks the inputs and outputs of its rounds; the loop never splits them.

``scan`` carries its stacked inputs and outputs through all rounds, and picks one slice in each. If
they were sharded along the stacking dim, every round would have to gather all slices, so the loop
holds that dim whole. Outside the loop (for instance in an optimiser's update of stacked parameters)
it can be sharded like any other.

The paper has no such step. Start reading at ``stacked_factors``.
"""

from __future__ import annotations

from toast_lab.ir.build import Builder
from toast_lab.ir.op_kinds import op_kind


def stacked_factors(build: Builder) -> list[int]:
    """Factors of ``while.enter`` ops whose dim the loop only slices, or updates slice by slice.

    A dim that any op of the body needs whole, as attention needs a cache's positions, is not among
    them.
    """
    enters = [op for op, new_op in enumerate(build.ops) if new_op.kind == "while.enter"]
    if not enters:
        return []
    uses: dict[int, list[tuple[int, int]]] = {}
    for op in range(enters[0], len(build.ops)):
        for use in range(build.use_ptr[op], build.use_ptr[op + 1]):
            uses.setdefault(build.use_value[use], []).append((op, use))
    return [factor for enter in enters for factor in _stacked(build, uses, enter)]


def _stacked(build: Builder, uses: dict[int, list[tuple[int, int]]], enter: int) -> list[int]:
    pending, sliced_dims = [build.result_ptr[enter]], set[int]()
    while pending:
        for op, use in uses.get(pending.pop(), ()):
            new_op = build.ops[op]
            if new_op.kind == "while.next" and new_op.owner == enter:
                continue
            kind = op_kind(new_op.kind)
            if not kind.picks_slice or use != build.use_ptr[op]:
                return []
            is_update = kind.update_operand >= 0
            slice_shape = build.tensor[
                build.use_value[use + 1] if is_update else build.result_ptr[op]
            ].shape
            whole_shape = build.tensor[build.use_value[use]].shape
            dim_sizes = zip(slice_shape, whole_shape, strict=True)
            sliced_dims.update(
                dim
                for dim, (slice_size, whole_size) in enumerate(dim_sizes)
                if slice_size != whole_size
            )
            if is_update:
                pending.append(build.result_ptr[op])
    return [build.factor_ptr[enter] + dim for dim in sorted(sliced_dims)]
