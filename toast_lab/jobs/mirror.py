"""A copy of the trace of a search in a child process, kept up to date on the page's side.

A few times a second the child sends the new rows of its trace's columns; ``Mirror`` appends them to
a trace of its own, which belongs to the job: all pages that watch the job share it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.search.search_child import BestPlan
from toast_lab.search.trace import Simulation, Simulations, Trace
from toast_lab.search.trace_places import Places

SEND_EVERY_S = 0.25
METHOD_COLUMNS = (
    "visits",
    "value",
    "score",
)  #: columns of the nodes that the method itself fills in
#: simulations that are mirrored, some 150 MB; later ones appear in the curves only
MAX_SIMULATIONS = 1_000_000


class Chunk(NamedTuple):
    """The rows that a trace gained since the last chunk, as columns.

    ``method_columns`` has the columns ``METHOD_COLUMNS`` as a whole; it is empty in all chunks but
    the last.
    """

    row: dict[str, np.ndarray]
    action: dict[str, np.ndarray]
    passed: dict[str, np.ndarray]
    node: dict[str, np.ndarray]
    words: list[str]
    method_columns: dict[str, np.ndarray]


class Sender:
    """The child's side."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self._sent = (0, 0, 0, 0, 0)
        self._at = -SEND_EVERY_S

    def report(self, simulations: Sequence[Simulation], *, now: bool = False) -> None:
        """Send the new rows, if ``now`` or ``SEND_EVERY_S`` seconds after the last time."""
        if isinstance(simulations, Simulations) and (
            now or time.monotonic() - self._at >= SEND_EVERY_S
        ):
            self._at = time.monotonic()
            self.send_trace(simulations.trace)

    def send_trace(self, trace: Trace, *, last: bool = False) -> None:
        """Send the new rows; the ``last`` time with the columns ``METHOD_COLUMNS`` of all nodes."""
        row, action, passed, node, word_count = self._sent
        until = min(trace.row.n, MAX_SIMULATIONS)
        if until == row and not last:
            return
        ends = [
            int(trace.row.array[column][until - 1]) if until else 0
            for column in ("action_end", "node_end")
        ]
        n_nodes = trace.node.n if until == trace.row.n or until > row else node
        self._sent = (until, ends[0], ends[1], n_nodes, len(trace.vocabulary))
        self.send(
            Chunk(
                row=_cut(trace.row, trace.row.array, row, until),
                action=_cut(trace.action, ("word",), action, ends[0]),
                passed=_cut(trace.passed, ("node",), passed, ends[1]),
                node=_cut(trace.node, ("parent", "word", "depth"), node, n_nodes),
                words=trace.vocabulary[word_count:],
                method_columns=_cut(trace.node, METHOD_COLUMNS if last else (), 0, n_nodes),
            )
        )


def _cut(table: Any, columns: Iterable[str], begin: int, end: int) -> dict[str, np.ndarray]:
    """Copies of rows ``begin`` to ``end`` of some columns of a trace's table."""
    return {column: table[column][begin:end].copy() for column in columns}


class Mirror:
    """The page's side: ``trace`` and its ``places``; hold ``lock`` while reading them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.trace = Trace()
        self.places = Places(self.trace)
        self.method_columns: dict[str, np.ndarray] = {}
        self.best_plan: BestPlan | None = None  #: the last best plan that no actions lead to

    def take(self, event: Any) -> bool:
        """Store a chunk or a plan; gives False if the event is neither."""
        if isinstance(event, BestPlan):
            self.best_plan = event
            return True
        if not isinstance(event, Chunk):
            return False
        with self.lock:
            for word in event.words:
                self.trace.word(word)
            for table_name in ("action", "passed", "node", "row"):
                columns = getattr(event, table_name)
                if len(next(iter(columns.values()))):
                    getattr(self.trace, table_name).extend(columns)
            self.method_columns.update(event.method_columns)
        return True

    def reworded(self, change: Callable[[str], str]) -> Mirror:
        """The same mirror, which stays up to date, with the text of every action changed."""
        twin = copy.copy(self)
        twin.trace = self.trace.reworded(change)
        twin.places = Places(twin.trace)
        with self.lock:
            twin.places.extend()
        return twin

    @property
    def n(self) -> int:
        """Simulations that have arrived."""
        return self.trace.row.n

    def best(self, count: int) -> Simulation | None:
        """The best of the first ``count`` simulations by the search's score; None without any."""
        with self.lock:
            count = min(count, self.n)
            return self.trace.simulation(int(self.trace.row["best"][count - 1])) if count else None
