"""64-bit hashes over whole arrays, and exact classes of equal rows that are computed with them.

A program of 100,000 ops takes a tenth of a second, whereas tuples in a dictionary take seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.ragged import Ragged, gather


def digest(*arrays: np.ndarray) -> bytes:
    """An 8-byte digest of whole arrays, the same in every process."""
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=8).digest()


class Classes(NamedTuple):
    """Items sorted into classes, which are numbered in the order of their first items."""

    #: [n] int32 class of each item
    label: np.ndarray
    #: [classes] int64 first item of each class
    first: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """[classes] int64 number of items of each class."""
        return np.bincount(self.label, minlength=len(self.first))


def classes(count: int, *columns: np.ndarray | Ragged) -> Classes:
    """Sort ``count`` items into classes of items that agree in every column.

    A column is an array of ``count`` numbers, or ragged with ``count`` rows, which agree if they
    hold the same numbers in the same order. Hashes only propose the classes; every item is then
    compared with the first item of its class, number by number.
    """
    comparable_columns = [
        column if isinstance(column, Ragged) else _bits(column) for column in columns
    ]
    hashes = np.zeros(count, np.uint64)
    # Hash arithmetic overflows on purpose.
    with np.errstate(over="ignore"):
        for column_bits in comparable_columns:
            column_hashes = (
                rows(column_bits.ptr, column_bits.flat)
                if isinstance(column_bits, Ragged)
                else column_bits
            )
            hashes = mix(hashes ^ mix(column_hashes))
    by_hash = _by_first(hashes)
    if all(_agree(column_bits, by_hash) for column_bits in comparable_columns):
        return by_hash
    # Two different items have the same hash: compare the numbers themselves.
    keys: dict[object, int] = {}
    exact = [
        keys.setdefault(
            tuple(_item(column_bits, index) for column_bits in comparable_columns), len(keys)
        )
        for index in range(count)
    ]
    return _by_first(np.asarray(exact, dtype=np.int64))


def _by_first(keys: np.ndarray) -> Classes:
    _, first_items, label = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first_items)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Classes(rank[label].astype(np.int32), first_items[order])


def _bits(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f":
        return column.astype(np.float64).view(np.uint64)
    return column.astype(np.int64).view(np.uint64)


def _agree(column: np.ndarray | Ragged, candidates: Classes) -> bool:
    first_of_class = candidates.first[candidates.label]
    if not isinstance(column, Ragged):
        return bool((column == column[first_of_class]).all())
    if (column.lengths != column.lengths[first_of_class]).any():
        return False
    flat_numbers = column.flat[column.ptr[0] : column.ptr[-1]]
    return bool((flat_numbers == column.flat[gather(column.ptr, first_of_class)]).all())


def _item(column: np.ndarray | Ragged, index: int) -> object:
    return tuple(column.row(index).tolist()) if isinstance(column, Ragged) else int(column[index])


def mix(keys: np.ndarray) -> np.ndarray:
    """Hash each number with the finaliser of splitmix64."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def numbers(texts: Sequence[str]) -> np.ndarray:
    """[n] uint64: one number per text; equal texts get equal numbers, in order of appearance."""
    number_of_text: dict[str, int] = {}
    return np.fromiter(
        (number_of_text.setdefault(text, len(number_of_text)) for text in texts),
        dtype=np.uint64,
        count=len(texts),
    )


def rows(ptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[n] uint64 hash of each row of ``values``, which depends on its length and order."""
    length = np.diff(ptr)
    values = values[ptr[0] : ptr[-1]]
    position = np.arange(len(values)) - np.repeat(ptr[:-1] - ptr[0], length)
    terms = mix(values.astype(np.uint64) ^ mix(position.astype(np.uint64)))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return mix((total[ptr[1:] - ptr[0]] - total[ptr[:-1] - ptr[0]]) ^ mix(length.astype(np.uint64)))
