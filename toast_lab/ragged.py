"""Rows of different lengths, kept one after the other in one array.

Row ``i`` is ``flat[ptr[i] : ptr[i + 1]]``.  Where several arrays have the same rows, as the uses of
a program's ops do, ``ptr`` stands alone and the functions here take it.  Kernels read the plain
arrays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np


def row_starts(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """[n+1] int64: where each of the rows of these lengths starts, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def row_numbers(ptr: np.ndarray) -> np.ndarray:
    """[entries] int64: the row that each entry stands in."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_ranges(ptr: np.ndarray) -> list[range]:
    """The positions of each row's entries."""
    return [range(begin, end) for begin, end in itertools.pairwise(ptr.tolist())]


def row_lists(ptr: np.ndarray, flat: np.ndarray) -> list[list[int]]:
    """The entries of each row: for whoever takes many rows one by one."""
    entries = flat.tolist()
    return [entries[begin:end] for begin, end in itertools.pairwise(ptr.tolist())]


def gather(ptr: np.ndarray, wanted: np.ndarray | Sequence[int]) -> np.ndarray:
    """Positions of the entries of the ``wanted`` rows, one row after the other."""
    wanted = np.asarray(wanted, dtype=np.int64)
    return spans(np.asarray(ptr)[wanted], np.diff(ptr)[wanted])


def spans(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """From each ``begin`` as many positions as its length, one span after the other."""
    starts = row_starts(lengths)
    return np.arange(starts[-1]) + np.repeat(begin - starts[:-1], lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """``n`` rows of different lengths."""

    ptr: np.ndarray  #: [n+1] where each row starts in ``flat``, and where the last one ends
    flat: np.ndarray  #: the rows, one after the other

    @classmethod
    def by_key(cls, keys: np.ndarray, row_count: int) -> Ragged:
        """For each key from 0 to ``row_count - 1`` the positions in ``keys`` that have it."""
        return cls(
            row_starts(np.bincount(keys, minlength=row_count)), np.argsort(keys, kind="stable")
        )

    @property
    def lengths(self) -> np.ndarray:
        """[n] length of each row."""
        return np.diff(self.ptr)

    @property
    def row_numbers(self) -> np.ndarray:
        """[entries] the row that each entry stands in."""
        return row_numbers(self.ptr)

    def row(self, index: int) -> np.ndarray:
        """One row, as a view."""
        return self.flat[self.ptr[index] : self.ptr[index + 1]]

    def take(self, wanted: np.ndarray | Sequence[int]) -> Ragged:
        """The ``wanted`` rows, in this order."""
        lengths = self.lengths[np.asarray(wanted, dtype=np.int64)]
        return Ragged(row_starts(lengths), self.flat[gather(self.ptr, wanted)])
