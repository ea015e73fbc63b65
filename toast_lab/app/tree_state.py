"""A page's view of the tree of a search, free of any GUI.

It holds the simulation up to which the tree is shown, its root, and the selected place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from toast_lab.app.plan_facts import Lookup, PlanFacts, plan_facts
from toast_lab.cost.problem import Problem
from toast_lab.jobs.mirror import Mirror
from toast_lab.search.confidence import Steering, priors, upper_bounds
from toast_lab.search.trace import Simulation
from toast_lab.search.trace_places import Actions, Tally
from toast_lab.views.action_table import ActionRow
from toast_lab.views.icicle import LEVELS, IcicleScene, fold_label
from toast_lab.views.icicle_layout import icicle

COUNT_EVERY_S = 1.0  #: least time between two counts while a search runs
MAX_CHILDREN = 200
MAX_TRAJECTORIES = (
    50_000  #: trajectories, at most, from which the best ones of different price are taken
)


class TreePlace(NamedTuple):
    """Facts of the selected place."""

    label: str
    depth: int
    visits: int
    ended: int
    mean_score: float
    best_score: float
    plan: tuple[str, ...]
    prior: tuple[int, float] | None  #: visits and mean C(s) of its action wherever it was taken
    #: visits and mean reward as the method itself counted them; known after its end
    method_counts: tuple[int, float] | None


class TreeSource(Protocol):
    """The search whose tree is shown."""

    @property
    def mirror(self) -> Mirror | None:
        """Its trace, as far as it has arrived; None if there is no search."""

    @property
    def simulations(self) -> int:
        """How many of its simulations may be shown."""

    @property
    def problem(self) -> Problem | None:
        """The problem that it searches, for the price of a place."""

    @property
    def searched_with(self) -> Mapping[str, Any]:
        """Its method and options, as far as they are known."""


class TreeState:
    """One page's view of the tree of a search.

    Attributes:
        at: number of simulations to show; None: all.
        root: the place with which the picture begins.
        selected: the selected place.
        opened: places whose fold is open.
        tally: the last counts.
        counted: number of simulations that ``tally`` counts.
    """

    def __init__(self, source: TreeSource) -> None:
        self.source = source
        self._mirror: Mirror | None = None
        self._lookup = Lookup(plan_facts)
        self._forget()

    def _forget(self) -> None:
        self.at: int | None = None
        self.root = self.selected = 0
        self.opened: set[int] = set()
        self.tally: Tally | None = None
        self.actions: Actions | None = None
        self._counted_at, self.counted = 0.0, 0

    @property
    def mirror(self) -> Mirror | None:
        """The search's trace; a trace of another search resets the view."""
        before, now = self._mirror, self.source.mirror
        if now is not before:
            self._mirror = now
            # After colours were renamed it is the same trace in other words
            if before is None or now is None or now.trace.row is not before.trace.row:
                self._forget()
        return now

    @property
    def shown_count(self) -> int:
        """How many simulations can be shown: those that arrived, less what a step holds back."""
        mirror = self.mirror
        return 0 if mirror is None else min(mirror.n, self.source.simulations)

    @property
    def shown(self) -> int:
        """Number of simulations that are shown."""
        return self.shown_count if self.at is None else min(self.at, self.shown_count)

    def count(self, *, now: bool = False) -> bool:
        """Count again if another number is to be shown and the last count is long enough ago.

        Gives whether anything changed.
        """
        mirror, count = self.mirror, self.shown
        if mirror is None or not count or count == self.counted:
            return False
        # Counting takes milliseconds for 100,000 simulations; for more, it may take a tenth of the
        # time at most: the search needs the cores, too.
        if not now and time.monotonic() < self._counted_at:
            return False
        began = time.monotonic()
        with mirror.lock:
            mirror.places.extend()
            length_penalty = self.steering.length_penalty
            self.tally, self.actions = (
                mirror.places.tally(count, length_penalty),
                mirror.places.actions(count, length_penalty),
            )
        ended = time.monotonic()
        self.counted, self._counted_at = count, ended + max(COUNT_EVERY_S, 9 * (ended - began))
        if self.tally.visits[self.root] == 0:
            self.root = 0
        if self.tally.visits[self.selected] == 0:
            self.selected = 0
        return True

    def best(self) -> Simulation | None:
        """The best simulation of those that are shown."""
        return self.mirror.best(self.shown) if self.mirror is not None else None

    # -- pictures ----------------------------------------------------------------------------------
    def scene(self, kind: str = "best_score", widest: int = 8) -> IcicleScene | None:
        """The blocks to draw."""
        mirror, tally = self.mirror, self.tally
        if mirror is None or tally is None:
            return None
        with mirror.lock:
            places = mirror.places
            blocks = icicle(
                parent=places.place["parent"][: len(tally.visits)],
                visits=tally.visits,
                root=self.root,
                levels=LEVELS,
                widest=widest,
                opened=[place for place in self.opened if place < len(tally.visits)],
            )
            labels = [
                fold_label(count) if count else places.label(place)
                for place, count in zip(blocks.place.tolist(), blocks.folded.tolist(), strict=True)
            ]
        tint = np.where(blocks.folded > 0, np.nan, getattr(tally, kind)[blocks.place])
        return IcicleScene(
            blocks=blocks, labels=labels, tint=tint, selected=self.selected, kind=kind
        )

    @property
    def steering(self) -> Steering:
        """The weights of the tree search: those that it was given, else the defaults."""
        about = self.source.searched_with
        options = about.get("options", {}) if about.get("method") == "mcts" else {}
        return Steering(
            **{key: float(value) for key, value in options.items() if key in Steering._fields}
        )

    def action_rows(self, legal: tuple[str, ...] = ()) -> tuple[list[int], list[ActionRow]]:
        """The actions at the selected place, and the place that each leads to.

        The place is -1 for actions of ``legal`` that were not tried.

        The scores apply the tree search's formula to the counts here: they are means over the
        warmths of the reward that its walks take in turn. Trajectories that vary the best ones do
        not walk the tree, and count at the root alone.
        """
        mirror, tally, actions = self.mirror, self.tally, self.actions
        if mirror is None or tally is None or actions is None:
            return [], []
        with mirror.lock:
            children = mirror.places.children(self.selected, tally)[:MAX_CHILDREN]
            word_ids = mirror.places.place["word"][children]
            labels = [mirror.places.label(int(place)) for place in children]
            tried = set(labels)
            untried = [action for action in legal if action not in tried][
                : MAX_CHILDREN - len(children)
            ]
            word_by_action = {
                action_text: word
                for word, action_text in enumerate(mirror.trace.vocabulary[: len(actions.visits)])
            }
        prior = priors(actions.mean_reward)
        word_of = [
            int(word) if 0 <= word < len(prior) else word_by_action.get(label, -1)
            for word, label in zip(word_ids, labels, strict=True)
        ]
        word_of += [word_by_action.get(action, -1) for action in untried]
        word_priors = np.array([prior[word] if word >= 0 else 1.0 for word in word_of])
        zeros = np.zeros(len(untried))
        visits = np.concatenate([tally.visits[children], zeros])
        mean, top = (
            np.concatenate([column[children], zeros])
            for column in (tally.mean_reward, tally.best_reward)
        )
        scores = upper_bounds(
            visits=visits,
            mean_reward=mean,
            best_reward=top,
            prior=word_priors,
            top=float(tally.best_reward[0]),
            steering=self.steering,
        )
        nans = zeros * np.nan
        scores_mean, best = (
            np.concatenate([column[children], nans])
            for column in (tally.mean_score, tally.best_score)
        )
        parent_visits = max(int(tally.visits[self.selected]), 1)
        rows = [
            ActionRow(action, int(count), count / parent_visits, *map(float, numbers))
            for action, count, *numbers in zip(
                [*labels, *untried],
                visits.tolist(),
                scores_mean,
                best,
                word_priors,
                scores,
                strict=True,
            )
        ]
        return [*children.tolist(), *[-1] * len(untried)], rows

    def place(self) -> TreePlace | None:
        """Facts of the selected place."""
        mirror, tally, place = self.mirror, self.tally, self.selected
        if mirror is None or tally is None or self.actions is None:
            return None
        with mirror.lock:
            places = mirror.places
            word, node = int(places.place["word"][place]), int(places.place["node"][place])
            plan, label = places.plan(place), places.label(place)
            own_counts = mirror.method_columns
        taken_elsewhere = (
            place and 0 <= word < len(self.actions.visits) and self.actions.visits[word] > 0
        )
        return TreePlace(
            label=label,
            depth=int(places.place["depth"][place]),
            visits=int(tally.visits[place]),
            ended=int(tally.ended[place]),
            mean_score=float(tally.mean_score[place]),
            best_score=float(tally.best_score[place]),
            plan=plan,
            prior=(int(self.actions.visits[word]), float(self.actions.mean_score[word]))
            if taken_elsewhere
            else None,
            method_counts=(int(own_counts["visits"][node]), float(own_counts["value"][node]))
            if self.at is None
            and own_counts
            and node < len(own_counts["visits"])
            and own_counts["visits"][node] > 0
            else None,
        )

    # -- moving about ------------------------------------------------------------------------------
    def tap(self, scene: IcicleScene, block: int) -> None:
        """Select a block, or unfold a fold.

        A block that is already selected becomes the root; if it is the root, its parent does.
        """
        place = int(scene.blocks.place[block])
        if scene.blocks.folded[block]:
            self.opened.add(place)
        elif place != self.selected:
            self.selected = place
        elif place == self.root:
            self.up()
        else:
            self.root = place

    def zoom(self) -> None:
        """Make the selected place the root of the picture."""
        self.root = self.selected

    def up(self) -> None:
        """Move the root one level up."""
        if self.root and self.mirror is not None:
            self.root = int(self.mirror.places.place["parent"][self.root])

    def top(self) -> None:
        """Show all of the tree, folded again."""
        self.root = 0
        self.opened = set()

    # -- trajectories ------------------------------------------------------------------------------
    def trajectories(self, kind: str, most: int = 100) -> list[Simulation]:
        """The "improvements", the "last" or the "best" of the simulations that are shown.

        The best or newest come first.
        """
        mirror, count = self.mirror, self.shown
        if mirror is None or not count:
            return []
        with mirror.lock:
            row = mirror.trace.row
            if kind == "last":
                rows = np.arange(count - 1, max(count - 1 - most, -1), -1)
            elif kind == "improvements":
                rows = np.flatnonzero(row["best"][:count] == np.arange(count))[::-1][:most]
            else:
                rows = best_rows(row["score"][:count], row["fits"][:count], most)
            return [mirror.trace.simulation(int(i)) for i in rows]

    def show_trajectory(self, index: int) -> None:
        """Select the place where simulation ``index``, counted from 1, ended."""
        mirror = self.mirror
        if mirror is not None and 0 < index <= mirror.n:
            self.count(now=True)
            with mirror.lock:
                mirror.places.extend()
                self.selected = int(mirror.places.end["place"][index - 1])
            self.root = 0

    def facts(self, plan: tuple[str, ...]) -> PlanFacts | None:
        """Prices of a plan and what could follow; None while a thread works them out."""
        problem = self.source.problem
        return None if problem is None else self._lookup.get(problem, plan)


def best_rows(score: np.ndarray, fits: np.ndarray, most: int) -> np.ndarray:
    """Rows of the ``most`` best plans of different price.

    Those that fit come first, then the lower score, then the earlier.

    >>> best_rows(np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, False, True, True]), 9)
    array([2, 0, 1])
    """
    rank = np.where(fits, score, score + 1e12)
    rows = np.arange(len(rank))
    if len(rank) > MAX_TRAJECTORIES:  # sorting a million takes a tenth of a second
        rows = np.sort(np.argpartition(rank, MAX_TRAJECTORIES)[:MAX_TRAJECTORIES])
    _, first_rows = np.unique(rank[rows], return_index=True)
    best: np.ndarray = rows[first_rows[:most]]
    return best
