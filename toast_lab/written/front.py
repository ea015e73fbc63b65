"""The search for written plans: the front of price against size.

From each *source*, a plan of a search or one that anybody gets for nothing, the search takes the
arguments' shardings, one for each role, and suggestions for constraints. It then

* adds constraints one by one, each time the one that gains most, until none gains;
* from the best of these, changes single rules and constraints in random order, also to what other
  sources suggest, until no change gains;
* makes a few random changes to the best, and improves it again, until that gains nothing more;
* gives up rules and constraints for as little as possible.

Every draft on the way is priced as propagation makes it, and those are kept that no smaller one
beats. The kept ones are then propagated by Shardy itself and priced once more, so that the front
tells what JAX makes of them.

The paper has no such step: its plans shard every op. Start reading at ``front_of``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from toast_lab.sharding.plan import ShardingPlan
from toast_lab.written.drafts import Agreed, Draft, DraftRow, Drafts, Layout

#: Least gain, as a share of C(s), for which a front takes a further rule or constraint.
SMALLEST_GAIN = 0.001
MOST_CONSTRAINTS = 16  #: most constraints that are added one by one
#: stale gains that are looked at again before the best of them is taken
_LOOKS = 8
#: how much worse than the source a draft may get while constraints are given up, in rising steps
_LOSS_LEVELS = (0.0, 0.005, 0.02, 0.05, 0.2)
_MOST_ENDS = 3  #: most ends of the first stage from which the second goes on
_SHAKES = 3  #: random changes with which the third stage leaves a plan that no change improves
_MOST_IDLE = 8  #: ... and how often in a row it does so for nothing
_FRONT_ROWS = 12  #: most rows that are propagated by Shardy


class OutOfTime(Exception):
    """The search has used its time."""


class _FrontSearch:
    """Collects rows; each of its methods goes on until its time is over."""

    def __init__(
        self, drafts: Drafts, deadline: float, cancel: Callable[[], bool] | None = None
    ) -> None:
        self.drafts, self.deadline, self.cancel = drafts, deadline, cancel
        self.seen: set[Draft] = set()
        self.random = random.Random(0)

    def score(self, draft: Draft) -> float:
        """C(s) of a draft, infinite if it does not fit while another one does."""
        if time.monotonic() > self.deadline or (self.cancel is not None and self.cancel()):
            raise OutOfTime
        self.seen.add(draft)
        return self.drafts.price(draft).score

    def add(self, draft: Draft, options: Sequence[tuple[int, Layout]]) -> Draft:
        """``draft`` with constraints of ``options``, one by one, each the one that gains most."""
        score = self.score(draft)
        gains = {option: float("inf") for option in options}
        while len(draft.constraints) < MOST_CONSTRAINTS:
            best, fresh = None, dict[tuple[int, Layout], float]()
            for option in sorted(gains, key=lambda option: -gains[option]):
                known = max(fresh.values(), default=0.0)
                enough = len(fresh) >= _LOOKS and gains[option] != float("inf")
                if option in draft.constraints or (enough and known >= gains[option]):
                    continue
                if enough and len(fresh) >= 2 * _LOOKS:
                    break
                fresh[option] = score - self.score(draft.with_site(*option))
            gains.update(fresh)
            if fresh:
                best = max(fresh, key=lambda option: fresh[option])
            if best is None or fresh[best] < SMALLEST_GAIN * score:
                return draft
            draft = draft.with_site(*best)
            score = self.score(draft)
            draft, score = self.without_idle(draft, score)
        return draft

    def without_idle(self, draft: Draft, score: float) -> tuple[Draft, float]:
        """The draft without constraints that a later one has made idle."""
        for site, _ in sorted(draft.constraints):
            fewer = draft.without(site)
            if self.score(fewer) <= score * (1.0 + SMALLEST_GAIN / 2):
                draft, score = fewer, self.score(fewer)
        return draft, score

    def improve(self, draft: Draft, options: Sequence[tuple[int, Layout]]) -> Draft:
        """``draft`` after changes of one rule or constraint each, until none of them gains."""
        objective = self.objective(draft)
        moves: list[Draft] = []
        while True:
            if not moves:
                moves = self.neighbours(draft, options)
                self.random.shuffle(moves)
                has_gained = False
            while moves:
                changed = moves.pop()
                if self.objective(changed) < objective:
                    draft, objective, has_gained = changed, self.objective(changed), True
                    moves = self.neighbours(draft, options)
                    self.random.shuffle(moves)
            if not has_gained:
                return draft

    def shaken(self, draft: Draft, options: Sequence[tuple[int, Layout]]) -> Draft:
        """``draft`` after a few random changes."""
        for _ in range(_SHAKES):
            # A draft without rules and constraints may have none
            draft = self.random.choice(self.neighbours(draft, options) or [draft])
        return draft

    def objective(self, draft: Draft) -> float:
        """C(s), a little higher for each rule and constraint."""
        return self.score(draft) * (1.0 + SMALLEST_GAIN * self.drafts.size(draft).total)

    def neighbours(self, draft: Draft, options: Sequence[tuple[int, Layout]]) -> list[Draft]:
        """Drafts with one constraint more, less, or in another layout, or with one other role."""
        constraints = [draft.with_site(*option) for option in options]
        fewer = [draft.without(site) for site, _ in draft.constraints]
        return [
            changed
            for changed in (*constraints, *fewer, *self.other_roles(draft))
            if changed != draft
        ]

    def other_roles(self, draft: Draft) -> Iterator[Draft]:
        """Drafts in which one role of arguments has the layout of another, or none."""
        drafts = self.drafts
        whole: Layout = (-1,) * len(drafts.problem.mesh.axes)
        for role, layout in enumerate(draft.roles):
            sizes = drafts.program.dims(int(drafts.members[role][0]))
            for other in dict.fromkeys([whole, *draft.roles]):
                if other != layout and drafts.fits(other, sizes):
                    roles = (*draft.roles[:role], other, *draft.roles[role + 1 :])
                    yield draft._replace(roles=roles)

    def smaller(self, draft: Draft, level: float) -> Draft:
        """``draft`` with fewer rules and constraints, as long as C(s) stays within ``level``."""
        while True:
            total = self.drafts.size(draft).total
            fewer = [draft.without(site) for site, _ in draft.constraints]
            fewer += [
                changed
                for changed in self.other_roles(draft)
                if self.drafts.size(changed).total < total
            ]
            best = min(fewer, key=self.objective, default=None)
            if best is None or self.score(best) > level:
                return draft
            draft = best


def front_of(
    drafts: Drafts,
    sources: Sequence[ShardingPlan],
    *,
    agreed: Agreed,
    seconds: float = 10.0,
    cancel: Callable[[], bool] | None = None,
) -> tuple[DraftRow, ...]:
    """The written plans that no smaller one beats, the smallest first.

    Args:
        drafts: of the problem.
        sources: plans to start from, the most important first.
        agreed: propagates drafts by Shardy itself.
        seconds: time for the search beyond that of ``agreed``.
        cancel: polled; True ends the search with what it has.
    """
    # Preparing kernels takes no time of the search
    drafts.price(Draft(drafts.role_layouts(sources[0]), frozenset()))
    search = _FrontSearch(drafts, time.monotonic() + seconds, cancel)
    for _ in _searched(search, drafts, sources):
        pass
    kept = _unbeaten(map(drafts.row, search.seen & drafts.priced.keys()))
    # Time may have run out before all was tried; this takes little
    search.deadline, search.cancel = math.inf, None
    fewer = [search.without_idle(row.draft, row.quick.score)[0] for row in kept]
    kept = _unbeaten(map(drafts.row, fewer))[-_FRONT_ROWS:]
    shardings = agreed([row.draft for row in kept])
    return _unbeaten(
        row._replace(quick=drafts.price_of(sharding), sharding=sharding)
        for row, sharding in zip(kept, shardings, strict=True)
        if sharding is not None
    )


def _searched(
    search: _FrontSearch, drafts: Drafts, sources: Sequence[ShardingPlan]
) -> Iterator[None]:
    """Search from all sources until time is over; yields now and then."""
    try:
        starts = {
            Draft(drafts.role_layouts(plan), frozenset[tuple[int, Layout]]()): plan
            for plan in reversed(sources)
        }
        for start in starts:
            search.score(start)
        yield
        ends = []
        for start in sorted(starts, key=search.score):
            ends.append(search.add(start, drafts.options([starts[start]])))
            yield
        ends.sort(key=search.score)
        options = drafts.options(sources)
        for number, end in enumerate(ends[:_MOST_ENDS]):
            ends[number] = search.improve(end, options)
            yield
        best = min(ends, key=search.objective)
        idle = 0
        while idle < _MOST_IDLE:
            other = search.improve(search.shaken(best, options), options)
            idle += 1
            if search.objective(other) < search.objective(best):
                best, idle = other, 0
            yield
        for loss in _LOSS_LEVELS:
            best = search.smaller(best, search.score(best) * (1.0 + loss))
            yield
    except OutOfTime:
        return


def _unbeaten(rows: Iterable[DraftRow]) -> tuple[DraftRow, ...]:
    """The rows that no smaller one beats in C(s), the smallest first.

    Each further rule or constraint gains at least ``SMALLEST_GAIN`` of C(s).
    """
    kept: list[DraftRow] = []
    for row in sorted(rows, key=lambda row: (row.size.total, not row.quick.fits, row.quick.score)):
        last = kept[-1] if kept else None
        if last is not None and last.quick.fits and not row.quick.fits:
            continue
        if (
            last is None
            or (row.quick.fits and not last.quick.fits)
            or row.quick.score
            < last.quick.score * (1 - SMALLEST_GAIN * (row.size.total - last.size.total))
        ):
            if last is not None and last.size.total == row.size.total:
                continue
            kept.append(row)
    return tuple(kept)
