"""The trace of a search: every trajectory in order and every state reached, in columns that grow.

A search on all cores makes tens of thousands of trajectories a second, so the trace keeps numbers
in flat arrays and builds a ``Simulation`` or a ``TraceNode`` only when one is accessed. Actions are
stored as indices into a vocabulary of texts. No file keeps a trace: a search that is resumed from
``saved_search`` is replayed, which makes its trace again.

Start reading at ``Trace``. Reference: TOAST section 4.1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np

from toast_lab.search.trace_columns import Columns, Reworded
from toast_lab.sharding.sharding import Sharding


class Simulation(NamedTuple):
    """One trajectory: actions taken from the unsharded program, and the price of where it ended."""

    index: int  # type: ignore[assignment]  #: counts from 1
    round: int
    elapsed_s: float
    actions: tuple[str, ...]
    nodes: tuple[int, ...]  #: trace nodes passed, root first
    score: float  #: C(s)
    time_s: float
    peak_bytes: float
    fits: bool
    best_score: float
    best_time_s: float
    best_peak_bytes: float
    improved: bool


class TraceNode(NamedTuple):
    """One state in the trace, first reached by ``action`` from ``parent``.

    A state that is reached more than once is one node.
    """

    id: int
    parent: int  #: -1 for the root
    action: str
    depth: int
    key: int  #: 64-bit state key
    visits: int
    value: float  #: mean reward of the trajectories through it
    best_score: float  #: lowest C(s) of the trajectories through it
    score: float | None  #: price of the state itself, if it was evaluated


Row = TypeVar("Row", covariant=True)


class DecodedRows(Sequence[Row]):
    """Rows of a trace, decoded on access."""

    def __init__(self, decode: Callable[[int], Row], rows: range) -> None:
        self._decode, self._rows = decode, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [*map(self._decode, self._rows[index])]
        return self._decode(self._rows[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._decode, self._rows)


class Simulations(DecodedRows[Simulation]):
    """A range of the simulations of ``trace``, decoded on access."""

    def __init__(self, trace: Trace, begin: int, end: int) -> None:
        super().__init__(trace.simulation, range(begin, end))
        self.trace = trace

    def sample(self, every: int) -> list[Simulation]:
        """Every ``every``-th simulation, the last, and every improvement; no other is decoded."""
        rows = np.array(self._rows, np.int64)
        sampled = self.trace.row["best"][rows] == rows
        sampled[::every] = True
        sampled[-1:] = True
        return [*map(self._decode, rows[sampled].tolist())]


class Trace:
    """Everything a search did.

    Attributes:
        vocabulary: texts of the actions; ``action`` and ``node`` hold indices into it.
        row: one row for each simulation; its actions and nodes end before row ``action_end`` of
            ``action`` and row ``node_end`` of ``passed``.
        action: the actions of all simulations, one simulation after the other.
        passed: the nodes that all simulations passed, likewise.
        node: one row for each state of the search tree.
        simulations: every trajectory in order, a sequence of ``Simulation``.
        nodes: every state of the search tree, a sequence of ``TraceNode``; the root first.
        about: what was searched (program digest, mesh, machine, limit), with which method, seed and
            options, and how far.
        best_sharding: the sharding of the best plan; during the search None if the plan's actions
            alone give it.
        best_actions: the actions of the best plan as text.
        told: what the search was told while it ran, in order (``search_replay``).
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
        self.about: dict[str, Any] = {}
        self.best_sharding: Sharding | None = None
        self.best_actions: tuple[str, ...] = ()
        self.told: list[Any] = []

    @property
    def simulations(self) -> Simulations:
        """Every trajectory in order."""
        return Simulations(self, 0, self.row.n)

    @property
    def nodes(self) -> DecodedRows[TraceNode]:
        """Every state of the tree, the root first."""
        return DecodedRows(self.node_at, range(self.node.n))

    @property
    def columns(self) -> dict[str, Columns]:
        """The columns by their names in a file."""
        return {"row": self.row, "action": self.action, "passed": self.passed, "node": self.node}

    def since(self, begin: int) -> Simulations:
        """The simulations from index ``begin``, counted from 0, to the current end of the trace."""
        return Simulations(self, begin, self.row.n)

    def improvements(self) -> list[Simulation]:
        """The simulations that found a better plan, in order: the anytime curve."""
        improving = np.flatnonzero(self.row["best"] == np.arange(self.row.n))
        return [*map(self.simulation, improving.tolist())]

    def reworded(self, change: Callable[[str], str]) -> Trace:
        """This trace, to be read only, with the text of every action changed."""
        twin = copy.copy(self)
        twin.vocabulary = cast("list[str]", Reworded(self.vocabulary, change))
        return twin

    # -- decoding ---------------------------------------------------------------------------------
    def simulation(self, index: int) -> Simulation:
        """The simulation at ``index``, counted from 0."""
        row = self.row.at(index)
        best = self.row.at(row["best"])
        words = self.action.array["word"][self._begin("action_end", index) : row["action_end"]]
        nodes = self.passed.array["node"][self._begin("node_end", index) : row["node_end"]]
        return Simulation(
            index=index + 1,
            round=row["round"],
            elapsed_s=row["elapsed_s"],
            actions=tuple(self.vocabulary[word] for word in words),
            nodes=tuple(nodes.tolist()),
            score=row["score"],
            time_s=row["time_s"],
            peak_bytes=row["peak_bytes"],
            fits=row["fits"],
            best_score=best["score"],
            best_time_s=best["time_s"],
            best_peak_bytes=best["peak_bytes"],
            improved=row["best"] == index,
        )

    def node_at(self, index: int) -> TraceNode:
        """The node at ``index``."""
        row = self.node.at(index)
        word = row.pop("word")
        action = self.vocabulary[word] if index else ""
        if np.isnan(row["score"]):
            row["score"] = None
        return TraceNode(id=index, action=action, **row)

    def _begin(self, column: str, index: int) -> int:
        return int(self.row.array[column][index - 1]) if index else 0

    # -- writing ----------------------------------------------------------------------------------
    def word(self, text: str) -> int:
        """The index of an action's text in the vocabulary, to which it is added if new."""
        index = self._word.get(text)
        if index is None:
            index = self._word[text] = len(self.vocabulary)
            self.vocabulary.append(text)
        return index

    def add_simulation(self, words: Sequence[int], nodes: Sequence[int], **row: Any) -> int:
        """Write one simulation and give its index, counted from 0.

        ``row`` has the columns of ``self.row`` but the two ends, which are added here.
        """
        self.action.extend({"word": np.asarray(words, np.int32)})
        self.passed.extend({"node": np.asarray(nodes, np.int32)})
        return self.row.append(action_end=self.action.n, node_end=self.passed.n, **row)

    def add_node(self, parent: int, action: str, depth: int, key: int) -> int:
        """Write one node of the tree and give its index."""
        return self.node.append(
            parent=parent,
            word=self.word(action) if depth else -1,
            depth=depth,
            key=key,
            best_score=np.inf,
            score=np.nan,
        )

    # -- keeping ----------------------------------------------------------------------------------
    def copy(self) -> Trace:
        """An independent copy."""
        copied = Trace(self.vocabulary)
        for table, columns in self.columns.items():
            copied.columns[table].extend({name: columns[name] for name in columns.array})
        copied.about, copied.best_actions = dict(self.about), self.best_actions
        copied.best_sharding = self.best_sharding
        copied.told = list(self.told)
        return copied
