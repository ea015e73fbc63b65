"""Rows of different lengths, stored one after the other in one array.

Row ``i`` is ``flat[ptr[i] : ptr[i + 1]]``. If several arrays have the same row lengths, like those
of a program's uses, they share one ``ptr``, which the functions of this module take. Kernels read
the plain arrays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np


def row_starts(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """[n+1] int64: the start of each row, given their lengths, and the end of the last row."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def row_numbers(ptr: np.ndarray) -> np.ndarray:
    """[entries] int64: the row that each entry belongs to."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_ranges(ptr: np.ndarray) -> list[range]:
    """The positions of each row's entries."""
    return [range(begin, end) for begin, end in itertools.pairwise(ptr.tolist())]


def row_lists(ptr: np.ndarray, flat: np.ndarray) -> list[list[int]]:
    """The entries of each row as lists, which is faster if many rows are read one by one."""
    entries = flat.tolist()
    return [entries[begin:end] for begin, end in itertools.pairwise(ptr.tolist())]


def gather(ptr: np.ndarray, wanted: np.ndarray | Sequence[int]) -> np.ndarray:
    """Positions of the entries of the ``wanted`` rows, one row after the other."""
    wanted = np.asarray(wanted, dtype=np.int64)
    return spans(np.asarray(ptr)[wanted], np.diff(ptr)[wanted])


def spans(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of spans, one span after the other, each given by its begin and length."""
    starts = row_starts(lengths)
    return np.arange(starts[-1]) + np.repeat(begin - starts[:-1], lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """``n`` rows of different lengths."""

    ptr: np.ndarray  #: [n+1] start of each row in ``flat``, and the end of the last row
    flat: np.ndarray  #: the rows, one after the other

    @classmethod
    def by_key(cls, keys: np.ndarray, row_count: int) -> Ragged:
        """Row k holds the positions in ``keys`` of key k, for k from 0 to ``row_count - 1``."""
        return cls(
            row_starts(np.bincount(keys, minlength=row_count)), np.argsort(keys, kind="stable")
        )

    @property
    def lengths(self) -> np.ndarray:
        """[n] length of each row."""
        return np.diff(self.ptr)

    @property
    def row_numbers(self) -> np.ndarray:
        """[entries] the row that each entry belongs to."""
        return row_numbers(self.ptr)

    def row(self, index: int) -> np.ndarray:
        """One row, as a view."""
        return self.flat[self.ptr[index] : self.ptr[index + 1]]

    def take(self, wanted: np.ndarray | Sequence[int]) -> Ragged:
        """The ``wanted`` rows, in the order given."""
        lengths = self.lengths[np.asarray(wanted, dtype=np.int64)]
        return Ragged(row_starts(lengths), self.flat[gather(self.ptr, wanted)])
