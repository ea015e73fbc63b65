"""Typed random keys: the dims of their data are hidden by JAX, and no plan may cut them.

``jax.random.key`` makes arrays whose elements are keys. StableHLO shows only their data: a key of
the default kind is two 32-bit words, so 8 keys are ``ui32[8, 2]``, like any other integers. No
PartitionSpec can name the dim of the words, and half a key is of no use to a device. The frontend
therefore reports which arguments are keys and which shapes of keys occur inside the program, and
this module marks the dims of their words: with ``Program.hidden`` for values, and with factors that
stay whole for the ops that make or read them.

Start reading at ``mark``.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import NEED_REPLICATION, Program
from toast_lab.ragged import row_numbers

WORD = "ui32"  #: element type of the data of keys


class Keys(NamedTuple):
    """The random keys that the frontend saw in a program, as shapes of their data."""

    #: for each argument, the number of its last dims that are hidden; 0: it is not keys
    arguments: tuple[int, ...]
    #: (shape of an array of keys, shape of the data of one key)
    inside: frozenset[tuple[tuple[int, ...], tuple[int, ...]]]


def mark(program: Program, keys: Keys) -> Program:
    """``program`` with the hidden dims of random keys held whole.

    A value other than an argument counts as keys if it has their element type and, apart from dims
    of size 1, their shape. Other data of that shape loses nothing but the choice to cut a dim of
    size two or four.
    """
    hidden = np.zeros(len(program.shape), bool)
    shapes_of_keys = {(_without_ones(shape), words) for shape, words in keys.inside}
    for value in range(program.n_values):
        row_end, dims = program.shape_ptr[value + 1], program.dims(value)
        hidden_count = 0
        if program.value_op[value] < program.n_arguments:
            hidden_count = keys.arguments[value]
        elif program.value_dtype[value] == WORD:
            for shape, words in shapes_of_keys:
                visible = len(dims) - len(words)
                if dims[visible:] == words and _without_ones(dims[:visible]) == shape:
                    hidden_count = max(hidden_count, len(words))
        hidden[row_end - hidden_count : row_end] = True
    if not hidden.any():
        return program
    use_of_row = row_numbers(program.use_dim_ptr)
    first_row = program.shape_ptr[program.use_value] - program.use_dim_ptr[:-1]
    classes = program.factor_class.copy()
    classes[program.def_dim_factor[hidden]] = NEED_REPLICATION
    classes[program.use_dim_factor[hidden[first_row[use_of_row] + np.arange(len(use_of_row))]]] = (
        NEED_REPLICATION
    )
    return dataclasses.replace(program, factor_class=classes, hidden=hidden)


def hidden_dims(program: Program, value: int) -> int:
    """Number of the last dims of a value that are the words of random keys."""
    return int(program.hidden[program.shape_ptr[value] : program.shape_ptr[value + 1]].sum())


def offence(program: Program, value: int, dim: int) -> str:
    """Why ``dim`` of ``value`` cannot be cut, if it is hidden; empty if it is not."""
    if not program.hidden[int(program.shape_ptr[value]) + dim]:
        return ""
    dims = program.dims(value)
    visible = len(dims) - hidden_dims(program, value)
    remedies = ("a single key stays whole", "its dim 0 can be cut")
    remedy = remedies[visible] if visible < 2 else f"its dims 0 to {visible - 1} can be cut"
    return (
        f"dim {dim} (size {dims[dim]}) holds the words of a random key, which JAX hides and which "
        f"stay together on every device; {remedy}"
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
