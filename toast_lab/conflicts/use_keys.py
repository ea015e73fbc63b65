"""Hashes of the uses of each value: equal for values that are used alike.

The hashes are 64-bit numbers computed over whole arrays, not nested tuples, so that 100,000 ops
take a tenth of a second. Reference: TOAST section 4.4 (groups of arguments).
"""

from __future__ import annotations

import numpy as np

from toast_lab.hashing import mix, numbers, rows
from toast_lab.ir.op_kinds import ops_where
from toast_lab.ir.program import Program

_LONGEST = 4  # most ops in a row that only hand a value on: two loops, a slice, a reshape


def use_keys(program: Program, depths: tuple[int, ...]) -> list[np.ndarray]:
    """Hashes of the uses of each value, [V] uint64 for each of the ascending ``depths`` in ops.

    The hash of a value combines its shape and type and, for each use in any order, the op's kind
    and details, the operand's position and names, and the hashes of the op's results one op further
    on. Handing a tensor to a loop and taking one round's slice of it do not count as ops; otherwise
    all stacked weights would look alike.
    """
    with np.errstate(over="ignore"):  # hashes wrap around
        value_hash = mix(rows(program.shape_ptr, program.shape) ^ mix(numbers(program.value_dtype)))
        use_op = program.use_op
        use_hash = _use_hashes(program, use_op)
        passes_slices = (
            ops_where(program.kind, "passes_slices")[use_op] if program.regions else None
        )
        current, keys = value_hash, []
        for depth in range(1, depths[-1] + 1):
            results = rows(program.result_ptr, current)[use_op]
            for repeat in range(1 if passes_slices is None else 1 + _LONGEST):
                if repeat and passes_slices is not None:
                    results = np.where(
                        passes_slices, rows(program.result_ptr, current)[use_op], results
                    )
                total = np.zeros(program.n_values, np.uint64)
                # A sum ignores the order of uses.
                np.add.at(total, program.use_value, mix(use_hash ^ mix(results)))
                current = mix(value_hash ^ mix(total))
            if depth in depths:
                keys.append(current)
    return keys


def _use_hashes(program: Program, use_op: np.ndarray) -> np.ndarray:
    """[U] hash of each use alone: op kind and details, position, names from the op's first."""
    position = np.arange(program.n_uses) - program.use_ptr[use_op]
    first = np.repeat(program.factor_ptr[program.owner[use_op]], np.diff(program.use_dim_ptr))
    row = rows(program.use_dim_ptr, program.use_dim_factor - first)
    kind = mix(numbers(program.kind) ^ mix(numbers(program.detail)))
    return mix(row ^ mix(kind[use_op] + mix(position.astype(np.uint64))))
