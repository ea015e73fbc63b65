"""The columns of a trace: flat arrays that grow, whose rows refer to each other by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


class Columns:
    """Named arrays of one length that grow together; ``array[name][:n]`` is the part in use."""

    def __init__(self, **dtypes: Any) -> None:
        self.array = {name: np.zeros(64, dtype) for name, dtype in dtypes.items()}
        self.n = 0

    @property
    def capacity(self) -> int:
        """Number of rows for which memory is allocated."""
        return len(next(iter(self.array.values())))

    def reserve(self, more: int) -> None:
        """Make room for ``more`` further rows."""
        if self.n + more > self.capacity:
            capacity = max(self.n + more, 2 * self.capacity)
            for name, values in self.array.items():
                self.array[name] = np.zeros(capacity, values.dtype)
                self.array[name][: self.n] = values[: self.n]

    def append(self, **row: Any) -> int:
        """Add one row and give its index."""
        self.reserve(1)
        for name, value in row.items():
            self.array[name][self.n] = value
        self.n += 1
        return self.n - 1

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add many rows, given as one array for each column."""
        row_count = len(next(iter(rows.values())))
        self.reserve(row_count)
        for name, values in rows.items():
            self.array[name][self.n : self.n + row_count] = values
        self.n += row_count

    def at(self, index: int) -> dict[str, Any]:
        """One row, as plain Python numbers."""
        return {name: array[index].item() for name, array in self.array.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.array[name][: self.n]


class Reworded(Sequence[str]):
    """A view of texts, each of them changed; texts that are added to them later are seen, too."""

    def __init__(self, texts: Sequence[str], change: Callable[[str], str]) -> None:
        self._texts, self._change = texts, change

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*map(self._change, self._texts[index])]
        return self._change(self._texts[index])
