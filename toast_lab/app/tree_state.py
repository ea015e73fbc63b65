"""What a page looks at in the tree of a search: as of which simulation, from where, which place; free of any GUI."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from toast_lab.app.mirror import Mirror
from toast_lab.app.session import Session
from toast_lab.cost.problem import Cost, price
from toast_lab.errors import ToastError
from toast_lab.search.places import Actions, Tally
from toast_lab.search.trace import Simulation
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views.icicle import CHILDREN, LEVELS, Scene, children_frame, fold_label
from toast_lab.views.icicle_layout import icicle

EVERY_S = 0.4  #: at least, between two counts while a search runs
MAX_CHILDREN = 500
_PRICES = ThreadPoolExecutor(1, "price of a place")


class Place(NamedTuple):
    """What is known of the selected place."""

    label: str
    depth: int
    visits: int
    ended: int
    mean_score: float
    best_score: float
    plan: tuple[str, ...]
    prior: tuple[int, float] | None  #: visits and mean C(s) of its action wherever it was taken
    own: tuple[int, float] | None  #: visits and mean reward as the method itself counted, after its end


class TreeState:
    """One page's look at the tree of its session's search.

    Attributes:
        at: number of simulations to show; None: all that there are.
        root: the place that the picture begins with.
        selected: a place.
        opened: places whose fold is open.
        tally: what was counted last.
        counted: simulations that it is of.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._mirror: Mirror | None = None
        self._forget()

    def _forget(self) -> None:
        self.at: int | None = None
        self.root = self.selected = 0
        self.opened: set[int] = set()
        self.tally: Tally | None = None
        self.actions: Actions | None = None
        self._counted_at, self.counted = 0.0, 0
        self._price: tuple[tuple[str, ...], Future[Any]] | None = None

    @property
    def mirror(self) -> Mirror | None:
        """The search's trace; what is looked at is forgotten when it is another search's."""
        if self._mirror is not self.session.mirror:
            self._mirror = self.session.mirror
            self._forget()
        return self._mirror

    @property
    def there(self) -> int:
        """Simulations that can be shown: those that arrived, less what a step holds back."""
        mirror = self.mirror
        return 0 if mirror is None else min(mirror.n, self.session.simulations)

    @property
    def shown(self) -> int:
        """Simulations that are shown."""
        return self.there if self.at is None else min(self.at, self.there)

    def count(self, *, now: bool = False) -> bool:
        """Count anew if more is to be shown and the last time is long enough ago; did anything change?"""
        mirror, n = self.mirror, self.shown
        if mirror is None or not n or n == self.counted:
            return False
        # Counting takes milliseconds for 100,000 simulations; for more, it may take a fifth of the time at most.
        if not now and time.monotonic() < self._counted_at:
            return False
        began = time.monotonic()
        with mirror.lock:
            mirror.places.extend()
            self.tally, self.actions = mirror.places.tally(n), mirror.places.actions(n)
        ended = time.monotonic()
        self.counted, self._counted_at = n, ended + max(EVERY_S, 5 * (ended - began))
        if self.tally.visits[self.root] == 0:
            self.root = 0
        if self.tally.visits[self.selected] == 0:
            self.selected = 0
        return True

    def best(self) -> Simulation | None:
        """The best plan as of what is shown."""
        return self.mirror.best(self.shown) if self.mirror is not None else None

    # -- pictures -----------------------------------------------------------------------------------
    def scene(self, kind: str = "best_score", widest: int = 8) -> Scene | None:
        """The blocks to draw."""
        mirror, tally = self.mirror, self.tally
        if mirror is None or tally is None:
            return None
        with mirror.lock:
            places = mirror.places
            blocks = icicle(
                places.place["parent"][: len(tally.visits)], tally.visits, self.root, LEVELS, widest,
                opened=[p for p in self.opened if p < len(tally.visits)],
            )  # fmt: skip
            labels = [
                fold_label(n) if n else places.label(p)
                for p, n in zip(blocks.place.tolist(), blocks.folded.tolist(), strict=True)
            ]
        tint = np.where(blocks.folded > 0, np.nan, getattr(tally, kind)[blocks.place])
        return Scene(blocks, labels, tint, self.selected, kind)

    def children(self) -> tuple[list[int], Any]:
        """The places below the selected one, and their table."""
        mirror, tally = self.mirror, self.tally
        if mirror is None or tally is None:
            return [], children_frame([], [], 1, [], [])[list(CHILDREN)]
        with mirror.lock:
            found = mirror.places.children(self.selected, tally)[:MAX_CHILDREN]
            labels = [mirror.places.label(int(p)) for p in found]
        above = int(tally.visits[self.selected])
        return found.tolist(), children_frame(
            labels, tally.visits[found], above, tally.mean_score[found], tally.best_score[found]
        )

    def place(self) -> Place | None:
        """What is known of the selected place."""
        mirror, tally, p = self.mirror, self.tally, self.selected
        if mirror is None or tally is None or self.actions is None:
            return None
        with mirror.lock:
            places = mirror.places
            word, node = int(places.place["word"][p]), int(places.place["node"][p])
            plan, label = places.plan(p), places.label(p)
            own = mirror.own
        known = p and 0 <= word < len(self.actions.visits) and self.actions.visits[word] > 0
        return Place(
            label, int(places.place["depth"][p]), int(tally.visits[p]), int(tally.ended[p]),
            float(tally.mean_score[p]), float(tally.best_score[p]), plan,
            (int(self.actions.visits[word]), float(self.actions.mean_score[word])) if known else None,
            (int(own["visits"][node]), float(own["value"][node]))
            if self.at is None and own and node < len(own["visits"]) and own["visits"][node] > 0
            else None,
        )  # fmt: skip

    # -- moving about -------------------------------------------------------------------------------
    def tap(self, scene: Scene, block: int) -> None:
        """Select a block; the selected one becomes the root, the root gives way to the one above it; unfold a fold."""
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
        """The picture begins with what is selected."""
        self.root = self.selected

    def up(self) -> None:
        """One level back up."""
        if self.root and self.mirror is not None:
            self.root = int(self.mirror.places.place["parent"][self.root])

    def top(self) -> None:
        """All of the tree, folded again."""
        self.root = 0
        self.opened = set()

    # -- price --------------------------------------------------------------------------------------
    def price(self, plan: tuple[str, ...]) -> Cost | str | None:
        """The price of a plan: None while a thread works it out, a text if it has none."""
        problem = self.session.search_problem
        if problem is None:
            return None
        if self._price is None or self._price[0] != plan:
            if self._price is not None:
                self._price[1].cancel()

            def work() -> Cost | str:
                try:
                    return price(problem, ShardingPlan.from_actions(problem, list(plan)))
                except ToastError as error:
                    return f"This step is not made of actions alone, so it cannot be priced by itself: {error}"

            self._price = plan, _PRICES.submit(work)
        done = self._price[1]
        return done.result() if done.done() else None
