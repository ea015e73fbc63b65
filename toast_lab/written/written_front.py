"""``write``: the front of written plans of a plan, from the fewest rules and constraints up."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from toast_lab import isolate
from toast_lab.cost.problem import Cost, Problem, Quick
from toast_lab.errors import InvalidProblem
from toast_lab.frontends.site_finding import sites_of
from toast_lab.ir.model import Model
from toast_lab.ir.sites import Sites
from toast_lab.search.limits import Budget
from toast_lab.sharding.plan import ShardingPlan, make_plan
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import as_html, bytes_text, table
from toast_lab.written.agreed import Shardy
from toast_lab.written.drafts import Draft, DraftRow, Drafts
from toast_lab.written.front import BUDGET, SMALLEST_GAIN, front_of, unbeaten
from toast_lab.written.propagating import ReadAhead
from toast_lab.written.written_plan import ShardingRule, SiteConstraint, WrittenPlan

#: Seconds that Shardy takes for one plan; for t2b of 12,000 ops it was 2.4 s.
_SHARDY_S_PER_OP = 2e-4
WITHIN = 0.05  #: how much of its C(s) a plan may lose by being written

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

    def changed(self, change: Callable[[WrittenT], WrittenT]) -> WrittenFront[WrittenT]:
        """The same front with every row changed."""
        return WrittenFront(tuple(map(change, self.rows)), self.unlimited)

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


class ImitatedFront(WrittenFront[WrittenT]):
    """A front of drafts, each of which Shardy itself propagates when it is asked for.

    For a program of thousands of ops that takes seconds a draft. ``within`` and ``of_size`` need
    one of them, unless Shardy makes something dearer of it than was imitated.
    """

    _choices: WrittenFront[Any]
    _agreed: Callable[[Sequence[DraftRow]], Sequence[WrittenT | None]]

    def __init__(
        self,
        imitated: tuple[DraftRow, ...],
        agreed: Callable[[Sequence[DraftRow]], Sequence[WrittenT | None]],
        unlimited: Cost,
    ) -> None:
        choices: WrittenFront[Any] = WrittenFront(imitated, unlimited)
        # The class is frozen
        self.__dict__.update(unlimited=unlimited, _choices=choices, _agreed=agreed)

    @functools.cached_property
    def rows(self) -> tuple[WrittenT, ...]:  # type: ignore[override]
        """All rows, as Shardy propagates them."""
        return unbeaten(row for row in self._agreed(self._choices.rows) if row is not None)

    def within(self, loss: float) -> WrittenT:
        """As ``WrittenFront.within``."""
        return self._one(lambda front: front.within(loss)) or super().within(loss)

    def of_size(self, size: int) -> WrittenT:
        """As ``WrittenFront.of_size``."""
        return self._one(lambda front: front.of_size(size)) or super().of_size(size)

    def changed(self, change: Callable[[WrittenT], WrittenT]) -> WrittenFront[WrittenT]:
        """As ``WrittenFront.changed``; no row is propagated for it."""
        agreed = self._agreed
        return ImitatedFront(
            self._choices.rows,
            lambda rows: [row and change(row) for row in agreed(rows)],
            self.unlimited,
        )

    def propagate_first(self, size: int | None) -> None:
        """Have the row propagated that is usually asked for first."""
        with contextlib.suppress(InvalidProblem):  # which the caller who asks for it is told
            self._one(lambda front: front.within(WITHIN) if size is None else front.of_size(size))

    def _one(self, choose: Callable[[WrittenFront[Any]], DraftRow]) -> WrittenT | None:
        """The row that is chosen among the drafts, unless Shardy makes something dearer of it."""
        if "rows" in self.__dict__ or not self._choices:
            return None
        row = choose(self._choices)
        (written,) = self._agreed([row])
        limit = row.cost.score * (1.0 + SMALLEST_GAIN)
        return written if written is not None and written.cost.score <= limit else None


def write(
    problem: Problem,
    sources: Sequence[ShardingPlan],
    model: Model | None = None,
    *,
    budget: Budget = BUDGET,
    in_packages: Collection[str] = (),
    size: int | None = None,
    cancel: Callable[[], bool] | None = None,
    finish: Callable[[WrittenPlan], WrittenT],
) -> WrittenFront[WrittenT]:
    """Find the written plans that come close to a plan whose every op is sharded, or are better.

    The arguments of a plan that costs more than no sharding at all, which would be the smallest,
    stay as it has them, unless a size is given.

    Args:
        problem: the one that the plan is for.
        sources: the plan, and further ones to start from: that of its actions alone, those that
            anybody gets for nothing.
        model: the problem's model; by default that of its analysis.
        budget: of all of it: the search has the seconds that finding sites and propagating one
            plan leave, but prices a hundred drafts at least.
        in_packages: installed packages whose source may be constrained too.
        size: most rules and constraints, see ``WrittenFront.of_size``; None: no limit.
        cancel: polled; True ends the search with what it has.
        finish: makes a row of a written plan.

    Raises:
        InvalidPlan: the plan is for another program or mesh.
    """
    started, plan = time.monotonic(), sources[0]
    model = plan.own_model(problem.analysis.model if model is None else model)
    plan.check_is_of(problem.analysis.program, problem.mesh)
    # Shardy reads the program while sites are looked for
    with ReadAhead(model.stablehlo, problem.analysis, problem.mesh) as ahead:
        sites = sites_of(problem.analysis.program, model, in_packages=in_packages)
        drafts = Drafts(problem, sites)
        unlimited = problem.pricer().full(plan)
        shardy = Shardy(problem, model, drafts, ahead)

        known: dict[Draft, WrittenT | None] = {}
        pins = problem.pins

        def finished(draft: Draft, sharding: Sharding) -> WrittenT:
            written = written_of(drafts, draft, sharding)
            return finish(dataclasses.replace(written, digests=sites.digests, unlimited=unlimited))

        def agreed(rows: Sequence[DraftRow]) -> list[WrittenT | None]:
            new = [row.draft for row in rows if row.draft not in known]
            shardings = shardy.propagated(new) if new else []
            for draft, sharding in zip(new, shardings, strict=True):
                known[draft] = None
                if sharding is not None and (pins is None or not pins.broken(*sharding)):
                    known[draft] = finished(draft, sharding)
            return [known[row.draft] for row in rows]

        if budget.seconds is not None:
            spent_s = time.monotonic() - started
            later_s = _SHARDY_S_PER_OP * problem.analysis.program.n_ops
            seconds = max(budget.seconds - spent_s - later_s, 0.0)
            budget = dataclasses.replace(budget, seconds=seconds)
        pays = unlimited.score <= problem.pricer().score(*problem.baseline)[0]
        imitated = front_of(
            drafts,
            sources if pays else [plan],
            budget=budget,
            size=size,
            keep_arguments=not pays and size is None,
            cancel=cancel,
        )
        front = ImitatedFront(imitated, agreed, unlimited)
        if cancel is None or not cancel():
            front.propagate_first(size)
    shardy.ahead = None
    return front


def written_of(drafts: Drafts, draft: Draft, sharding: Sharding) -> WrittenPlan:
    """A draft with the sharding that Shardy makes of it, and with all that it leads to."""
    problem = drafts.problem
    plan = make_plan(problem.analysis, problem.mesh, sharding, ("as written",), key=sharding.key())
    rules, constraints = drafts.rules(draft), list[SiteConstraint]()
    without: dict[ShardingRule | SiteConstraint, Quick] = {
        rule: drafts.price_without(draft, rules, rule) for rule in rules
    }
    for site, layout in sorted(draft.constraints):
        own_site = drafts.sites[site]
        constraints.append(SiteConstraint(own_site, drafts.spec(layout, own_site.rank)))
        without[constraints[-1]] = drafts.price(draft.without(site))
    return WrittenPlan(
        problem=problem,
        rules=rules,
        constraints=tuple(constraints),
        plan=plan,
        cost=problem.pricer().full(plan),
        results=drafts.result_specs(draft),
        without=without,
    )


#: Names of the usual plans that are in the floor, which anybody gets for nothing: a few rules, and
#: no constraint. A plan that takes more to write should beat them.
FLOOR = ("data parallel", "fully sharded", "tensor parallel", "data + tensor parallel")


def floor(
    problem: Problem,
    plans: Mapping[str, ShardingPlan],
    model: Model | None = None,
    *,
    cancel: isolate.Cancel | None = None,
) -> dict[str, WrittenPlan]:
    """The argument shardings of each of ``plans`` alone, and what propagation makes of them.

    Two plans with the same argument shardings are one, under the first of their names. One that
    Shardy refuses is left out.

    Args:
        problem: the one that the plans are for.
        plans: plans whose every op is sharded, by name.
        model: the problem's model; by default that of its analysis.
        cancel: polled; True ends the propagation with ``isolate.Cancelled``.
    """
    model = problem.analysis.model if model is None else model
    drafts = Drafts(problem, Sites((), {}))
    names: dict[Draft, str] = {}
    for name, plan in plans.items():
        names.setdefault(Draft(drafts.role_layouts(plan), frozenset()), name)
    own_model = model.of_program(problem.analysis.program)
    shardings = Shardy(problem, own_model, drafts).propagated(list(names), cancel=cancel)
    return {
        name: written_of(drafts, draft, sharding)
        for (draft, name), sharding in zip(names.items(), shardings, strict=True)
        if sharding is not None
    }
