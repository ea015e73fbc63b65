"""The columns of a trace: flat arrays that grow, whose rows refer to each other by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


class TraceColumns:
    """The numbers of a trace, column by column.

    Attributes:
        vocabulary: texts of the actions; ``action`` and ``node`` hold indices into it.
        row: one row for each simulation; its actions and nodes end before row ``action_end`` of
            ``action`` and row ``node_end`` of ``passed``.
        action: the actions of all simulations, one simulation after the other.
        passed: the nodes that all simulations passed, likewise.
        node: one row for each state of the search tree.
    """

    def __init__(self, vocabulary: Iterable[str] = ()) -> None:
        self.vocabulary: list[str] = []
        self._word: dict[str, int] = {}
        for text in vocabulary:
            self.word(text)
        self.row = Columns(
            round="i4",
            elapsed_s="f8",
            score="f8",
            time_s="f8",
            peak_bytes="f8",
            fits="?",
            best="i8",
            action_end="i8",
            node_end="i8",
        )
        self.action = Columns(word="i4")
        self.passed = Columns(node="i4")
        self.node = Columns(
            parent="i4",
            word="i4",
            depth="i4",
            key="u8",
            visits="i8",
            value="f8",
            best_score="f8",
            score="f8",
        )

    def word(self, text: str) -> int:
        """The index of an action's text in the vocabulary, to which it is added if new."""
        index = self._word.get(text)
        if index is None:
            index = self._word[text] = len(self.vocabulary)
            self.vocabulary.append(text)
        return index
