"""64-bit hashes over whole arrays, and exact classes of equal rows made with them.

A program of 100,000 ops is done in a tenth of a second, where tuples in a dictionary take seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.ragged import Ragged, gather


def digest(*arrays: np.ndarray) -> bytes:
    """8 bytes that tell whole arrays apart, equal in every process."""
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=8).digest()


class Classes(NamedTuple):
    """Items sorted into classes, which are numbered by their first items."""

    #: [n] int32 class of each item
    label: np.ndarray
    #: [classes] int64 first item of each class
    first: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """[classes] int64 how many items each class has."""
        return np.bincount(self.label, minlength=len(self.first))


def classes(count: int, *columns: np.ndarray | Ragged) -> Classes:
    """Put those of ``count`` items into one class that agree in every column.

    A column is an array of ``count`` numbers, or ragged: rows that agree if they have the same
    numbers in the same order.  Hashes only propose the classes; every item is then compared with
    the first one of its class, number by number.
    """
    comparable = [column if isinstance(column, Ragged) else _bits(column) for column in columns]
    hashes = np.zeros(count, np.uint64)
    # hashes wrap around
    with np.errstate(over="ignore"):
        for own_column in comparable:
            column_hashes = (
                rows(own_column.ptr, own_column.flat)
                if isinstance(own_column, Ragged)
                else own_column
            )
            hashes = mix(hashes ^ mix(column_hashes))
    by_hash = _by_first(hashes)
    if all(_agree(own_column, by_hash) for own_column in comparable):
        return by_hash
    # two hashes collided: take the numbers themselves
    keys: dict[object, int] = {}
    exact = [
        keys.setdefault(tuple(_item(own_column, index) for own_column in comparable), len(keys))
        for index in range(count)
    ]
    return _by_first(np.asarray(exact, dtype=np.int64))


def _by_first(key: np.ndarray) -> Classes:
    _, first, label = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Classes(rank[label].astype(np.int32), first[order])


def _bits(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f":
        return column.astype(np.float64).view(np.uint64)
    return column.astype(np.int64).view(np.uint64)


def _agree(column: np.ndarray | Ragged, candidates: Classes) -> bool:
    like = candidates.first[candidates.label]
    if not isinstance(column, Ragged):
        return bool((column == column[like]).all())
    if (column.lengths != column.lengths[like]).any():
        return False
    own = column.flat[column.ptr[0] : column.ptr[-1]]
    return bool((own == column.flat[gather(column.ptr, like)]).all())


def _item(column: np.ndarray | Ragged, index: int) -> object:
    return tuple(column.row(index).tolist()) if isinstance(column, Ragged) else int(column[index])


def mix(keys: np.ndarray) -> np.ndarray:
    """splitmix64 finaliser."""
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def numbers(texts: Sequence[str]) -> np.ndarray:
    """[n] uint64: texts as numbers, equal for equal texts."""
    number: dict[str, int] = {}
    return np.fromiter(
        (number.setdefault(text, len(number)) for text in texts), dtype=np.uint64, count=len(texts)
    )


def rows(ptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[n] uint64 hash of each row of ``values``, its length and order included."""
    length = np.diff(ptr)
    values = values[ptr[0] : ptr[-1]]
    position = np.arange(len(values)) - np.repeat(ptr[:-1] - ptr[0], length)
    terms = mix(values.astype(np.uint64) ^ mix(position.astype(np.uint64)))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return mix((total[ptr[1:] - ptr[0]] - total[ptr[:-1] - ptr[0]]) ^ mix(length.astype(np.uint64)))
