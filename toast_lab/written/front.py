"""The search for written plans: the front of price against size.

From each *source*, a plan of a search or one that anybody gets for nothing, the search takes the
arguments' shardings, one for each role, and suggestions for constraints. It then

* tries single roles and constraints of all sources, once and in random order, on each of the best
  starts, which are arguments alone or with all that is suggested;
* does so again, in other orders, from those that led furthest: where it ends depends on the order;
* goes on from the best, until no change gains;
* makes a few random changes to the best, and improves it again, until that gains nothing more;
* gives up rules and constraints for as little as possible.

Every draft on the way is priced as propagation makes it, and those are kept that no smaller one
beats.

The paper has no such step: its plans shard every op. Start reading at ``front_of``.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from toast_lab.search.limits import Budget
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.written.drafts import Draft, DraftRow, Drafts, Layout
from toast_lab.written.written_plan import WrittenPlan, WrittenSize

RowT = TypeVar("RowT", bound=DraftRow | WrittenPlan)

#: Least gain, as a share of C(s), for which a front takes a further rule or constraint.
SMALLEST_GAIN = 0.001
#: how much worse than the source a draft may get while constraints are given up, in rising steps
_LOSS_LEVELS = (0.0, 0.005, 0.02, 0.05, 0.2)
_MOST_STARTS = 4  #: starts that are swept, beside the best arguments alone
_MOST_AGAIN = 2  #: starts that are swept again
_SWEEPS_AGAIN = 2  #: ... and how often
_SHAKES = 3  #: random changes with which the last stage leaves a plan that no change improves
_MOST_IDLE = 8  #: ... and how often in a row it does so for nothing
_LEAST_DRAFTS = 100  #: drafts that are priced even if no time is left: a second of a large program
_FRONT_ROWS = 12  #: most rows of a front
#: Of writing a plan: for a large program the seconds count, for a small one the drafts.
BUDGET = Budget(seconds=10.0, evaluations=4000)


class Edit(NamedTuple):
    """A change of a draft: another layout of one site or of one role."""

    site: int  #: -1: it is of a role
    role: int
    layout: Layout | None  #: None: no constraint

    def of(self, draft: Draft) -> Draft:
        """The draft with the change."""
        if self.layout is None:
            return draft.without(self.site)
        if self.site >= 0:
            return draft.with_site(self.site, self.layout)
        return draft._replace(
            roles=(*draft.roles[: self.role], self.layout, *draft.roles[self.role + 1 :])
        )


class UsedUp(Exception):
    """The search has used its budget."""


class _FrontSearch:
    """Collects rows; each of its methods goes on until the budget is used up."""

    def __init__(
        self,
        drafts: Drafts,
        budget: Budget,
        cancel: Callable[[], bool] | None = None,
        size: float = math.inf,
        earlier: _FrontSearch | None = None,
        *,
        keep_arguments: bool = False,
    ) -> None:
        self.drafts, self.cancel, self.keep_arguments = drafts, cancel, keep_arguments
        self.deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
        self.size = size  #: most rules and constraints of a draft
        self.seen: set[Draft] = set() if earlier is None else earlier.seen
        most = math.inf if budget.evaluations is None else budget.evaluations
        self.most_drafts = len(self.seen) + most
        self.random = random.Random(0)

    def __iter__(self) -> Iterator[DraftRow]:
        """A row for each draft that was priced."""
        return map(self.drafts.row, self.seen & self.drafts.priced.keys())

    def run(self, sources: Sequence[ShardingPlan]) -> None:
        """Search from all sources until the budget is used up."""
        with contextlib.suppress(UsedUp):
            self._run(sources)

    def _run(self, sources: Sequence[ShardingPlan]) -> None:
        alone, starts = dict[Draft, None](), dict[Draft, None]()
        options = dict[tuple[int, Layout], None]()
        for plan in sources:
            start = self.within_size(Draft(self.drafts.role_layouts(plan), frozenset()))
            suggested = self.drafts.options(plan)
            # Of a site's layouts the first is the plan's own
            full = start._replace(constraints=frozenset(dict(reversed(suggested)).items()))
            alone[start] = starts[min(start, full, key=self.objective)] = None
            options.update(dict.fromkeys(suggested))
        edits = [
            *self.role_edits(alone),
            *(Edit(site, -1, layout) for site, layout in options),
            *(Edit(site, -1, None) for site in dict(list(options))),
        ]
        first, *others = sorted(starts, key=self.objective)[:_MOST_STARTS]
        # The fewest constraints are none
        fewest = min(alone, key=self.objective)
        end_of = {
            start: self.swept(start, edits) for start in dict.fromkeys([first, fewest, *others])
        }
        ends = list(end_of.values())
        for start in sorted(end_of, key=lambda start: self.objective(end_of[start]))[:_MOST_AGAIN]:
            ends += [self.swept(start, edits) for _ in range(_SWEEPS_AGAIN)]
        best = self.improve(min(ends, key=self.objective), edits)
        idle = 0
        while idle < _MOST_IDLE:
            other = self.improve(self.shaken(best, edits), edits)
            idle += 1
            if self.objective(other) < self.objective(best):
                best, idle = other, 0
        for loss in _LOSS_LEVELS:
            best = self.smaller(best, self.score(best) * (1.0 + loss))

    def score(self, draft: Draft) -> float:
        """C(s) of a draft. Raises UsedUp."""
        if draft not in self.seen and len(self.seen) >= self.most_drafts:
            raise UsedUp
        is_late = time.monotonic() > self.deadline and len(self.seen) >= _LEAST_DRAFTS
        if is_late or (self.cancel is not None and self.cancel()):
            raise UsedUp
        self.seen.add(draft)
        return self.drafts.price(draft).score

    def improve(self, draft: Draft, edits: Sequence[Edit]) -> Draft:
        """``draft`` after sweeps of all edits, until one gains nothing."""
        while (swept := self.swept(draft, edits)) != draft:
            draft = swept
        return draft

    def swept(self, draft: Draft, edits: Sequence[Edit]) -> Draft:
        """``draft`` after each edit that gains, tried once and in random order."""
        objective = self.objective(draft)
        for edit in self.random.sample(edits, len(edits)):
            changed = edit.of(draft)
            if changed != draft and self.objective(changed) < objective:
                draft, objective = changed, self.objective(changed)
        return draft

    def objective(self, draft: Draft) -> float:
        """C(s), a little higher for each rule and constraint; infinite where it has too many."""
        size = self.drafts.size(draft)
        if size.total > self.size:
            return math.inf
        return self.score(draft) * _weight(size)

    def shaken(self, draft: Draft, edits: Sequence[Edit]) -> Draft:
        """``draft`` after a few random edits."""
        for edit in self.random.sample(edits, min(_SHAKES, len(edits))):
            draft = edit.of(draft)
        return draft

    def role_edits(self, starts: Iterable[Draft]) -> list[Edit]:
        """Edits that give a role of arguments a layout that it, or another role, has somewhere."""
        if self.keep_arguments:
            return []
        drafts = self.drafts
        whole: Layout = (-1,) * len(drafts.problem.mesh.axes)
        layouts = dict.fromkeys([whole, *(layout for start in starts for layout in start.roles)])
        return [
            Edit(-1, role, layout)
            for role, members in enumerate(drafts.members)
            for layout in layouts
            if drafts.fits(layout, drafts.program.dims(int(members[0])))
        ]

    def smaller(self, draft: Draft, level: float) -> Draft:
        """``draft`` with fewer rules and constraints, as long as C(s) stays within ``level``."""
        while True:
            best = min(self.fewer(draft), key=self.objective, default=None)
            if best is None or self.score(best) > level:
                return draft
            draft = best

    def fewer(self, draft: Draft) -> list[Draft]:
        """``draft`` with one constraint less, or with another role so that it has fewer rules."""
        total = self.drafts.size(draft).total
        changes = [edit.of(draft) for edit in self.role_edits([draft])]
        return [
            *(draft.without(site) for site, _ in draft.constraints),
            *(changed for changed in changes if self.drafts.size(changed).total < total),
        ]

    def within_size(self, draft: Draft) -> Draft:
        """``draft`` without the rules that it has too many, those that gain least first."""
        while self.drafts.size(draft).total > self.size:
            fewer = self.fewer(draft)
            if not fewer:
                break
            draft = min(fewer, key=self.score)
        return draft


def front_of(
    drafts: Drafts,
    sources: Sequence[ShardingPlan],
    *,
    budget: Budget = BUDGET,
    size: int | None = None,
    keep_arguments: bool = False,
    cancel: Callable[[], bool] | None = None,
) -> tuple[DraftRow, ...]:
    """The drafts that no smaller one beats, the smallest first.

    Args:
        drafts: of the problem.
        sources: plans to start from, the most important first.
        budget: seconds, and drafts to price.
        size: most rules and constraints; where none of so few fits into memory, the smallest that
            fits is given as well.
        keep_arguments: the arguments stay as the sources have them; only constraints are tried.
        cancel: polled; True ends the search with what it has.
    """
    # Preparing kernels takes no time of the search, and a search without time still has a draft
    first = Draft(drafts.role_layouts(sources[0]), frozenset())
    drafts.price(first)
    most = math.inf if size is None else size
    search = _FrontSearch(drafts, budget, cancel, most, keep_arguments=keep_arguments)
    search.seen.add(first)
    search.run(sources)
    if size is not None and not any(row.cost.fits and row.size.total <= size for row in search):
        # Nothing so small fits; look how large the smallest is that does
        search = _FrontSearch(drafts, budget, cancel, earlier=search, keep_arguments=keep_arguments)
        search.run(sources)
    kept = unbeaten(search)
    # The budget may be used up before all was tried; this takes little
    fewer = [_without_idle(drafts, row) for row in kept]
    return _worth_propagating(unbeaten(map(drafts.row, fewer)), size)


def _weight(size: WrittenSize) -> float:
    """By how much C(s) counts more for what has to be written.

    Of two that cost the same, an argument that arrives in parts is better than one that is cut on
    the way, which compilers may convert and copy whole before.
    """
    return 1.0 + SMALLEST_GAIN * (size.rules + 2 * size.constraints)


def _without_idle(drafts: Drafts, row: DraftRow) -> Draft:
    """The row's draft without constraints that a later one has made idle."""
    draft, score = row.draft, row.cost.score
    for site, _ in sorted(draft.constraints):
        fewer = draft.without(site)
        fewer_score = drafts.price(fewer).score
        if fewer_score <= score * (1.0 + SMALLEST_GAIN / 2):
            draft, score = fewer, fewer_score
    return draft


def _worth_propagating(rows: tuple[DraftRow, ...], size: int | None) -> tuple[DraftRow, ...]:
    """The rows, the smallest first, that are worth propagating by Shardy."""
    if size is None:
        return rows[-_FRONT_ROWS:]
    small = tuple(row for row in rows if row.size.total <= size)
    if any(row.cost.fits for row in small):
        return small[-_FRONT_ROWS:]
    larger = rows[len(small) :]
    fitting = tuple(row for row in larger if row.cost.fits)
    return (*small[1 - _FRONT_ROWS :], *(fitting or larger)[:1])


def unbeaten(rows: Iterable[RowT]) -> tuple[RowT, ...]:
    """The rows that no smaller one beats in C(s), the smallest first.

    Each further rule or constraint gains at least ``SMALLEST_GAIN`` of C(s).
    """
    kept: list[RowT] = []
    for row in sorted(
        rows,
        key=lambda row: (row.size.total, not row.cost.fits, row.cost.score * _weight(row.size)),
    ):
        last = kept[-1] if kept else None
        if last is not None and last.cost.fits and not row.cost.fits:
            continue
        if (
            last is None
            or (row.cost.fits and not last.cost.fits)
            or row.cost.score
            < last.cost.score * (1 - SMALLEST_GAIN * (row.size.total - last.size.total))
        ):
            if last is not None and last.size.total == row.size.total:
                continue
            kept.append(row)
    return tuple(kept)
