"""Where the simulations of a trace went, as a tree that can be counted as of any simulation.

Nodes of a trace are states, and a state may be reached in several orders of the same actions.  A
place is a state together with the way that led there, so that places form a tree: every node has
its home, the place below the home of its parent, and a walk that came another way gets a place of
its own.  Each simulation ends in one place; what is known of a place is a sum over the simulations
that ended in it or below it.  ``Places`` follows a trace while it grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.search.confidence import DEFAULTS, rewards
from toast_lab.search.trace import Trace
from toast_lab.search.trace_columns import Columns


class Tally(NamedTuple):
    """What ``n`` simulations say of each place; arrays over the [P] places."""

    n: int
    visits: np.ndarray  #: int64, simulations that ended in the place or below it
    ended: np.ndarray  #: int64, those that ended in the place itself
    mean_score: np.ndarray  #: mean C(s) of the visits; NaN where there is none
    best_score: np.ndarray  #: lowest C(s) of the visits; inf where there is none
    #: mean reward (see ``confidence``) of the visits; NaN where there is none
    mean_reward: np.ndarray
    best_reward: np.ndarray  #: highest reward of the visits; -inf where there is none


class Actions(NamedTuple):
    """What is known of single actions anywhere; arrays over the words of a vocabulary."""

    visits: np.ndarray  #: int64, simulations that took the action
    mean_score: np.ndarray  #: mean C(s) of these; NaN where there is none
    mean_reward: np.ndarray  #: mean reward of these; NaN where there is none


class Places:
    """The places of a trace.

    Attributes:
        place: columns ``parent`` (-1 for the root), ``node`` and ``word`` of the trace, and
            ``depth``.
        end: column ``place`` where each simulation ended.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.place = Columns(parent="i4", node="i4", word="i4", depth="i4")
        self.end = Columns(place="i4")
        self.home = Columns(place="i4")
        # Sorted (parent place, node) of the places that are no homes
        self._keys = np.zeros(0, np.int64)
        self._at = np.zeros(0, np.int32)

    def extend(self) -> None:
        """Take in what the trace has had since the last call."""
        self._homes()
        trace, first = self.trace, self.end.n
        ends = trace.row["node_end"][first:]
        if not len(ends):
            return
        begins = np.concatenate([[trace.row["node_end"][first - 1] if first else 0], ends[:-1]])
        length = ends - begins
        passed, home, parent = trace.passed["node"], self.home["place"], trace.node["parent"]
        current = np.zeros(len(ends), np.int64)
        some = length > 0  # a simulation that names no node is the root's
        current[some] = home[passed[begins[some]]]
        for depth in range(1, int(length.max(initial=0))):
            walks = np.flatnonzero(length > depth)
            nodes = passed[begins[walks] + depth].astype(np.int64)
            to = home[nodes].astype(np.int64)
            away = np.flatnonzero(self.place["parent"][to] != current[walks])
            if len(away):
                came = passed[begins[walks[away]] + depth - 1]
                words = np.where(parent[nodes[away]] == came, trace.node["word"][nodes[away]], -1)
                to[away] = self._other(
                    current[walks[away]], nodes[away], words, first + walks[away]
                )
            current[walks] = to
        self.end.extend({"place": current.astype(np.int32)})

    def tally(
        self, row_count: int | None = None, length_penalty: float = DEFAULTS.length_penalty
    ) -> Tally:
        """Count the first ``row_count`` simulations, all by default.

        Rewards are less by ``length_penalty`` for every action.
        """
        end = self.end["place"][:row_count]
        reward = rewards(self.trace, len(end), length_penalty)
        score, size = self.trace.row["score"][: len(end)], self.place.n
        ended = np.bincount(end, minlength=size)
        visits, total = ended.copy(), np.bincount(end, score, minlength=size)
        best = np.full(size, np.inf)
        np.minimum.at(best, end, score)
        gained, top = np.bincount(end, reward, minlength=size), np.full(size, -np.inf)
        np.maximum.at(top, end, reward)
        depth, parent = self.place["depth"], self.place["parent"]
        order = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
        for d in range(len(bounds) - 2, -1, -1):  # from the deepest level up
            level = order[bounds[d] : bounds[d + 1]]
            above = parent[level]
            np.add.at(visits, above, visits[level])
            np.add.at(total, above, total[level])
            np.minimum.at(best, above, best[level])
            np.add.at(gained, above, gained[level])
            np.maximum.at(top, above, top[level])
        with np.errstate(invalid="ignore"):
            return Tally(
                n=len(end),
                visits=visits,
                ended=ended,
                mean_score=total / visits,
                best_score=best,
                mean_reward=gained / visits,
                best_reward=top,
            )

    def actions(
        self, row_count: int | None = None, length_penalty: float = DEFAULTS.length_penalty
    ) -> Actions:
        """What the first ``row_count`` simulations say of each action, wherever it was taken."""
        row, words = self.trace.row, len(self.trace.vocabulary)
        ends = row["action_end"][:row_count]
        took = self.trace.action["word"][: ends[-1] if len(ends) else 0]
        length = np.diff(ends, prepend=0)
        score = np.repeat(row["score"][: len(ends)], length)
        reward = np.repeat(rewards(self.trace, len(ends), length_penalty), length)
        visits = np.bincount(took, minlength=words)
        with np.errstate(invalid="ignore"):
            sums = (np.bincount(took, weights, minlength=words) for weights in (score, reward))
            return Actions(visits, *(total / visits for total in sums))

    # -- one place --------------------------------------------------------------------------------
    def children(self, place: int, tally: Tally) -> np.ndarray:
        """The places below ``place`` that had visits, the most visited first."""
        below = np.flatnonzero(self.place["parent"][: len(tally.visits)] == place)
        below = below[tally.visits[below] > 0]
        return below[np.argsort(-tally.visits[below], kind="stable")]

    def chain(self, place: int) -> list[int]:
        """The way from the root to ``place``, both included."""
        way = [place]
        while way[-1]:
            way.append(int(self.place["parent"][way[-1]]))
        return way[::-1]

    def label(self, place: int) -> str:
        """The action that led here."""
        word = int(self.place["word"][place])
        if not place:
            return "unsharded"
        return self.trace.vocabulary[word] if word >= 0 else "?"

    def plan(self, place: int) -> tuple[str, ...]:
        """Actions of the plan so far.

        A method that takes several actions at a time names them in one label; then they are those
        of the first simulation that ended here.
        """
        labels = tuple(self.label(passed) for passed in self.chain(place)[1:])
        ended = np.flatnonzero(self.end["place"] == place)
        if not place or not len(ended):
            return labels
        took = self.trace.simulation(int(ended[0])).actions
        return labels if took[: len(labels)] == labels else took

    # -- inside -----------------------------------------------------------------------------------
    def _homes(self) -> None:
        """Give every new node of the trace its place."""
        node, first = self.trace.node, self.home.n
        if node.n == first:
            return
        parent, base = node["parent"][first:].astype(np.int64), self.place.n
        self.home.extend({"place": np.arange(base, base + len(parent), dtype=np.int32)})
        above = np.where(parent >= 0, self.home["place"][parent], -1)
        self.place.extend(
            {
                "parent": above.astype(np.int32),
                "node": np.arange(first, node.n),
                "word": node["word"][first:],
                "depth": np.where(above < 0, 0, -1),
            }
        )
        depth = self.place["depth"]
        waiting = base + np.flatnonzero(above >= 0)
        while len(waiting):  # parents stand before their children, if perhaps among the new ones
            over = depth[self.place["parent"][waiting]]
            depth[waiting] = np.where(over >= 0, over + 1, -1)
            waiting = waiting[over < 0]

    def _other(
        self, above: np.ndarray, nodes: np.ndarray, words: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Places of ``nodes`` below ``above`` that are not their homes; new ones are made.

        ``words`` is -1 where the node is known by another action; ``rows`` are simulations that
        tell the right one.
        """
        keys, first, back = np.unique(above << 32 | nodes, return_index=True, return_inverse=True)
        at = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), bool)
        if len(self._keys):
            known = self._keys[np.minimum(at, len(self._keys) - 1)] == keys
        places = np.zeros(len(keys), np.int64)
        places[known] = self._at[at[known]]
        new = np.flatnonzero(~known)
        if len(new):
            places[new] = self.place.n + np.arange(len(new))
            parent, chosen = (keys[new] >> 32), first[new]
            depth = self.place["depth"][parent] + 1
            word = words[chosen]
            lost = np.flatnonzero(word < 0)
            word[lost] = self._word(rows[chosen[lost]], depth[lost] - 1, nodes[chosen[lost]])
            self.place.extend(
                {"parent": parent, "node": nodes[chosen], "word": word, "depth": depth}
            )
            self._keys = np.insert(self._keys, at[new], keys[new])
            self._at = np.insert(self._at, at[new], places[new].astype(np.int32))
        return places[back.reshape(-1)]

    def _word(self, rows: np.ndarray, step: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The actions that simulations ``rows`` took as their ``step``-th, or the node's name."""
        ends = self.trace.row["action_end"]
        begins = np.where(rows > 0, ends[rows - 1], 0)
        has = begins + step < ends[rows]
        words = self.trace.node["word"][nodes].copy()
        words[has] = self.trace.action["word"][(begins + step)[has]]
        return words
