"""``ConfirmedResult``: what a confirmed search found, and how far a judge stands behind it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Generic, TypeVar

from toast_lab import checks
from toast_lab.confirm.choose import simple_row
from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import price
from toast_lab.search.contract import SearchResult
from toast_lab.search.simplify import FrontRow, simplest
from toast_lab.sharding.plan import PlanT, ShardingPlan
from toast_lab.text import JsonObject, bytes_text, table

AnyPlan = TypeVar("AnyPlan", bound=ShardingPlan)


class Standing(enum.Enum):
    """How a confirmed search ended; the value is a sentence for people."""

    CONFIRMED = (
        "Confirmed: the clock agrees with the price, no judged plan is better, and no other plan "
        "that was found is priced better."
    )
    BUDGET = "Not confirmed: the budget of compiles was used up."
    NO_MORE = "Not confirmed: every plan worth judging was judged, and prices learned nothing more."
    CANCELLED = "Not confirmed: the search was cancelled."
    ELSEWHERE = "Not confirmed: the judge is of another machine than the prices."
    NOTHING_STANDS = "Not confirmed: no judged plan runs, fits and has a time; the plan is priced."


@dataclasses.dataclass(frozen=True, eq=False)
class ConfirmedResult(SearchResult[PlanT], Generic[PlanT]):
    """The result of a search whose plans were judged.

    ``plan`` is the best by the judge's clock, and ``cost`` its price by the prices that the search
    ended with; if no judged plan stands, both are those of the best by the price.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> judge = tl.Judging("cpu:4", compiles=2, plans=1, store=False)
        >>> result = tl.search(problem, judge=judge, budget=tl.Budget(None, 200))
        >>> result.judge, type(result).__name__
        ('cpu:4', 'ConfirmedResult')
        >>> all(verdict.time_s > 0 for verdict in result.verdicts)
        True
    """

    judge: str = ""  #: the topology
    standing: Standing = Standing.NOTHING_STANDS
    verdicts: tuple[Verdict[PlanT], ...] = ()  #: in the order in which they were given
    tolerance: float = 0.1  #: by how much the clock may differ from the price
    last: SearchResult[PlanT] | None = None  #: of the last search, by the last prices

    @property
    def confirmed(self) -> bool:
        """Does the clock agree with the price of the plan, and is none known that is better?"""
        return self.standing is Standing.CONFIRMED

    @property
    def best(self) -> Verdict[PlanT] | None:
        """The best that was judged; None: no judged plan stands."""
        standing = [verdict for verdict in self.verdicts if verdict.stands]
        return min(standing, key=lambda verdict: verdict.rank, default=None)

    @property
    def priced_plan(self) -> PlanT:
        """The best by the price alone, judged or not."""
        return self.plan if self.last is None else self.last.plan

    @property
    def elsewhere(self) -> str:
        """Why clocks and prices are of different machines; empty: they are of one."""
        return next((verdict.judgement.elsewhere for verdict in self.verdicts), "")

    def verdict_of(self, plan: ShardingPlan) -> Verdict[PlanT] | None:
        """What the judge says of a plan; None: it was not judged, and is only priced."""
        key = plan.sharding.key()
        own = (verdict for verdict in self.verdicts if verdict.plan.sharding.key() == key)
        return next(own, None)

    def simple(self, within: float = 0.02) -> PlanT:
        """The smallest plan that is at most ``within`` (a share) worse than the best.

        Worse by the clock, where a plan was judged; see ``choose.simple_row``.  The plan knows
        whether it was (``plan.judged``).

        Raises:
            InvalidProblem: ``within`` is no share, or the problem is not known.
        """
        within = checks.number("within", within, 0.0)
        return self.with_judgement(self.simple_row(self.front.rows, within).plan)

    def simple_row(self, rows: Sequence[FrontRow[PlanT]], within: float) -> FrontRow[PlanT]:
        """The row of ``simple`` among those of a front."""
        best = self.best
        if best is None:
            return simplest(rows, within)
        return simple_row(rows, self.verdicts, best, within=within, confirmed=self.confirmed)

    def with_judgement(self, plan: AnyPlan) -> AnyPlan:
        """A plan with what the judge says of it, which its file keeps (``plan.judged``)."""
        verdict = self.verdict_of(plan)
        judged: JsonObject = {
            "judge": self.judge,
            "confirmed": self.confirmed and verdict is not None and verdict is self.best,
            "standing": self.standing.name,
            **({"elsewhere": self.elsewhere} if self.elsewhere else {}),
            **({"verdict": verdict.to_json()} if verdict is not None else {}),
        }
        versions = getattr(None if verdict is None else verdict.judgement.evidence, "versions", {})
        if versions:
            judged["versions"] = dict(versions)
        return dataclasses.replace(plan, judged=judged)

    def to_json(self) -> JsonObject:
        """The judge, how the search ended, and every verdict, as plain data."""
        return {
            "judge": self.judge,
            "confirmed": self.confirmed,
            "standing": self.standing.name,
            "sentence": self.standing.value,
            "elsewhere": self.elsewhere,
            "tolerance": self.tolerance,
            "plan": f"{self.plan.sharding.key():016x}",
            "priced_s": self.cost.time_s,
            "verdicts": [
                {**verdict.to_json(), "best": verdict is self.best} for verdict in self.verdicts
            ],
        }

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.verdict_table()}"

    def in_brief(self) -> str:
        """Clock and price of the plan, and whether it is confirmed, on one line."""
        best, own = self.best, self.verdict_of(self.plan)
        if best is None or best.time_s is None:
            return f"{self.judge}: {self.standing.value} {super().in_brief()}"
        elsewhere = f" {self.elsewhere}" if self.elsewhere else ""
        priced, clock = f"{self.cost.time_s * 1e3:.3f} ms priced", f"{best.time_s * 1e3:.3f} ms"
        if own is not best:
            judged = "" if own is None or own.time_s is None else f"{own.time_s * 1e3:.3f} ms"
            this = f"{judged} by its clock" if judged else "not judged"
            return (
                f"{self.judge}: this plan is {priced}, {this}; the best that was judged takes "
                f"{clock}. {self.standing.value}{elsewhere}"
            )
        return (
            f"{self.judge}: {clock} by the judge's clock, {priced}. {self.standing.value}"
            f"{elsewhere}"
        )

    def verdict_table(self) -> str:
        """Every judged plan: round, what it was priced at, what the judge says."""
        best, rows = self.best, []
        for verdict in self.verdicts:
            peak = verdict.judgement.peak_bytes
            state = "confirmed" if self.confirmed else "best judged"
            word = state if verdict is best else verdict.remark
            rows.append(
                (
                    verdict.round,
                    f"{verdict.priced_s * 1e3:.3f} ms",
                    "-" if verdict.time_s is None else f"{verdict.time_s * 1e3:.3f} ms",
                    "-" if verdict.ratio is None else f"{verdict.ratio:.2f}",
                    bytes_text(verdict.priced_bytes),
                    "-" if peak is None else bytes_text(peak),
                    ", ".join(filter(None, (verdict.name, word))),
                )
            )
        columns = (">round", ">priced", ">judged", ">ratio", ">memory priced", ">judged", "")
        text = table(columns, rows)
        if self.elsewhere:
            text += f"\n{self.elsewhere}"
        keys = {verdict.plan.sharding.key() for verdict in self.verdicts}
        if self.last is not None and self.priced_plan.sharding.key() not in keys:
            only_priced = self.last.cost.time_s * 1e3
            text += f"\nonly priced: the best of the last search, {only_priced:.3f} ms"
        return text


def confirmed_result(
    last: SearchResult[PlanT],
    verdicts: tuple[Verdict[PlanT], ...],
    *,
    standing: Standing,
    judge: str,
    tolerance: float,
) -> ConfirmedResult[PlanT]:
    """What a confirmed search gives after its last search."""
    fields = {field.name: getattr(last, field.name) for field in dataclasses.fields(SearchResult)}
    result: ConfirmedResult[PlanT] = ConfirmedResult(
        **fields,
        judge=judge,
        standing=standing,
        verdicts=verdicts,
        tolerance=tolerance,
        last=last,
    )
    best = result.best
    if best is None or last.problem is None:
        return result
    own = best.plan.sharding.key() == last.plan.sharding.key()
    return dataclasses.replace(
        result,
        plan=result.with_judgement(best.plan),
        cost=price(last.problem, best.plan),
        actions=last.actions if own else (),
    )
