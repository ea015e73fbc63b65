"""Dims along which a loop stacks what its rounds take and give.

They are no sharding dims of the loop.

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

    A dim that any op of the body wants as a whole, as attention wants a cache's positions, is none
    of these.
    """
    uses: dict[int, list[tuple[int, int]]] = {}
    enters = [op for op, kind in enumerate(build.kind) if kind == "while.enter"]
    if not enters:
        return []
    for op in range(enters[0], len(build.kind)):
        for use in range(build.use_ptr[op], build.use_ptr[op + 1]):
            uses.setdefault(build.use_value[use], []).append((op, use))
    found = []
    for enter in enters:
        found.extend(_stacked(build, uses, enter))
    return found


def _stacked(build: Builder, uses: dict[int, list[tuple[int, int]]], enter: int) -> list[int]:
    value = build.result_ptr[enter]
    waiting, sliced = [value], set[int]()
    while waiting:
        for op, use in uses.get(waiting.pop(), ()):
            kind = build.kind[op]
            if kind == "while.next" and build.owner[op] == enter:
                continue
            if not op_kind(kind).picks_slice or use != build.use_ptr[op]:
                return []
            update = op_kind(kind).brings >= 0
            piece = build.tensor[build.use_value[use + 1] if update else build.result_ptr[op]].shape
            whole = build.tensor[build.use_value[use]].shape
            sliced.update(
                dim for dim, (a, b) in enumerate(zip(piece, whole, strict=True)) if a != b
            )
            if update:
                waiting.append(build.result_ptr[op])
    return [build.factor_ptr[enter] + dim for dim in sorted(sliced)]
