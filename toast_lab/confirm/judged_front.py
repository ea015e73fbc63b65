"""``JudgedFront``: the front of written plans of a confirmed search, with the judge's clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from toast_lab.confirm.choose import refused_kinds
from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import Cost
from toast_lab.text import bytes_text, table
from toast_lab.written.written_front import WrittenFront
from toast_lab.written.written_plan import WrittenPlan

#: a written plan, with the verdict on it; None: it is only priced
_Row = tuple[WrittenPlan, Verdict[Any] | None]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class JudgedFront(WrittenFront[WrittenPlan]):
    """Written plans that no smaller one beats, the smallest first, with what a judge said of them.

    A judged plan is beaten only by another judged one, by the clock. A plan that is only priced is
    beaten by any whose clock or price is better than its price.
    """

    verdicts: tuple[Verdict[Any] | None, ...] = ()  #: on each row; None: it is only priced
    best: Verdict[Any] | None = None  #: on the best plan, written or whole
    confirmed: bool = False  #: do clock and price agree on the best plan?

    def clock_s(self, index: int) -> float | None:
        """Time of a row by the judge's clock; None: it is only priced."""
        verdict = self.verdicts[index]
        return None if verdict is None else verdict.time_s

    def time_s(self, index: int) -> float:
        """Time of a row by the judge's clock, or else its price."""
        clock_s = self.clock_s(index)
        return self.rows[index].cost.time_s if clock_s is None else clock_s

    def within(self, loss: float) -> WrittenPlan:
        """The smallest one that is at most ``loss`` (a share) slower than the best plan.

        Judged plans are compared by the clock. Plans that are only priced are compared by the
        price, and only if the best plan is confirmed: a price that the clock refuted says nothing.
        If none is so good, it is the quickest that was judged.
        """
        if self.best is None or self.best.time_s is None:
            return super().within(loss)
        for index, row in enumerate(self.rows):
            if self.clock_s(index) is not None:
                if self.time_s(index) <= self.best.time_s * (1.0 + loss):
                    return row
            elif self.confirmed and row.cost.fits:
                if row.cost.time_s <= self.best.time_s * (1.0 + loss):
                    return row
        return self._quickest(range(len(self.rows)))

    def of_size(self, size: int) -> WrittenPlan:
        """The quickest one of at most ``size`` rules and constraints; the clock decides.

        Raises:
            InvalidProblem: even the smallest has more.
        """
        small = [index for index, row in enumerate(self.rows) if row.size.total <= size]
        judged = [index for index in small if self.clock_s(index) is not None]
        return self._quickest(judged) if judged else super().of_size(size)

    def _quickest(self, indices: Iterable[int]) -> WrittenPlan:
        def rank(index: int) -> tuple[bool, bool, float]:
            is_priced = self.clock_s(index) is None
            return is_priced, not self.rows[index].cost.fits, self.time_s(index)

        return self.rows[min(indices, key=rank)]

    def __str__(self) -> str:
        cells = []
        for index, row in enumerate(self.rows):
            clock_s, verdict = self.clock_s(index), self.verdicts[index]
            cells.append(
                (
                    row.size.rules,
                    row.size.constraints,
                    f"{row.cost.time_s * 1e3:.3f} ms",
                    "only priced" if clock_s is None else f"{clock_s * 1e3:.3f} ms",
                    bytes_text(row.cost.peak_bytes),
                    "" if row.cost.fits or verdict is not None else "does not fit",
                    "" if verdict is None else verdict.name,
                )
            )
        columns = (">rules", ">constraints", ">priced", ">judged", ">memory priced", "", "")
        return table(columns, cells)


def judged_front(
    known: Iterable[WrittenPlan],
    verdicts: Sequence[Verdict[Any]],
    unlimited: Cost,
    *,
    best: Verdict[Any] | None,
    confirmed: bool,
) -> JudgedFront:
    """The front of all written plans of a confirmed search.

    Args:
        known: written plans, with their last prices.
        verdicts: on all plans.
        unlimited: cost of the plan that they were written for.
        best: the best of the verdicts.
        confirmed: is the best plan confirmed?
    """
    verdict_of = {verdict.key: verdict for verdict in verdicts}
    kinds = refused_kinds(verdicts)
    rows: list[_Row] = []
    for written in known:
        verdict = verdict_of.get((written.plan.sharding.key(), True))
        if verdict is None or verdict.judgement.interrupted_at_s is not None:
            if not any(kind.has(written.plan) for kind in kinds):
                rows.append((written, None))
        elif verdict.stands:
            rows.append((written, verdict))
    kept: list[_Row] = []
    for row in sorted(rows, key=_order):
        fits = _fits(row)
        if not kept or (fits and not any(_beats(other, row) for other in kept)):
            kept.append(row)
    return JudgedFront(
        tuple(written for written, _ in kept),
        unlimited,
        verdicts=tuple(verdict for _, verdict in kept),
        best=best,
        confirmed=confirmed,
    )


def _order(row: _Row) -> tuple[int, bool, bool, float]:
    """The smallest first, of equal size the best, by clock before by price."""
    written, verdict = row
    time_s = None if verdict is None else verdict.time_s
    return (
        written.size.total,
        time_s is None,
        not written.cost.fits,
        written.cost.time_s if time_s is None else time_s,
    )


def _fits(row: _Row) -> bool:
    """Does a row fit, by the judge if it was judged, else by its price?"""
    return row[1] is not None or row[0].cost.fits


def _beats(smaller: _Row, row: _Row) -> bool:
    """Is a row that is no larger also at least as quick, by the clock or by the price?"""
    clock_s = None if smaller[1] is None else smaller[1].time_s
    is_quicker_by_price = _fits(smaller) and smaller[0].cost.time_s <= row[0].cost.time_s
    if row[1] is not None and row[1].time_s is not None:
        return clock_s is not None and clock_s <= row[1].time_s
    return is_quicker_by_price or (clock_s is not None and clock_s <= row[0].cost.time_s)
