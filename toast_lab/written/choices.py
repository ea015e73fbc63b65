"""Which choices of a plan matter: what each of them saves, the one that saves most first.

    print(tl.choices(result))  # actions, and the sides that they take in conflicts
    print(tl.choices(result.written()))  # rules and constraints

Each is left out alone and the rest is priced, so that savings need not add up: of two cuts either
of which would do, neither matters much. Start reading at ``choices``.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from toast_lab.cost.problem import Problem, Quick
from toast_lab.errors import InvalidInput, InvalidPlan, InvalidProblem
from toast_lab.explain.board import conflict_tensors, named_tensor
from toast_lab.explain.plan_by_hand import replay
from toast_lab.search.action_path import price_of_sharding, taken_actions
from toast_lab.search.contract import SearchResult
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import Action
from toast_lab.text import as_html, bytes_text, line_text, share_text, table
from toast_lab.written.screen import saved_text, shortened, spec_code, time_text
from toast_lab.written.written_plan import SiteConstraint, WrittenPlan

WIDTH = 80  #: columns of the text
SHOWN_ROWS = 30  #: maximum number of rows that ``str()`` writes


class PricedChoice(NamedTuple):
    """One choice of a plan, and what it saves: what the plan without it costs more."""

    kind: str  #: "action", "side", "refinement" (what came after them), "rule" or "constraint"
    text: str  #: an action as ``Plan.from_actions`` takes it, a rule as it is written, ...
    where: str  #: source line of the conflict or constraint; empty if it has none
    time_s: float  #: of a step that it saves; negative: the plan without it is faster
    peak_bytes: float  #: that it saves on a device
    share: float  #: of C(s) that it saves, from the plan without it
    fits: bool  #: does the plan without it fit into memory?


@dataclasses.dataclass(frozen=True, eq=False)
class Choices(Sequence[PricedChoice]):
    """Choices of a plan, those that save the most C(s) first; ``str()`` is a table."""

    title: str  #: program and mesh
    price: Quick  #: of the plan
    rows: tuple[PricedChoice, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> PricedChoice: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PricedChoice, ...]: ...
    def __getitem__(self, index: int | slice) -> PricedChoice | tuple[PricedChoice, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[PricedChoice]:
        return iter(self.rows)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [row._asdict() for row in self.rows]

    def __repr__(self) -> str:
        return f"<Choices: {len(self)} of {self.title}, print() shows them>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        return self.rows_text()

    def rows_text(self, limit: int | None = SHOWN_ROWS) -> str:
        """A table of at most ``limit`` rows, 80 columns wide; None: all rows."""
        head = (
            f"{self.title}: {time_text(self.price.time_s)}, {bytes_text(self.price.peak_bytes)}. "
            "What each choice saves, by the price of the plan without it:"
        )
        numbers = [
            (
                saved_text(row.time_s, time_text),
                saved_text(row.peak_bytes, bytes_text) + self._mark(row),
                saved_text(row.share, share_text),
            )
            for row in self.rows
        ]
        columns = (">time", ">memory", ">C(s)")
        widths = [
            max(map(len, (title[1:], *cells)))
            for title, *cells in zip(columns, *numbers, strict=True)
        ]
        room = WIDTH - sum(widths) - 2 * len(columns)
        names = [_name(row, room) for row in self.rows]
        cells = [(name, *row) for name, row in zip(names, numbers, strict=True)]
        lines = [
            *textwrap.wrap(head, WIDTH),
            table(("choice", *columns), cells, len(cells) if limit is None else limit),
        ]
        if any(map(self._mark, self.rows)):
            lines.append("✗: the plan without it does not fit")
        return "\n".join(lines)

    def _mark(self, row: PricedChoice) -> str:
        return " ✗" if self.price.fits and not row.fits else ""


def saves(row: PricedChoice) -> str:
    """``saves 1.2 ms (4.1% of C(s))``, ``costs 3 us (-0.2% of C(s))``."""
    verb = "costs" if row.time_s < 0 else "saves"
    return f"{verb} {time_text(abs(row.time_s))} ({saved_text(row.share, share_text)} of C(s))"


def _name(row: PricedChoice, room: int) -> str:
    """A choice and its source line in at most so many columns."""
    line = f"  {line_text(row.where)}" if row.where else ""
    return f"{shortened(row.text, max(room - len(line), 12))}{line}"


def choices(
    plan: SearchResult[Any] | ShardingPlan | WrittenPlan, problem: Problem | None = None
) -> Choices:
    """What each choice of a plan saves in time, memory and C(s), ranked.

    Of a plan of actions these are its actions and the sides that they take in conflicts, of a
    written plan its rules and constraints. Without one of them, all others stay:

    * without an action, the plan of the other actions, of which later ones may cut what that one
      had cut before them; those that change nothing any more drop out;
    * without a side, the plan that takes the other side. Sides that change nothing are left out;
    * without a rule, its arguments are left to the rules after it, or whole;
    * without a constraint, its values are left to propagation.

    A plan that was refined after its actions is compared as those actions alone make it, and the
    refinement is one more row.

    Args:
        plan: the result of a search, a plan of actions, or a written plan.
        problem: the plan's problem; by default that of the result or written plan, or the plan's
            program and mesh on the default machine.

    Raises:
        InvalidPlan: the plan has no actions, rules or constraints, or belongs to another program
            or mesh.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> plan = tl.Plan.from_actions(problem, ["S@0->data"])
        >>> [(row.kind, row.text, f"{row.share:.0%}") for row in tl.choices(plan, problem)]
        [('action', 'S@0->data', '91%'), ('side', 'a: dim 0 on data, not 1', '-13%')]
    """
    if isinstance(plan, WrittenPlan):
        return _of_written(plan)
    if isinstance(plan, SearchResult):
        problem, plan = problem or plan.problem, plan.plan
        if problem is None:
            raise InvalidProblem("this result lacks the problem that was searched; give problem=")
    if not isinstance(plan, ShardingPlan):
        raise InvalidInput(
            "choices are those of the result of a search, a plan or a written plan, not of a "
            f"{type(plan).__name__}"
        )
    if problem is None:
        if plan.analysis is None:
            raise InvalidProblem("give problem=, the problem that this plan is for")
        problem = Problem(plan.analysis, plan.mesh)
    plan.check_is_of(problem.analysis.program, problem.mesh)
    return _of_actions(problem.unpinned, plan)


def _ranked(problem: Problem, price: Quick, rows: list[PricedChoice]) -> Choices:
    title = f"{problem.analysis.program.name} on {problem.mesh}"
    return Choices(title, price, tuple(sorted(rows, key=lambda row: -row.share)))


def _choice(kind: str, text: str, where: str = "", *, price: Quick, without: Quick) -> PricedChoice:
    """A choice of a plan of this price."""
    return PricedChoice(
        kind,
        text,
        where,
        time_s=without.time_s - price.time_s,
        peak_bytes=without.peak_bytes - price.peak_bytes,
        share=1.0 - price.score / without.score if without.score else 0.0,
        fits=without.fits,
    )


# -- actions and sides -----------------------------------------------------------------------------
def _of_actions(problem: Problem, plan: ShardingPlan) -> Choices:
    actions, price = taken_actions(problem, plan), price_of_sharding(problem, plan.sharding)
    if not actions:
        how = f" (it was {', '.join(plan.refinements)})" if plan.refinements else ""
        raise InvalidPlan(
            f"this plan has no actions to leave out{how}; once it is written, its rules and "
            "constraints are ranked: tl.choices(plan.written())"
        )
    sharding = replay(problem, actions)[0].sharding
    of_actions, rows = price_of_sharding(problem, sharding), list[PricedChoice]()
    for i, action in enumerate(actions):
        others = replay(problem, [*actions[:i], *actions[i + 1 :]])[0].sharding
        text, without = problem.space.text(action), price_of_sharding(problem, others)
        rows.append(_choice("action", text, price=of_actions, without=without))
        for other, side, where in _other_sides(problem, action):
            switched = replay(problem, [*actions[:i], other, *actions[i + 1 :]])[0].sharding
            if not switched.same_as(sharding):
                without = price_of_sharding(problem, switched)
                rows.append(_choice("side", side, where, price=of_actions, without=without))
    if not sharding.same_as(plan.sharding):
        text = ", ".join(plan.refinements) or "single ops and values"
        rows.append(_choice("refinement", text, price=price, without=of_actions))
    return _ranked(problem, price, rows)


def _other_sides(problem: Problem, action: Action) -> Iterator[tuple[Action, str, str]]:
    """The action with each of its bits switched, the side that it takes, and where."""
    space, analysis = problem.space, problem.analysis
    classes = analysis.groups[action.group].resolutions
    for position, resolution in enumerate(classes):
        mask = 1 << (len(classes) - 1 - position)
        other = action._replace(bits=action.bits ^ mask)
        if not ((space.group == other.group) & (space.bits == other.bits)).any():
            continue
        sets = (row for row in analysis.compatibility_sets if row.resolution == resolution)
        tensor = named_tensor(conflict_tensors(analysis, next(sets)))
        side = int(bool(action.bits & mask))
        axis = problem.mesh.axes[action.axis]
        text = f"{tensor.value}: dim {tensor.dims[side]} on {axis}, not {tensor.dims[1 - side]}"
        yield other, text, tensor.where


# -- rules and constraints -------------------------------------------------------------------------
def _of_written(written: WrittenPlan) -> Choices:
    cost = written.cost
    price = Quick(cost.score, cost.time_s, cost.peak_bytes, cost.fits)
    if not written.without:
        raise InvalidPlan("nothing is written, neither a rule nor a constraint")
    rows = []
    for item, without in written.without.items():
        if isinstance(item, SiteConstraint):
            kind, name, where = "constraint", item.site.name or "return", item.site.where
        else:
            kind, name, where = "rule", item.words, ""
        text = f"{name} {spec_code(item.spec)}"
        rows.append(_choice(kind, text, where, price=price, without=without))
    return _ranked(written.problem, price, rows)
