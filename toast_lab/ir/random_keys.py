"""Typed random keys: dims of their data that JAX hides from its users, and that nobody may cut.

``jax.random.key`` makes arrays whose elements are keys.  StableHLO has their data: a key of the
default kind is two 32-bit words, so that 8 keys are ``ui32[8, 2]``, and that they are keys can no
longer be seen.  No PartitionSpec can name the dim of the words, and no device has a use for half a
key.  So the frontend says which arguments and results are keys and which shapes keys have on the
way, and here the dims of their words are marked: ``Program.hidden`` for values, and factors that
stay whole for the ops that make or read them.

Start reading at ``mark``.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import NEED_REPLICATION, Program

WORD = "ui32"  #: element type of the data of keys


class Keys(NamedTuple):
    """What the frontend knows of random keys in a program, as shapes of their data."""

    #: for each argument the number of its last dims that are hidden, 0: no keys
    arguments: tuple[int, ...]
    #: (shape of keys, shape of the data of one of them)
    inside: frozenset[tuple[tuple[int, ...], tuple[int, ...]]]


def mark(program: Program, keys: Keys) -> Program:
    """``program`` with the hidden dims of random keys held whole.

    Behind the arguments a value is taken for keys if it has the element type and the shape of some,
    dims of size 1 aside: data of other origin and the same shape loses the choice to have its words
    cut, which are two or four.
    """
    hidden = np.zeros(len(program.shape), bool)
    known = {(_wide(shape), words) for shape, words in keys.inside}
    ranks = {len(words) for _, words in known}
    for value in range(program.n_values):
        end, dims = int(program.shape_ptr[value + 1]), program.dims(value)
        if program.value_op[value] < program.n_arguments:
            count = keys.arguments[value]
        elif program.value_dtype[value] == WORD:
            count = max(
                (n for n in ranks if n <= len(dims) and (_wide(dims[:-n]), dims[-n:]) in known),
                default=0,
            )
        else:
            count = 0
        hidden[end - count : end] = count > 0
    if not hidden.any():
        return program
    rank = np.diff(program.use_dim_ptr)
    used = np.repeat(program.use_value, rank)
    row = program.shape_ptr[used] + np.arange(len(used)) - np.repeat(program.use_dim_ptr[:-1], rank)
    classes = program.factor_class.copy()
    classes[program.def_dim_factor[hidden]] = NEED_REPLICATION
    classes[program.use_dim_factor[hidden[row]]] = NEED_REPLICATION
    return dataclasses.replace(program, factor_class=classes, hidden=hidden)


def hidden_dims(program: Program, value: int) -> int:
    """How many of the last dims of a value are the words of random keys."""
    return int(program.hidden[program.shape_ptr[value] : program.shape_ptr[value + 1]].sum())


def offence(program: Program, value: int, dim: int) -> str:
    """What to say where somebody wants to cut a dim that is hidden; empty if it is not."""
    if not program.hidden[int(program.shape_ptr[value]) + dim]:
        return ""
    dims = program.dims(value)
    visible = len(dims) - hidden_dims(program, value)
    can = (
        f"its dims 0 to {visible - 1} can be cut"
        if visible > 1
        else "its dim 0 can be cut"
        if visible
        else ("a single key stays whole")
    )
    return (
        f"dim {dim} (size {dims[dim]}) holds the words of a random key, which JAX hides and "
        "which stay together on "
        f"every device; {can}"
    )


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
