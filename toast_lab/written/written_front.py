"""``write``: the front of written plans of a plan, from the fewest rules and constraints up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, TypeVar

from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidProblem
from toast_lab.frontends.site_finding import sites_of
from toast_lab.ir.model import Model
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.text import as_html, bytes_text, table
from toast_lab.written.agreed import Shardy
from toast_lab.written.drafts import DraftRow, Drafts
from toast_lab.written.front import front_of
from toast_lab.written.written_plan import SiteConstraint, WrittenPlan

WrittenT = TypeVar("WrittenT", bound=WrittenPlan)


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenFront(Sequence[WrittenT], Generic[WrittenT]):
    """Written plans that no smaller one beats, the smallest first."""

    rows: tuple[WrittenT, ...]
    unlimited: Cost  #: of the plan that they were written for

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> WrittenT:  # type: ignore[override]
        return self.rows[index]

    def __iter__(self) -> Iterator[WrittenT]:
        return iter(self.rows)

    def within(self, loss: float) -> WrittenT:
        """The smallest one whose C(s) is at most this much higher than the unlimited plan's.

        If none is, the one with the lowest C(s).
        """
        self._check()
        limit = self.unlimited.score * (1.0 + loss)
        near = [row for row in self.rows if row.cost.score <= limit]
        return near[0] if near else min(self.rows, key=lambda row: row.cost.score)

    def of_size(self, size: int) -> WrittenT:
        """The one with the lowest C(s) among those of at most ``size`` rules and constraints.

        Raises:
            InvalidProblem: even the smallest has more.
        """
        self._check()
        small = [row for row in self.rows if row.size.total <= size]
        fitting = [row for row in small if row.cost.fits]
        if not small or (not fitting and any(row.cost.fits for row in self.rows)):
            least = next((row for row in self.rows if row.cost.fits), self.rows[0])
            what = "fits into memory with" if least.cost.fits else "can be written in"
            raise InvalidProblem(
                f"no plan {what} {size} rules and constraints: the smallest has {least.size}, "
                f"{least.size.total} together, and takes {least.cost.time_s * 1e3:.3f} ms"
            )
        return min(fitting or small, key=lambda row: row.cost.score)

    def _check(self) -> None:
        if not self.rows:
            raise InvalidProblem(
                "no written plan was found: Shardy refuses all of them, or propagation keeps to no "
                "pin of the problem; constrain more by hand, or take the whole plan"
            )

    def __str__(self) -> str:
        cells = [
            (
                row.size.rules,
                row.size.constraints,
                f"{row.cost.time_s * 1e3:.3f} ms",
                bytes_text(row.cost.peak_bytes),
                "" if row.cost.fits else "does not fit",
                f"{row.loss:+.1%}",
            )
            for row in self.rows
        ]
        return table((">rules", ">constraints", ">time", ">memory", "", ">C(s)"), cells)

    def __repr__(self) -> str:
        return f"<WrittenFront of {len(self.rows)} plans>"

    def _repr_html_(self) -> str:
        return as_html(self)


def write(
    problem: Problem,
    plan: ShardingPlan,
    model: Model | None = None,
    *,
    beside: Sequence[ShardingPlan] = (),
    seconds: float = 10.0,
    in_packages: Collection[str] = (),
    size: int | None = None,
    cancel: Callable[[], bool] | None = None,
) -> WrittenFront[WrittenPlan]:
    """Find the written plans that come close to ``plan``, or are better.

    Args:
        problem: the one that the plan is for.
        plan: a plan whose every op is sharded.
        model: the problem's model; by default that of its analysis.
        beside: further plans to start from: that of the actions alone, those that anybody gets for
            nothing.
        seconds: time for the search, beside finding sites and propagating the result.
        in_packages: installed packages whose source may be constrained too.
        size: most rules and constraints, see ``WrittenFront.of_size``; None: no limit.
        cancel: polled; True ends the search with what it has.

    Raises:
        InvalidPlan: the plan is for another program or mesh.
    """
    model = plan.own_model(problem.analysis.model if model is None else model)
    plan.check_is_of(problem.analysis.program, problem.mesh)
    sites = sites_of(problem.analysis.program, model, in_packages=in_packages)
    drafts = Drafts(problem, sites)
    shardy = Shardy(problem, model, drafts)
    rows = front_of(
        drafts,
        [plan, *beside],
        agreed=shardy.propagated,  # what a search has that is cancelled counts, too
        seconds=seconds,
        size=size,
        cancel=cancel,
    )
    pins = problem.pins
    if pins is not None:
        rows = tuple(row for row in rows if row.sharding and not pins.broken(*row.sharding))
    unlimited = problem.pricer().full(plan)
    return WrittenFront(
        tuple(
            dataclasses.replace(written_of(drafts, row), digests=sites.digests, unlimited=unlimited)
            for row in rows
        ),
        unlimited,
    )


def written_of(drafts: Drafts, row: DraftRow) -> WrittenPlan:
    """A row of the front, which Shardy has propagated, with all that it leads to."""
    problem, sharding = drafts.problem, row.sharding
    assert sharding is not None, "Shardy has propagated it"
    plan = make_plan(problem.analysis, problem.mesh, sharding, ("as written",), key=sharding.key())
    constraints, without = [], {}
    for number, (site, layout) in enumerate(sorted(row.draft.constraints)):
        own_site = drafts.sites[site]
        without[number] = drafts.price(row.draft.without(site))
        constraints.append(SiteConstraint(own_site, drafts.spec(layout, own_site.rank)))
    return WrittenPlan(
        problem=problem,
        rules=drafts.rules(row.draft),
        constraints=tuple(constraints),
        plan=plan,
        cost=problem.pricer().full(plan),
        results=drafts.result_specs(row.draft),
        without=without,
    )
