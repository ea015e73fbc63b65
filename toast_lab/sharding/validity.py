"""Checks whether the arrays of a plan are valid for a program and a mesh."""

from __future__ import annotations

import numpy as np

from toast_lab.ir import random_keys
from toast_lab.ir.program import PASS, REDUCTION, Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding


def offenders(program: Program, mesh: Mesh, sharding: Sharding) -> list[str]:
    """A sentence for every op and value of a program that cannot be sharded in this way."""
    ops = _ops(program, mesh, sharding.op_factor)
    return sorted({*ops, *_values(program, mesh, sharding.value_dim)})


def _ops(program: Program, mesh: Mesh, op_factor: np.ndarray) -> list[str]:
    op, axis = np.nonzero(op_factor >= 0)
    name = op_factor[op, axis]
    is_own = (name >= program.factor_ptr[op]) & (name < program.factor_ptr[op + 1])
    ways = _ways(op_factor[op], name, mesh)
    valid_name = np.where(is_own, name, 0)
    unsplittable = (program.factor_size[valid_name] % ways != 0) | ~np.isin(
        program.factor_class[valid_name], (PASS, REDUCTION)
    )
    sentences = []
    for row in np.flatnonzero(~is_own | unsplittable):
        sentence = f"{program.kind[op[row]]} ({program.where(int(op[row]))}): "
        if not is_own[row]:
            sentences.append(sentence + f"name {name[row]} is not one of its own")
        else:
            sentences.append(
                sentence + f"size {program.factor_size[name[row]]} cannot be split {ways[row]} ways"
            )
    return sentences


def _values(program: Program, mesh: Mesh, value_dim: np.ndarray) -> list[str]:
    value, axis = np.nonzero(value_dim >= 0)
    dim = value_dim[value, axis].astype(np.int64)
    rank = np.diff(program.shape_ptr)[value]
    exists = dim < rank
    row_of_dim = program.shape_ptr[value] + np.where(exists, dim, 0)
    size, hidden = program.shape[row_of_dim], program.hidden[row_of_dim] & exists
    ways = _ways(value_dim[value], dim, mesh)
    sentences = []
    for row in np.flatnonzero(~exists | (size % ways != 0) | hidden):
        sentence = f"{program.value_name[value[row]]}: "
        if not exists[row]:
            sentences.append(sentence + f"no dim {dim[row]}, its rank is {rank[row]}")
        elif hidden[row]:
            sentences.append(
                sentence + random_keys.offence(program, int(value[row]), int(dim[row]))
            )
        else:
            sentences.append(
                sentence + f"dim {dim[row]} has size {size[row]}, not divisible by {ways[row]} "
                f'("{mesh.axes[axis[row]]}" and the other axes on it)'
            )
    return sentences


def _ways(rows: np.ndarray, target: np.ndarray, mesh: Mesh) -> np.ndarray:
    """[K] product of the sizes of the axes that cut ``target`` in each of the K rows."""
    sizes = np.where(rows == target[:, None], mesh.array(), 1)
    return np.asarray(sizes.prod(axis=1, dtype=np.int64))
