"""Writes gathers and scatters that index a dim by the position itself as batched ones.

``table[jnp.arange(B), i]`` looks up one row of each example, as ``jax.vmap(lambda t, j: t[j])``
does, but StableHLO has a pair of numbers (b, i[b]) for every row, of which nothing says that the
first one is the row's own position. Shardy then takes the table's batch dim for one that is looked
up in, and XLA's partitioner for CPUs sends rows between devices that hold them already. So each
column of indices that is known to count the positions along one of their dims is taken out, and
the dim that it indexes becomes a batch dim (``operand_batching_dims``). Rules, names, prices, the
annotated program and compilers then agree that nothing is sent when the batch is cut.

The positions are all valid, as the dim has as many entries as there are positions, so that the
result of indices out of bounds, which the other columns may have, stays what it was.

Start reading at ``batch_by_position``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab._jaxlib import ir, stablehlo
from toast_lab.ir.dead import operations
from toast_lab.ir.known_numbers import KnownNumbers, Numbers

_GATHER, _SCATTER = "stablehlo.gather", "stablehlo.scatter"
_NUMBERS = {_GATHER: "dimension_numbers", _SCATTER: "scatter_dimension_numbers"}


class _Indexing(NamedTuple):
    """The dim numbers of a gather or scatter; a scatter's updates are what it has of slices."""

    window_dims: list[int]  #: of the slices: those that run through one slice
    collapsed_dims: list[int]  #: of the operand: those of size 1 that slices do not have
    batch_dims: list[int]  #: of the operand
    index_batch_dims: list[int]  #: of the indices, one for each of ``batch_dims``
    index_map: list[int]  #: for each column of the indices the operand's dim that it indexes
    vector_dim: int  #: of the indices: the one along which columns lie; its rank: one column


def batch_by_position(root: Any) -> None:
    """Rewrite every gather and scatter inside ``root`` that indexes by position. In place.

    Args:
        root: an operation, such as a function.
    """
    rewriting = _Rewriting()
    for operation in list(operations(root.operation)):
        if operation.name in (_GATHER, _SCATTER):
            rewriting.operation(operation)


class _Rewriting:
    def __init__(self) -> None:
        self.numbers = KnownNumbers()
        #: (indices, their vector dim, the columns that are left) -> indices of these columns
        self.fewer_columns: dict[tuple[Any, int, tuple[int, ...]], Any] = {}

    def operation(self, operation: Any) -> None:
        """Rewrite a gather or scatter, if some columns of its indices are positions."""
        indexing = _read(operation)
        position = _indices_position(operation)
        indices = operation.operands[position]
        dim_of_column = self._positions(operation, indexing)
        if not dim_of_column:
            return
        left = [c for c in range(len(indexing.index_map)) if c not in dim_of_column]
        key = indices, indexing.vector_dim, tuple(left)
        if key not in self.fewer_columns:
            self.fewer_columns[key] = _with_columns(indices, indexing.vector_dim, left)
        operation.operands[position] = self.fewer_columns[key]
        batch = dict(zip(indexing.batch_dims, indexing.index_batch_dims, strict=True))
        batch |= {indexing.index_map[column]: dim for column, dim in dim_of_column.items()}
        # Slices have no batch dims: those of size 1 that they had disappear.
        window_dim_of = _window_dims(operation, indexing)
        dropped = sorted(window_dim_of[dim] for dim in batch if dim in window_dim_of)
        for slices in _slices(operation):
            _drop_dims(operation, slices, dropped)
        batch_dims = sorted(batch)
        _write(
            operation,
            _Indexing(
                window_dims=[
                    dim - sum(other < dim for other in dropped)
                    for dim in indexing.window_dims
                    if dim not in dropped
                ],
                collapsed_dims=[dim for dim in indexing.collapsed_dims if dim not in batch],
                batch_dims=batch_dims,
                index_batch_dims=[batch[dim] for dim in batch_dims],
                index_map=[indexing.index_map[column] for column in left],
                vector_dim=indexing.vector_dim,
            ),
        )

    def _positions(self, operation: Any, indexing: _Indexing) -> dict[int, int]:
        """For each column of the indices that is the position along one of their dims, that dim."""
        indices, operand = operation.operands[_indices_position(operation)], operation.operands[0]
        slices, window_dim_of = _slices(operation)[0], _window_dims(operation, indexing)
        free_dims = {
            dim: size
            for dim, size in enumerate(indices.type.shape)
            if size > 1 and dim not in (indexing.vector_dim, *indexing.index_batch_dims)
        }
        dim_of_column: dict[int, int] = {}
        for column, operand_dim in enumerate(indexing.index_map):
            size = operand.type.shape[operand_dim]
            window_dim = window_dim_of.get(operand_dim)
            if window_dim is not None and slices.type.shape[window_dim] != 1:
                continue
            for dim in [dim for dim, other_size in free_dims.items() if other_size == size]:
                if _counts_along(
                    self.numbers.of(indices), dim, size, (indexing.vector_dim, column)
                ):
                    dim_of_column[column] = dim
                    del free_dims[dim]
                    break
        return dim_of_column


def _counts_along(indices: Numbers, dim: int, size: int, place_of_column: tuple[int, int]) -> bool:
    """Is a column, at (dim, entry), known to be 0, 1, 2, ... ``size - 1`` along ``dim``?"""
    vector_dim, column = place_of_column

    def of_column(array: np.ndarray) -> np.ndarray:
        if vector_dim == array.ndim or array.shape[vector_dim] == 1:
            return array
        return array.take([column], axis=vector_dim)

    numbers, known = map(of_column, indices)
    count = np.arange(size).reshape([-1 if i == dim else 1 for i in range(numbers.ndim)])
    return numbers.shape[dim] == size and bool(known.all() and (numbers == count).all())


# -- ops -------------------------------------------------------------------------------------------


def _indices_position(operation: Any) -> int:
    """Position of the indices among the operands."""
    return (len(operation.operands) - 1) // 2 if operation.name == _SCATTER else 1


def _slices(operation: Any) -> list[Any]:
    """The result of a gather, or the updates of a scatter."""
    if operation.name == _GATHER:
        return [operation.results[0]]
    return list(operation.operands)[_indices_position(operation) + 1 :]


def _window_dims(operation: Any, indexing: _Indexing) -> dict[int, int]:
    """For each dim of the operand that slices have, its dim among theirs."""
    outside = {*indexing.collapsed_dims, *indexing.batch_dims}
    rank = len(operation.operands[0].type.shape)
    kept_dims = [dim for dim in range(rank) if dim not in outside]
    return dict(zip(kept_dims, indexing.window_dims, strict=True))


def _read(operation: Any) -> _Indexing:
    attribute = operation.attributes[_NUMBERS[operation.name]]
    if operation.name == _GATHER:
        gather = stablehlo.GatherDimensionNumbers(attribute)
        return _Indexing(
            window_dims=list(gather.offset_dims),
            collapsed_dims=list(gather.collapsed_slice_dims),
            batch_dims=list(gather.operand_batching_dims),
            index_batch_dims=list(gather.start_indices_batching_dims),
            index_map=list(gather.start_index_map),
            vector_dim=gather.index_vector_dim,
        )
    scatter = stablehlo.ScatterDimensionNumbers(attribute)
    return _Indexing(
        window_dims=list(scatter.update_window_dims),
        collapsed_dims=list(scatter.inserted_window_dims),
        batch_dims=list(scatter.input_batching_dims),
        index_batch_dims=list(scatter.scatter_indices_batching_dims),
        index_map=list(scatter.scattered_dims_to_operand_dims),
        vector_dim=scatter.index_vector_dim,
    )


def _write(operation: Any, indexing: _Indexing) -> None:
    numbers = (
        stablehlo.GatherDimensionNumbers
        if operation.name == _GATHER
        else stablehlo.ScatterDimensionNumbers
    )
    operation.attributes[_NUMBERS[operation.name]] = numbers.get(*indexing)


def _with_columns(indices: Any, vector_dim: int, columns: Sequence[int]) -> Any:
    """Some columns of a tensor of indices, made right after it."""
    shape = list(indices.type.shape)
    parts = _parts(indices, vector_dim)
    with ir.InsertionPoint.after(indices.owner), indices.owner.location:
        if not columns:
            shape[vector_dim : vector_dim + 1] = [0]
            empty = ir.RankedTensorType.get(shape, indices.type.element_type)
            return stablehlo.constant(ir.Attribute.parse(f"dense<> : {empty}"))
        chosen = [parts[column] for column in columns if column in parts]
        if len(chosen) < len(columns):
            chosen = [_sliced(indices, vector_dim, column) for column in columns]
        return stablehlo.concatenate(chosen, vector_dim) if len(chosen) > 1 else chosen[0]


def _parts(indices: Any, vector_dim: int) -> dict[int, Any]:
    """The columns that are tensors of their own, since a concatenation put them together."""
    operation = indices.owner
    if operation.name != "stablehlo.concatenate":
        return {}
    if ir.IntegerAttr(operation.attributes["dimension"]).value != vector_dim:
        return {}
    widths = [operand.type.shape[vector_dim] for operand in operation.operands]
    return {
        end - 1: operand
        for operand, end, width in zip(
            operation.operands, itertools.accumulate(widths), widths, strict=True
        )
        if width == 1
    }


def _sliced(indices: Any, vector_dim: int, column: int) -> Any:
    start, limit = [0] * len(indices.type.shape), list(indices.type.shape)
    start[vector_dim], limit[vector_dim] = column, column + 1
    return stablehlo.slice(
        indices, *map(ir.DenseI64ArrayAttr.get, (start, limit, [1] * len(start)))
    )


def _drop_dims(operation: Any, slices: Any, dims: Sequence[int]) -> None:
    """Leave these dims of size 1 out of the slices, and reshape them for everything else."""
    if not dims:
        return
    shape = [size for dim, size in enumerate(slices.type.shape) if dim not in dims]
    whole_type = slices.type
    smaller_type = ir.RankedTensorType.get(shape, whole_type.element_type)
    if operation.name == _GATHER:
        slices.set_type(smaller_type)
        with ir.InsertionPoint.after(operation), operation.location:
            whole = stablehlo.reshape(whole_type, slices)
        slices.replace_all_uses_except(whole, whole.owner.operation)
        return
    position = _indices_position(operation) + 1 + _slices(operation).index(slices)
    with ir.InsertionPoint(operation), operation.location:
        operation.operands[position] = stablehlo.reshape(smaller_type, slices)
