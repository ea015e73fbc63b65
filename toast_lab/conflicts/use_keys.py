"""Hashes of what happens to each value: equal for values that are used alike.

64-bit hashes over whole arrays instead of nested tuples: a program of 100,000 ops is done in a
tenth of a second.  Reference: TOAST section 4.4 (groups of arguments).
"""

from __future__ import annotations

import numpy as np

from toast_lab.hashing import mix, numbers, rows
from toast_lab.ir.op_kinds import ops_where
from toast_lab.ir.program import Program

_LONGEST = 4  # into a loop within a loop, slice, reshape


def use_keys(program: Program, depths: tuple[int, ...]) -> list[np.ndarray]:
    """Hashes of what happens to each value within so many ops.

    One array [V] uint64 for each of the ascending ``depths``.

    The hash of a value is made of its shape and type and, for each use in any order, of the op's
    kind and details, the operand's position and names, and the hashes of the op's results one op
    further on.  Where there are loops, handing a tensor on into one and taking a round's slice of
    it does not count as an op, or all stacked weights would look alike.
    """
    with np.errstate(over="ignore"):  # hashes wrap around
        base = mix(rows(program.shape_ptr, program.shape) ^ mix(numbers(program.value_dtype)))
        use_op = np.repeat(np.arange(program.n_ops), np.diff(program.use_ptr))
        use = _use_hashes(program, use_op)
        hands_on = ops_where(program.kind, "hands_on")[use_op] if program.regions else None
        current, keys = base, []
        for depth in range(1, depths[-1] + 1):
            results = rows(program.result_ptr, current)[use_op]
            for repeat in range(1 if hands_on is None else 1 + _LONGEST):
                if repeat and hands_on is not None:
                    results = np.where(hands_on, rows(program.result_ptr, current)[use_op], results)
                total = np.zeros(program.n_values, np.uint64)
                np.add.at(total, program.use_value, mix(use ^ mix(results)))  # a sum knows no order
                current = mix(base ^ mix(total))
            if depth in depths:
                keys.append(current)
    return keys


def _use_hashes(program: Program, use_op: np.ndarray) -> np.ndarray:
    """[U] hash of each use by itself.

    It covers op kind and details, operand position, and names counted from the op's first.
    """
    position = np.arange(program.n_uses) - program.use_ptr[use_op]
    first = np.repeat(program.factor_ptr[program.owner[use_op]], np.diff(program.use_dim_ptr))
    row = rows(program.use_dim_ptr, program.use_dim_factor - first)
    kind = mix(numbers(program.kind) ^ mix(numbers(program.detail)))
    return mix(row ^ mix(kind[use_op] + mix(position.astype(np.uint64))))
