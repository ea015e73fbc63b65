"""``ConfirmedResult``: the plan of a confirmed search, with a judge's verdicts."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, Generic, TypeVar

from toast_lab import checks
from toast_lab.confirm.choose import refused_kinds
from toast_lab.confirm.judged_front import JudgedFront, judged_front
from toast_lab.confirm.verdict import Verdict, best_of
from toast_lab.cost.problem import Cost, price
from toast_lab.errors import InvalidProblem
from toast_lab.search.action_path import taken_actions
from toast_lab.search.contract import SearchResult
from toast_lab.sharding.plan import PlanT, ShardingPlan
from toast_lab.text import JsonObject, bytes_text, table
from toast_lab.written.written_plan import WrittenPlan

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
    TIME = "Not confirmed: the time limit for confirming was reached."
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

    Plans are judged whole, or as they are written. Where the best was judged as written, ``plan``
    is what propagation makes of it, and ``written(within=0)`` is what to write.

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
        >>> result.verdicts[0].title  # what anybody gets for nothing is judged first
        'data parallel as argument shardings alone'
    """

    judge: str = ""  #: topology of the judge
    standing: Standing = Standing.NOTHING_STANDS
    verdicts: tuple[Verdict[PlanT], ...] = ()  #: in the order of judging
    tolerance: float = 0.1  #: share of the price by which the clock may differ from it
    last: SearchResult[PlanT] | None = None  #: result of the last search, by the last prices
    known_written: tuple[WrittenPlan, ...] = ()  #: the floor, and written plans of all searches
    not_written: str = ""  #: why there are no written plans of the searches; empty: there are

    @property
    def confirmed(self) -> bool:
        """Does the clock agree with the plan's price, and is no better plan known?"""
        return self.standing is Standing.CONFIRMED

    @property
    def best(self) -> Verdict[PlanT] | None:
        """The best judged plan; None: no judged plan stands."""
        return best_of(verdict for verdict in self._allowed if verdict.stands)

    @property
    def _allowed(self) -> list[Verdict[PlanT]]:
        """The verdicts on plans that keep to the size that was asked for."""
        return [
            verdict
            for verdict in self.verdicts
            if self.size is None
            or (verdict.written is not None and verdict.written.size.total <= self.size)
        ]

    @property
    def given(self) -> Verdict[PlanT] | None:
        """The verdict whose plan is the result; None: the best plan by price is."""
        failed = any(verdict.judgement.failure for verdict in self.verdicts)
        compiled = [verdict for verdict in self._allowed if not verdict.judgement.failure]
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
    def quicker_written(self) -> str:
        """A sentence if a plan as it is written beats all whole plans by the clock; else empty."""
        best = self.best
        rival = best_of(one for one in self.verdicts if one.stands and one.written is None)
        if best is None or best.written is None or rival is None:
            return ""
        assert best.time_s is not None
        assert rival.time_s is not None
        name = best.title if best.name else f"the plan {best.title}"
        than = f"the best plan with every op constrained{f' ({rival.name})' if rival.name else ''}"
        return (
            f"{name[0].upper()}{name[1:]} is quicker by the judge's clock than {than}: "
            f"{best.time_s * 1e3:.3f} ms against {rival.time_s * 1e3:.3f}."
        )

    @property
    def elsewhere(self) -> str:
        """A sentence if clocks and prices are of different machines; else empty."""
        return next((verdict.judgement.elsewhere for verdict in self.verdicts), "")

    def verdict_of(self, plan: ShardingPlan | WrittenPlan) -> Verdict[PlanT] | None:
        """The judge's verdict on a plan; None: it was not judged, and is only priced.

        That on the plan as it is written if a ``WrittenPlan`` is given. Else on the whole plan if
        it was judged, or on a written one that propagation makes the same.
        """
        is_written = isinstance(plan, WrittenPlan)
        key = (plan.plan if isinstance(plan, WrittenPlan) else plan).sharding.key()
        return best_of(
            verdict
            for verdict in self.verdicts
            if verdict.key[0] == key and (verdict.written is not None or not is_written)
        )

    @functools.cached_property
    def written_front(self) -> JudgedFront:
        """The written plans that no smaller one beats, with the judge's clock beside the price."""
        if self.problem is None:
            raise InvalidProblem("this result lacks the problem that was searched; search again")
        pricer = self.problem.pricer()
        cost = (self.last or self).refined.cost
        known = [
            dataclasses.replace(written, cost=pricer.full(written.plan), unlimited=cost)
            for written in self.known_written
        ]
        return judged_front(known, self.verdicts, cost, best=self.best, confirmed=self.confirmed)

    def written(self, within: float = 0.05, size: int | None = None) -> WrittenPlan:
        """The smallest written plan that is at most ``within`` (a share) slower than the best plan.

        Judged plans are compared by the clock; see ``JudgedFront.within``. With ``size``, or where
        the search was given one: the quickest of at most so many rules and constraints.

        Raises:
            InvalidProblem: ``within`` is not a share, there is no plan of that size, or the
                searches could not write any plan.
        """
        within, front = checks.number("within", within, 0.0), self.written_front
        if not front.rows:
            reason = self.not_written or "the search ended before any was found"
            raise InvalidProblem(f"there is no written plan: {reason}")
        size = self.size if size is None else checks.whole("size", size, 1)
        return front.within(within) if size is None else front.of_size(size)

    def with_judgement(self, plan: AnyPlan) -> AnyPlan:
        """A plan with the judge's verdict on it (``plan.judged``), which is saved with the plan."""
        best, verdict = self.best, self.verdict_of(plan)
        if best is not None and best.key[0] == plan.sharding.key():
            verdict = best
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
            "quicker_written": self.quicker_written,
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
        elsewhere = "".join(f" {text}" for text in (self.quicker_written, self.elsewhere) if text)
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
        name = f" ({best.title})" if best.title else ""
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
                    ", ".join(filter(None, (verdict.title, remark))),
                )
            )
        columns = (">round", ">priced", ">judged", ">ratio", ">memory priced", ">judged", "")
        text = table(columns, rows)
        for line in filter(None, (self.refusals, self.elsewhere, self.not_written)):
            text += f"\n{line}"
        if self.last is not None and self.verdict_of(self.priced_plan) is None:
            only_priced = self.last.cost.time_s * 1e3
            text += f"\nonly priced: the best of the last search, {only_priced:.3f} ms"
        return text


def confirmed_result(
    last: SearchResult[PlanT],
    verdicts: tuple[Verdict[PlanT], ...],
    **facts: Any,
) -> ConfirmedResult[PlanT]:
    """The result of a confirmed search after its last round.

    Args:
        last: of the last search.
        verdicts: in the order of judging.
        facts: the further fields of ``ConfirmedResult``.
    """
    fields = {field.name: getattr(last, field.name) for field in dataclasses.fields(SearchResult)}
    fields |= {"verdicts": verdicts, "last": last, **facts}
    result: ConfirmedResult[PlanT] = ConfirmedResult(**fields)
    best = result.given
    if last.problem is None:
        return result
    if best is None:
        return result if verdicts else _with_priced_floor(result)
    return dataclasses.replace(
        result,
        plan=result.with_judgement(best.plan),
        cost=price(last.problem, best.plan),
        actions=taken_actions(last.problem, best.plan),
        unlimited=None,
    )


def _with_priced_floor(result: ConfirmedResult[PlanT]) -> ConfirmedResult[PlanT]:
    """A result without verdicts, with a written plan in place of its plan if that is cheaper."""
    assert result.problem is not None
    pricer, to_plan_type = result.problem.pricer(), type(result.plan).of
    costs = [(pricer.full(written.plan), written.plan) for written in result.known_written]
    rows: list[tuple[Cost, ShardingPlan]] = [(result.cost, result.plan), *costs]
    cost, plan = min(rows, key=lambda row: (not row[0].fits, row[0].score))
    if plan is result.plan:
        return result
    return dataclasses.replace(
        result, plan=to_plan_type(plan), cost=cost, actions=(), unlimited=None
    )
