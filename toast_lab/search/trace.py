"""What a search did: every trajectory in order and the states it knows, in columns that grow.

A search on all cores makes tens of thousands of trajectories a second, so the trace keeps numbers
in flat arrays and makes a ``Simulation`` or a ``TraceNode`` only when somebody looks at one.
Actions are written as numbers into a vocabulary of texts.  A trace is saved as one file (numpy's
``.npz``), with the best plan and whatever the method needs to go on, so that it can be looked at,
replayed on a problem, or resumed.

Start reading at ``Trace``.  Reference: TOAST section 4.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.files import whole_file
from toast_lab.search import trace_check, trace_file
from toast_lab.search.trace_columns import TraceColumns

FORMAT = 1
PARTS = ("row", "action", "passed", "node")  #: columns of a trace
AGAIN = "give another copy of the file, or search again and save the trace anew"


class Simulation(NamedTuple):
    """One trajectory: actions taken from the unsharded program, and the price of its end."""

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

    States reached twice are one node.
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


class Simulations(Sequence[Simulation]):
    """The simulations of a trace, decoded as they are asked for."""

    def __init__(self, trace: Trace, begin: int, end: int) -> None:
        self._trace, self._range = trace, range(begin, end)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Simulation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Simulation]: ...
    def __getitem__(self, index: int | slice) -> Simulation | list[Simulation]:
        if isinstance(index, slice):
            return [self._trace.simulation(i) for i in self._range[index]]
        return self._trace.simulation(self._range[index])

    def __iter__(self) -> Iterator[Simulation]:
        return map(self._trace.simulation, self._range)

    @property
    def trace(self) -> Trace:
        """The trace that they are of."""
        return self._trace

    def sample(self, every: int) -> list[Simulation]:
        """Every ``every``-th, the last one, and every improvement; the others are not decoded."""
        rows = np.arange(self._range.start, self._range.stop)
        wanted = self._trace.row["best"][rows] == rows
        wanted[::every] = True
        wanted[-1:] = True
        return [self._trace.simulation(int(i)) for i in rows[wanted]]


class Nodes(Sequence[TraceNode]):
    """The nodes of a trace, decoded as they are asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return self._trace.node.n

    @overload
    def __getitem__(self, index: int) -> TraceNode: ...
    @overload
    def __getitem__(self, index: slice) -> list[TraceNode]: ...
    def __getitem__(self, index: int | slice) -> TraceNode | list[TraceNode]:
        if isinstance(index, slice):
            return [self._trace.node_at(i) for i in range(len(self))[index]]
        return self._trace.node_at(range(len(self))[index])

    def __iter__(self) -> Iterator[TraceNode]:
        return map(self._trace.node_at, range(len(self)))


class Trace(TraceColumns):
    """Everything a search did.

    Attributes:
        simulations: every trajectory in order, a sequence of ``Simulation``.
        nodes: every state of the search tree, a sequence of ``TraceNode``; the root first.
        about: what was searched (program digest, mesh, machine, limit), by which method, seed and
            options.
        best_op_factor, best_value_dim: arrays of the best plan, as in ``ShardingPlan``; while the
            search goes on, None where its actions alone give it.
        best_actions: its actions as text.
        memory: what the method needs to go on, by name.
    """

    def __init__(self, vocabulary: Iterable[str] = ()) -> None:
        super().__init__(vocabulary)
        self.about: dict[str, Any] = {}
        self.best_op_factor: np.ndarray | None = None
        self.best_value_dim: np.ndarray | None = None
        self.best_actions: tuple[str, ...] = ()
        self.memory: dict[str, np.ndarray] = {}

    @property
    def simulations(self) -> Simulations:
        """Every trajectory in order."""
        return Simulations(self, 0, self.row.n)

    @property
    def nodes(self) -> Nodes:
        """Every state of the tree, the root first."""
        return Nodes(self)

    def since(self, begin: int) -> Simulations:
        """The simulations from number ``begin`` on, counted from 0, as the trace is now."""
        return Simulations(self, begin, self.row.n)

    def improvements(self) -> list[Simulation]:
        """The simulations that found something better, in order: the anytime curve."""
        return [
            self.simulation(int(i))
            for i in np.flatnonzero(self.row["best"] == np.arange(self.row.n))
        ]

    # -- decoding ---------------------------------------------------------------------------------
    def simulation(self, index: int) -> Simulation:
        """Simulation number ``index``, counted from 0."""
        row = self.row.array
        best = int(row["best"][index])
        words = self.action.array["word"][
            self._begin("action_end", index) : row["action_end"][index]
        ]
        nodes = self.passed.array["node"][self._begin("node_end", index) : row["node_end"][index]]
        return Simulation(
            index=index + 1,
            round=int(row["round"][index]),
            elapsed_s=float(row["elapsed_s"][index]),
            actions=tuple(self.vocabulary[word] for word in words),
            nodes=tuple(nodes.tolist()),
            score=float(row["score"][index]),
            time_s=float(row["time_s"][index]),
            peak_bytes=float(row["peak_bytes"][index]),
            fits=bool(row["fits"][index]),
            best_score=float(row["score"][best]),
            best_time_s=float(row["time_s"][best]),
            best_peak_bytes=float(row["peak_bytes"][best]),
            improved=best == index,
        )

    def node_at(self, index: int) -> TraceNode:
        """Node number ``index``."""
        columns = self.node.array
        score = float(columns["score"][index])
        return TraceNode(
            id=index,
            parent=int(columns["parent"][index]),
            action=self.vocabulary[columns["word"][index]] if index else "",
            depth=int(columns["depth"][index]),
            key=int(columns["key"][index]),
            visits=int(columns["visits"][index]),
            value=float(columns["value"][index]),
            best_score=float(columns["best_score"][index]),
            score=None if np.isnan(score) else score,
        )

    def _begin(self, column: str, index: int) -> int:
        return int(self.row.array[column][index - 1]) if index else 0

    # -- writing ----------------------------------------------------------------------------------
    def add_simulation(self, words: Sequence[int], nodes: Sequence[int], **row: Any) -> int:
        """Write one simulation; gives its number, counted from 0.

        ``row`` has the columns of ``self.row``.
        """
        self.action.extend({"word": np.asarray(words, np.int32)})
        self.passed.extend({"node": np.asarray(nodes, np.int32)})
        return self.row.append(action_end=self.action.n, node_end=self.passed.n, **row)

    def add_node(self, parent: int, action: str, depth: int, key: int) -> int:
        """Write one node of the tree; gives its number."""
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
        new = Trace(self.vocabulary)
        for part in PARTS:
            getattr(new, part).extend(
                {name: getattr(self, part)[name] for name in getattr(self, part).array}
            )
        new.about, new.best_actions = dict(self.about), self.best_actions
        new.best_op_factor, new.best_value_dim = self.best_op_factor, self.best_value_dim
        new.memory = {name: array.copy() for name, array in self.memory.items()}
        return new

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as one ``.npz`` file, whole or not at all.

        Raises NotSaved if that cannot be.
        """
        columns = {"row": self.row, "action": self.action, "passed": self.passed, "node": self.node}
        arrays = {
            f"{part}.{name}": part_columns[name]
            for part, part_columns in columns.items()
            for name in part_columns.array
        }
        arrays |= {f"memory.{name}": array for name, array in self.memory.items()}
        if self.best_op_factor is not None and self.best_value_dim is not None:
            arrays |= {"best.op_axis": self.best_op_factor, "best.value_axis": self.best_value_dim}
        header: dict[str, Any] = {
            "format": FORMAT,
            "about": self.about,
            "vocabulary": self.vocabulary,
            "best_actions": self.best_actions,
        }
        header["checksum"] = trace_file.checksum(json.loads(json.dumps(header)), arrays)
        with whole_file(path, "the trace") as handle:
            packed = np.frombuffer(json.dumps(header).encode(), np.uint8)
            np.savez_compressed(handle, header=packed, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace back.

        Raises:
            InvalidProblem: the file is not a trace, is damaged, or has numbers that are out of
                range or point outside; all of them are listed.
        """
        try:
            header, arrays = trace_file.read(path)
        except (OSError, trace_file.Damaged) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidProblem(
                f"{path}: cannot read this search trace: {text}; {AGAIN}"
            ) from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise InvalidProblem(
                f"{path}: not a search trace of format {FORMAT}; search again and save it anew"
            )
        trace = cls()
        parts = {part: getattr(trace, part) for part in PARTS}
        expected = {
            f"{part}.{name}": array.dtype
            for part, part_columns in parts.items()
            for name, array in part_columns.array.items()
        }
        about = header.get("about")
        wrong = [] if isinstance(about, dict) else ["about must be an object"]
        wrong += trace_check.about_offenders(about) if isinstance(about, dict) else []
        wrong += trace_check.text_offenders(header.get("vocabulary"), header.get("best_actions"))
        wrong += trace_check.array_offenders(arrays, expected)
        if not wrong:
            for text in header["vocabulary"]:
                trace.word(text)
            trace.about, trace.best_actions = dict(header["about"]), tuple(header["best_actions"])
            for part, columns in parts.items():
                columns.extend({name: arrays[f"{part}.{name}"] for name in columns.array})
            trace.best_op_factor = arrays.get("best.op_axis")
            trace.best_value_dim = arrays.get("best.value_axis")
            trace.memory = {
                array_name.removeprefix("memory."): array
                for array_name, array in arrays.items()
                if array_name.startswith("memory.")
            }
            wrong += trace_check.offenders(trace)
        if wrong:
            raise InvalidProblem(f"{path}: damaged search trace; {AGAIN}:\n{join_offenders(wrong)}")
        return trace
