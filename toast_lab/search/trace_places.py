"""The paths of a trace's simulations as a tree, with counts after any number of simulations.

The nodes of a trace are states, and different orders of the same actions may reach one state. A
place is a state together with the path that led to it, so that places form a tree. Every node has a
home, the place below the home of its parent; a walk that reaches the node by another path gets a
place of its own. Each simulation ends in one place, and the numbers of a place are totals over the
simulations that ended in it or below it. ``Places`` follows a trace while it grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.search.confidence import DEFAULTS, rewards
from toast_lab.search.trace import Trace
from toast_lab.search.trace_columns import Columns


class Tally(NamedTuple):
    """Statistics of each place over the first ``n`` simulations; arrays over the [P] places."""

    n: int
    visits: np.ndarray  #: int64, simulations that ended in the place or below it
    ended: np.ndarray  #: int64, simulations that ended in the place itself
    mean_score: np.ndarray  #: mean C(s) of the visits; NaN where there are none
    best_score: np.ndarray  #: lowest C(s) of the visits; inf where there are none
    #: mean reward (see ``confidence``) of the visits; NaN where there are none
    mean_reward: np.ndarray
    best_reward: np.ndarray  #: highest reward of the visits; -inf where there are none


class Actions(NamedTuple):
    """Statistics of each action over all places; arrays over the words of a vocabulary."""

    visits: np.ndarray  #: int64, simulations that took the action
    mean_score: np.ndarray  #: mean C(s) of the visits; NaN where there are none
    mean_reward: np.ndarray  #: mean reward of the visits; NaN where there are none


class Places:
    """The places of a trace.

    Attributes:
        place: a row for each place: ``parent`` (-1 for the root), ``node`` and ``word`` of the
            trace, and ``depth``.
        end: a row for each simulation: the ``place`` in which it ended.
        home: a row for each node of the trace: the ``place`` that is its home.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.place = Columns(parent="i4", node="i4", word="i4", depth="i4")
        self.end = Columns(place="i4")
        self.home = Columns(place="i4")
        # Keys, (parent place, node) in one number, of the places that are no homes, sorted
        self._keys = np.zeros(0, np.int64)
        self._at = np.zeros(0, np.int32)

    def extend(self) -> None:
        """Add the nodes and simulations that the trace has gained since the last call."""
        self._add_homes()
        trace, first_row = self.trace, self.end.n
        ends = trace.row["node_end"][first_row:]
        if not len(ends):
            return
        begins = np.concatenate(
            [[trace.row["node_end"][first_row - 1] if first_row else 0], ends[:-1]]
        )
        length = ends - begins
        passed, home, parent = trace.passed["node"], self.home["place"], trace.node["parent"]
        current = np.zeros(len(ends), np.int64)
        has_nodes = length > 0  # a simulation without nodes ended in the root
        current[has_nodes] = home[passed[begins[has_nodes]]]
        for depth in range(1, int(length.max(initial=0))):
            walks = np.flatnonzero(length > depth)
            nodes = passed[begins[walks] + depth].astype(np.int64)
            next_places = home[nodes].astype(np.int64)
            diverted = np.flatnonzero(self.place["parent"][next_places] != current[walks])
            if len(diverted):
                came_from = passed[begins[walks[diverted]] + depth - 1]
                words = np.where(
                    parent[nodes[diverted]] == came_from, trace.node["word"][nodes[diverted]], -1
                )
                next_places[diverted] = self._places_off_home(
                    current[walks[diverted]], nodes[diverted], words, first_row + walks[diverted]
                )
            current[walks] = next_places
        self.end.extend({"place": current.astype(np.int32)})

    def tally(
        self, row_count: int | None = None, length_penalty: float = DEFAULTS.length_penalty
    ) -> Tally:
        """Count the first ``row_count`` simulations, all by default.

        Rewards are lowered by ``length_penalty`` for every action.
        """
        end = self.end["place"][:row_count]
        reward = rewards(self.trace, len(end), length_penalty)
        score, size = self.trace.row["score"][: len(end)], self.place.n
        ended = np.bincount(end, minlength=size)
        visits, total_score = ended.copy(), np.bincount(end, score, minlength=size)
        best_score = np.full(size, np.inf)
        np.minimum.at(best_score, end, score)
        total_reward, best_reward = np.bincount(end, reward, minlength=size), np.full(size, -np.inf)
        np.maximum.at(best_reward, end, reward)
        depth, parent = self.place["depth"], self.place["parent"]
        order = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
        for level_depth in range(len(bounds) - 2, -1, -1):  # from the deepest level up
            level = order[bounds[level_depth] : bounds[level_depth + 1]]
            parents = parent[level]
            np.add.at(visits, parents, visits[level])
            np.add.at(total_score, parents, total_score[level])
            np.minimum.at(best_score, parents, best_score[level])
            np.add.at(total_reward, parents, total_reward[level])
            np.maximum.at(best_reward, parents, best_reward[level])
        with np.errstate(invalid="ignore"):
            return Tally(
                n=len(end),
                visits=visits,
                ended=ended,
                mean_score=total_score / visits,
                best_score=best_score,
                mean_reward=total_reward / visits,
                best_reward=best_reward,
            )

    def actions(
        self, row_count: int | None = None, length_penalty: float = DEFAULTS.length_penalty
    ) -> Actions:
        """Statistics of each action, wherever taken, over the first ``row_count`` simulations."""
        row, words = self.trace.row, len(self.trace.vocabulary)
        ends = row["action_end"][:row_count]
        taken_words = self.trace.action["word"][: ends[-1] if len(ends) else 0]
        length = np.diff(ends, prepend=0)
        score = np.repeat(row["score"][: len(ends)], length)
        reward = np.repeat(rewards(self.trace, len(ends), length_penalty), length)
        visits = np.bincount(taken_words, minlength=words)
        with np.errstate(invalid="ignore"):
            sums = (
                np.bincount(taken_words, weights, minlength=words) for weights in (score, reward)
            )
            return Actions(visits, *(total / visits for total in sums))

    # -- one place --------------------------------------------------------------------------------
    def children(self, place: int, tally: Tally) -> np.ndarray:
        """The visited places directly below ``place``, the most visited first."""
        places = np.flatnonzero(self.place["parent"][: len(tally.visits)] == place)
        places = places[tally.visits[places] > 0]
        return places[np.argsort(-tally.visits[places], kind="stable")]

    def chain(self, place: int) -> list[int]:
        """The path from the root to ``place``, both included."""
        path = [place]
        while path[-1]:
            path.append(int(self.place["parent"][path[-1]]))
        return path[::-1]

    def label(self, place: int) -> str:
        """The last action on the path to ``place``; "unsharded" for the root."""
        word = int(self.place["word"][place])
        if not place:
            return "unsharded"
        return self.trace.vocabulary[word] if word >= 0 else "?"

    def plan(self, place: int) -> tuple[str, ...]:
        """The actions on the path to ``place``.

        A method that takes several actions at a time names them in one label. The actions are then
        those of the first simulation that ended in ``place``.
        """
        labels = tuple(self.label(passed) for passed in self.chain(place)[1:])
        ended = np.flatnonzero(self.end["place"] == place)
        if not place or not len(ended):
            return labels
        actions = self.trace.simulation(int(ended[0])).actions
        return labels if actions[: len(labels)] == labels else actions

    # -- building ---------------------------------------------------------------------------------
    def _add_homes(self) -> None:
        """Give every new node of the trace its place."""
        node, first_node = self.trace.node, self.home.n
        if node.n == first_node:
            return
        parent, first_place = node["parent"][first_node:].astype(np.int64), self.place.n
        self.home.extend(
            {"place": np.arange(first_place, first_place + len(parent), dtype=np.int32)}
        )
        home_of_parent = np.where(parent >= 0, self.home["place"][parent], -1)
        self.place.extend(
            {
                "parent": home_of_parent.astype(np.int32),
                "node": np.arange(first_node, node.n),
                "word": node["word"][first_node:],
                "depth": np.where(home_of_parent < 0, 0, -1),
            }
        )
        depth = self.place["depth"]
        waiting = first_place + np.flatnonzero(home_of_parent >= 0)
        while len(waiting):  # parents come before their children, but may be new as well
            parent_depth = depth[self.place["parent"][waiting]]
            depth[waiting] = np.where(parent_depth >= 0, parent_depth + 1, -1)
            waiting = waiting[parent_depth < 0]

    def _places_off_home(
        self, above: np.ndarray, nodes: np.ndarray, words: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """The places of ``nodes`` below ``above`` that are not their homes; missing ones are added.

        Args:
            above: the parent place of each.
            nodes: the nodes of the trace.
            words: the last action to each; -1 where the trace knows the node by another action.
            rows: for each a simulation that came this way, from which that action is read.
        """
        keys, first, inverse = np.unique(
            above << 32 | nodes, return_index=True, return_inverse=True
        )
        at = np.searchsorted(self._keys, keys)
        is_known = np.zeros(len(keys), bool)
        if len(self._keys):
            is_known = self._keys[np.minimum(at, len(self._keys) - 1)] == keys
        places = np.zeros(len(keys), np.int64)
        places[is_known] = self._at[at[is_known]]
        new = np.flatnonzero(~is_known)
        if len(new):
            places[new] = self.place.n + np.arange(len(new))
            parent, first_use = (keys[new] >> 32), first[new]
            depth = self.place["depth"][parent] + 1
            word = words[first_use]
            unknown = np.flatnonzero(word < 0)
            word[unknown] = self._word(
                rows[first_use[unknown]], depth[unknown] - 1, nodes[first_use[unknown]]
            )
            self.place.extend(
                {"parent": parent, "node": nodes[first_use], "word": word, "depth": depth}
            )
            self._keys = np.insert(self._keys, at[new], keys[new])
            self._at = np.insert(self._at, at[new], places[new].astype(np.int32))
        return places[inverse.reshape(-1)]

    def _word(self, rows: np.ndarray, step: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Words of the ``step``-th actions of simulations ``rows``, or the nodes' own if fewer."""
        ends = self.trace.row["action_end"]
        begins = np.where(rows > 0, ends[rows - 1], 0)
        has_action = begins + step < ends[rows]
        words = self.trace.node["word"][nodes].copy()
        words[has_action] = self.trace.action["word"][(begins + step)[has_action]]
        return words
