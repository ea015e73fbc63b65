"""Transposes and casts that cost a GPU nothing, since their readers take the operand as it is.

``docs/machines.md`` says which ("Kernels of a GPU"). No product can take a batch dim from between
the others, or a row that is not in one piece: such a transpose moves its operand.

Read off jax-cuda12-pjrt 0.10.2 for H100: embeddings that make logits too, weights that are kept as
[out, in], the transposed matrix of a least-squares problem, weights' gradients, and three decoding
steps.

Reference: none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from toast_lab.cost.dim_order import Order, is_turned, order_of
from toast_lab.cost.loop_sums import users_of
from toast_lab.cost.matrix_tiles import BATCH, dim_roles
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind, ops_where
from toast_lab.sharding.steps import Tables


def free_transposes(program: p.Program, tables: Tables) -> np.ndarray:
    """[O] bool: ops that put dims in another order without moving anything.

    Args:
        program: the program.
        tables: its tables.
    """
    free = np.zeros(program.n_ops, bool)
    for op in np.flatnonzero(ops_where(program.kind, "reorders")).tolist():
        order = order_of(program, op)
        (use,), (result,) = program.uses(op), program.results(op)
        free[op] = (
            not is_turned(order, program.dims(result))
            or _is_read_as_matrix(program, tables, result, order)
            or _turns_product(program, tables, int(program.use_value[use]), order)
        )
    return free


def free_casts(program: p.Program, tables: Tables, *, has_bfloat16: bool) -> np.ndarray:
    """[O] bool: casts that all their readers do themselves.

    Args:
        program: the program.
        tables: its tables.
        has_bfloat16: without it, products read float32, and of a cast to bfloat16 its operand.
    """
    is_cast = [kind == "convert" for kind in program.kind]
    free = np.zeros(program.n_ops, bool)
    for op in np.flatnonzero(is_cast).tolist():
        (value,) = program.results(op)
        users = users_of(tables, value)
        free[op] = (
            bool(users)
            and not tables.value_output[value]
            and all(
                _looks_up(program, user, value)
                or _widens_both(program, user)
                or (not has_bfloat16 and _reads_wide(program, user, value))
                for user in users
            )
        )
    return free


def _looks_up(program: p.Program, op: int, value: int) -> bool:
    """Does an op return rows of a value?"""
    facts = op_kind(program.kind[op])
    return facts.looks_up and facts.reads_part and program.operands(op)[0] == value


def _widens_both(program: p.Program, op: int) -> bool:
    """Is it a product of two values that were cast to float32 from the same 16-bit type?"""
    if program.op_class[op] != p.DOT:
        return False
    origins = {_widened_from(program, value) for value in program.operands(op)}
    return len(origins) == 1 and "" not in origins


def _reads_wide(program: p.Program, op: int, value: int) -> bool:
    """Is it a product that would widen a value of bfloat16 that was float32 before?"""
    (origin,) = program.operands(int(program.value_op[value]))
    return (
        program.op_class[op] == p.DOT
        and program.value_dtype[value] == "bf16"
        and program.value_dtype[origin] == "f32"
    )


def _widened_from(program: p.Program, value: int) -> str:
    """The 16-bit type that a float32 value was cast from, "" if it was not."""
    op = int(program.value_op[value])
    if program.kind[op] != "convert" or program.value_dtype[value] != "f32":
        return ""
    dtype = program.value_dtype[program.operands(op)[0]]
    return dtype if dtype in ("bf16", "f16") else ""


def is_matrix(roles: Sequence[int]) -> bool:
    """Can a product read dims of these roles as they lie in memory?

    Batch dims come first, then rows and columns, the dims of each role in one piece.

    >>> is_matrix([0, 1, 2]), is_matrix([0, 2, 2, 1]), is_matrix([0, 1, 0, 2])
    (True, True, False)
    """
    changes = sum(
        role_before != role_behind for role_before, role_behind in itertools.pairwise(roles)
    )
    batch = [position for position, role in enumerate(roles) if role == BATCH]
    return changes < len(set(roles)) and batch == list(range(len(batch)))


def _is_read_as_matrix(program: p.Program, tables: Tables, value: int, order: Order) -> bool:
    """Do only products read it, cast or not, and each of them in its order in memory?"""
    users = users_of(tables, value)
    if not users or tables.value_output[value]:
        return False
    for op in users:
        if program.op_class[op] == p.DOT:
            for use, roles in zip(program.uses(op), dim_roles(program, op), strict=True):
                if program.use_value[use] == value and not _lies_as_matrix(
                    roles, order, program.dims(value)
                ):
                    return False
        elif not (
            program.op_class[op] == p.ELEMENTWISE
            and len(program.operands(op)) == 1
            and len(program.results(op)) == 1
            and _is_read_as_matrix(program, tables, program.results(op)[0], order)
        ):
            return False
    return True


def _turns_product(program: p.Program, tables: Tables, value: int, order: Order) -> bool:
    """Is the op the only reader of a product's result, which can be written in that order?"""
    op = int(program.value_op[value])
    if program.op_class[op] != p.DOT or len(users_of(tables, value)) != 1:
        return False
    if tables.value_output[value]:
        return False
    left, right = (set(program.use_names(use)) for use in program.uses(op))
    roles = [
        BATCH if name in left and name in right else 1 if name in left else 2
        for name in program.def_names(value)
    ]
    turned = [roles[position] for position in order]
    return is_matrix(turned) and _keeps_order(turned, order)


def _lies_as_matrix(roles: Sequence[int], order: Order, sizes: Sequence[int]) -> bool:
    """Is a product's operand a matrix in its order in memory? ``roles`` are of its dims as read."""
    dims = [dim for dim, size in enumerate(sizes) if size != 1]
    dims.sort(key=lambda dim: order[dim])
    lying = [roles[dim] for dim in dims]
    return is_matrix(lying) and _keeps_order(lying, dims)


def _keeps_order(roles: Sequence[int], places: Sequence[int]) -> bool:
    """Are the dims of each role in the order in which the other operand has them?"""
    for role in set(roles):
        role_places = [place for place, other in zip(places, roles, strict=True) if other == role]
        if role_places != sorted(role_places):
            return False
    return True
