"""``ConfirmedResult``: the plan of a confirmed search, with a judge's verdicts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Generic, TypeVar

from toast_lab import checks
from toast_lab.confirm.choose import refused_kinds, simple_row
from toast_lab.confirm.verdict import Verdict
from toast_lab.cost.problem import price
from toast_lab.search.action_path import taken_actions
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
    ELSEWHERE = "Not confirmed: the judge and the prices are of different machines."
    REFUSED = (
        "Not confirmed: no plan that the search found compiles, and this one was taken instead: it "
        "needs no search, and compiles."
    )
    NOTHING_COMPILES = (
        "Not confirmed: no judged plan compiles, not even an unsharded one; the plan is priced."
    )
    NOTHING_STANDS = "Not confirmed: no judged plan runs, fits and has a time; the plan is priced."


@dataclasses.dataclass(frozen=True, eq=False)
class ConfirmedResult(SearchResult[PlanT], Generic[PlanT]):
    """The result of a search whose plans were judged.

    ``plan`` is the best by the judge's clock, and ``cost`` its price by the prices with which the
    search ended. If no judged plan stands, both are those of the best plan by price; where plans
    were judged that do not compile, of the best by price of those that do.

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

    judge: str = ""  #: topology of the judge
    standing: Standing = Standing.NOTHING_STANDS
    verdicts: tuple[Verdict[PlanT], ...] = ()  #: in the order of judging
    tolerance: float = 0.1  #: share of the price by which the clock may differ from it
    last: SearchResult[PlanT] | None = None  #: result of the last search, by the last prices

    @property
    def confirmed(self) -> bool:
        """Does the clock agree with the plan's price, and is no better plan known?"""
        return self.standing is Standing.CONFIRMED

    @property
    def best(self) -> Verdict[PlanT] | None:
        """The best judged plan; None: no judged plan stands."""
        standing = [verdict for verdict in self.verdicts if verdict.stands]
        return min(standing, key=lambda verdict: verdict.rank, default=None)

    @property
    def given(self) -> Verdict[PlanT] | None:
        """The verdict whose plan is the result; None: the best plan by price is."""
        failed = any(verdict.judgement.failure for verdict in self.verdicts)
        compiled = [verdict for verdict in self.verdicts if not verdict.judgement.failure]
        if self.best is not None or not failed:
            return self.best
        return min(
            compiled,
            key=lambda verdict: (not verdict.judgement.fits, verdict.priced_s),
            default=None,
        )

    @property
    def refusals(self) -> str:
        """A line for each kind of plans that does not compile, and so was left out."""
        kinds = refused_kinds(self.verdicts)
        return "\n".join(kind.text(self.plan) for kind in kinds)

    @property
    def priced_plan(self) -> PlanT:
        """The best plan by price alone, judged or not."""
        return self.plan if self.last is None else self.last.plan

    @property
    def elsewhere(self) -> str:
        """A sentence if clocks and prices are of different machines; else empty."""
        return next((verdict.judgement.elsewhere for verdict in self.verdicts), "")

    def verdict_of(self, plan: ShardingPlan) -> Verdict[PlanT] | None:
        """The judge's verdict on a plan; None: it was not judged, and is only priced."""
        key = plan.sharding.key()
        verdicts = (verdict for verdict in self.verdicts if verdict.plan.sharding.key() == key)
        return next(verdicts, None)

    def simple(self, within: float = 0.02) -> PlanT:
        """The smallest plan that is at most ``within`` (a share) worse than the best.

        Judged plans are compared by the clock; see ``choose.simple_row``. ``plan.judged`` says
        whether the plan was judged.

        Raises:
            InvalidProblem: ``within`` is not a share, or the problem is not known.
        """
        within = checks.number("within", within, 0.0)
        return self.with_judgement(self.simple_row(self.front.rows, within).plan)

    def simple_row(self, rows: Sequence[FrontRow[PlanT]], within: float) -> FrontRow[PlanT]:
        """The row of a front whose plan ``simple`` would give."""
        best = self.given
        if best is None:
            return simplest(rows, within)
        return simple_row(rows, self.verdicts, best, within=within, confirmed=self.confirmed)

    def with_judgement(self, plan: AnyPlan) -> AnyPlan:
        """A plan with the judge's verdict on it (``plan.judged``), which is saved with the plan."""
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
        """The judge, how the search ended and all verdicts, as plain data."""
        return {
            "judge": self.judge,
            "confirmed": self.confirmed,
            "standing": self.standing.name,
            "sentence": self.standing.value,
            "elsewhere": self.elsewhere,
            "refusals": self.refusals,
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
        """The plan's clock and price, and whether it is confirmed, on one line."""
        best, verdict = self.best, self.verdict_of(self.plan)
        if best is None or best.time_s is None:
            return f"{self.judge}: {self.standing.value} {super().in_brief()}"
        elsewhere = f" {self.elsewhere}" if self.elsewhere else ""
        priced, clock = f"{self.cost.time_s * 1e3:.3f} ms priced", f"{best.time_s * 1e3:.3f} ms"
        if verdict is not best:
            judged = (
                ""
                if verdict is None or verdict.time_s is None
                else f"{verdict.time_s * 1e3:.3f} ms"
            )
            clock_of_plan = f"{judged} by its clock" if judged else "not judged"
            return (
                f"{self.judge}: this plan is {priced}, {clock_of_plan}; the best that was judged "
                f"takes {clock}. {self.standing.value}{elsewhere}"
            )
        name = f" ({best.name})" if best.name else ""
        return (
            f"{self.judge}: {clock} by the judge's clock, {priced}{name}. {self.standing.value}"
            f"{elsewhere}"
        )

    def verdict_table(self) -> str:
        """A table of all judged plans: round, price, clock, memory and remarks."""
        best, rows = self.best, []
        for verdict in self.verdicts:
            peak = verdict.judgement.peak_bytes
            state = "confirmed" if self.confirmed else "best judged"
            remark = state if verdict is best else verdict.remark
            rows.append(
                (
                    verdict.round,
                    f"{verdict.priced_s * 1e3:.3f} ms",
                    "-" if verdict.time_s is None else f"{verdict.time_s * 1e3:.3f} ms",
                    "-" if verdict.ratio is None else f"{verdict.ratio:.2f}",
                    bytes_text(verdict.priced_bytes),
                    "-" if peak is None else bytes_text(peak),
                    ", ".join(filter(None, (verdict.name, remark))),
                )
            )
        columns = (">round", ">priced", ">judged", ">ratio", ">memory priced", ">judged", "")
        text = table(columns, rows)
        for line in filter(None, (self.refusals, self.elsewhere)):
            text += f"\n{line}"
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
    """The result of a confirmed search after its last round."""
    fields = {field.name: getattr(last, field.name) for field in dataclasses.fields(SearchResult)}
    result: ConfirmedResult[PlanT] = ConfirmedResult(
        **fields,
        judge=judge,
        standing=standing,
        verdicts=verdicts,
        tolerance=tolerance,
        last=last,
    )
    best = result.given
    if best is None or last.problem is None:
        return result
    return dataclasses.replace(
        result,
        plan=result.with_judgement(best.plan),
        cost=price(last.problem, best.plan),
        actions=taken_actions(last.problem, best.plan),
        unlimited=None,
    )
