"""Dims along which a loop stacks the inputs and outputs of its rounds.  The loop never splits them.

``scan`` hands its stacked inputs and outputs on from round to round and picks one slice in each.
Sharding them along the stacking dim would bring all slices together in every round, so the loop
holds that dim whole; outside (an optimiser's update of stacked parameters, say) it can be sharded
like any other.

The paper has no such step.  Start reading at ``stacked_factors``.
"""

from __future__ import annotations

from toast_lab.ir.build import Builder
from toast_lab.ir.op_kinds import op_kind


def stacked_factors(build: Builder) -> list[int]:
    """Factors of ``while.enter`` ops whose dim the loop only ever slices or updates slice by slice.

    A dim that any op of the body needs whole, as attention needs a cache's positions, is not one of
    them.
    """
    enters = [op for op, new in enumerate(build.ops) if new.kind == "while.enter"]
    if not enters:
        return []
    uses: dict[int, list[tuple[int, int]]] = {}
    for op in range(enters[0], len(build.ops)):
        for use in range(build.use_ptr[op], build.use_ptr[op + 1]):
            uses.setdefault(build.use_value[use], []).append((op, use))
    return [factor for enter in enters for factor in _stacked(build, uses, enter)]


def _stacked(build: Builder, uses: dict[int, list[tuple[int, int]]], enter: int) -> list[int]:
    waiting, sliced = [build.result_ptr[enter]], set[int]()
    while waiting:
        for op, use in uses.get(waiting.pop(), ()):
            new = build.ops[op]
            if new.kind == "while.next" and new.owner == enter:
                continue
            kind = op_kind(new.kind)
            if not kind.picks_slice or use != build.use_ptr[op]:
                return []
            update = kind.brings >= 0
            part = build.tensor[build.use_value[use + 1] if update else build.result_ptr[op]].shape
            whole = build.tensor[build.use_value[use]].shape
            sizes = zip(part, whole, strict=True)
            sliced.update(dim for dim, (size, whole_size) in enumerate(sizes) if size != whole_size)
            if update:
                waiting.append(build.result_ptr[op])
    return [build.factor_ptr[enter] + dim for dim in sorted(sliced)]
