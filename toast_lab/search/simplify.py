"""Simpler plans that are nearly as good: what each thing that has to be written buys.

A search takes whatever lowers C(s), by however little, and its best plan may be sharded otherwise
in hundreds of places.  Here a plan is led back, part by part, towards simpler ones: towards a plan
of colour actions that the search has seen, towards that one with an action less, and towards whole
arguments.  A part is given up if the plan then takes less to write (``plan_rules.plan_size``) and
C(s) stays below a bound.  The bound rises in steps, so what buys least goes first; parts are tried
from large to small ones, contiguous in the program, since neighbours hold each other where they
are.  Plans are priced on the program folded so far as the plans concerned allow.

``simplified`` gives every plan on the way, from which ``PlanFront`` keeps those that no other beats
in time, memory and size alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.cost.reprice import Repricer, Snapshot
from toast_lab.errors import ToastError
from toast_lab.hashing import classes
from toast_lab.search.trace import Trace
from toast_lab.sharding.alike import Alike, by_classes
from toast_lab.sharding.plan import PlanT, ShardingPlan, make_plan, pinned_texts, plan_of_state
from toast_lab.sharding.plan_rules import PlanSize, argument_rules, plan_size
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State
from toast_lab.text import as_html, bytes_text, counted, table

#: What another rule or place has to gain, as a share of C(s), to stand in a front.  Prices are off
#: by several per cent (docs/accuracy.md); of that, plans which differ in one place share all but a
#: small part.  A tenth of a per cent is the least that we take for a difference.
SMALLEST_GAIN = 0.001
#: how much worse than the best a plan may get, step by step
_LEVELS = (0.0, 0.002, 0.01, 0.02, 0.05, 0.2)
#: into how many parts what tells two plans apart is divided at most, and for the smaller changes
_MOST_PARTS, _FEW_PARTS = 32, 2
_MOST_TRIALS = 500  #: prices of one step, which bounds the work on programs with many roles
_MOST_SEEN = 24  #: plans of actions that are looked at beside the best one


class FrontRow(NamedTuple, Generic[PlanT]):
    """A plan with its price and what it takes to write it."""

    plan: PlanT  # type: ignore[misc]  # a tuple cannot change, so it may be covariant
    quick: Quick
    size: PlanSize


@dataclasses.dataclass(frozen=True, eq=False)
class PlanFront(Generic[PlanT]):
    """Size against time and memory."""

    #: every plan that was looked at, the best first
    rows: tuple[FrontRow[PlanT], ...]

    @functools.cached_property
    def kept(self) -> tuple[FrontRow[PlanT], ...]:
        """Those that no other beats in time, memory and size alike, the smallest first.

        With the same memory, each further rule and place gains at least ``SMALLEST_GAIN``.
        """
        kept: list[FrontRow[PlanT]] = []
        for row in sorted(self.rows, key=lambda row: (row.size.total, row.quick.score)):
            needed = [
                other.quick.score * (1 - SMALLEST_GAIN * (row.size.total - other.size.total))
                for other in kept
                if other.quick.peak_bytes <= row.quick.peak_bytes * (1 + SMALLEST_GAIN)
            ]
            if all(row.quick.score < score for score in needed):
                kept.append(row)
        return tuple(kept)

    def __str__(self) -> str:
        cells, before = [], None
        for row in self.kept:
            quick, gain = row.quick, ""
            if before is not None:
                gained = 1 - quick.time_s / before.quick.time_s
                further = row.size.total - before.size.total
                gain = f"{gained:+.1%} for {further} more" if further else f"{gained:+.1%}"
            cells.append(
                (
                    row.size.rules,
                    row.size.places,
                    f"{quick.time_s * 1e3:.3f} ms",
                    bytes_text(quick.peak_bytes),
                    "" if quick.fits else "does not fit",
                    f"{quick.score:.4f}",
                    gain,
                )
            )
            before = row
        columns = (">rules", ">places", ">time", ">memory", "", ">C(s)", "time gained")
        return table(columns, cells)

    def __repr__(self) -> str:
        return f"<PlanFront of {len(self.kept)} plans>"

    def _repr_html_(self) -> str:
        return as_html(self)


class _FoldedPlan(NamedTuple):
    """A sharding in the rows of ``_Folded``."""

    ops: np.ndarray  #: [K, A]
    values: np.ndarray  #: [L, A]

    def copy(self) -> _FoldedPlan:
        return _FoldedPlan(self.ops.copy(), self.values.copy())


class _Folded:
    """A program folded as far as all of some shardings of it allow."""

    def __init__(self, problem: Problem, shardings: Sequence[Sharding]) -> None:
        self.problem, self.program = problem, problem.analysis.program
        program, space = self.program, problem.space
        first_name = program.factor_ptr[:-1, None]
        like_op = problem.folded.memory.like_op
        place = np.arange(program.n_values) - program.result_ptr[program.value_op]
        op_columns, value_columns = [], []
        for sharding in shardings:
            offset = np.where(sharding.op_factor >= 0, sharding.op_factor - first_name, -1)
            op_columns += list(offset.T)
            value_columns += list(sharding.value_dim.T)
        ops = classes(program.n_ops, space.alike.ops.label, like_op, *op_columns)
        values = classes(
            program.n_values,
            space.alike.values.label,
            like_op[program.value_op],
            place,
            *value_columns,
        )
        self.alike: Alike = by_classes(ops, values, space.op_effects, space.value_effects)
        self.repricer = Repricer(problem.prices.folded(self.alike))
        self.pricer = problem.pricer()
        #: rows of ops, then of values, in the order of the program
        self.order = np.argsort(
            np.concatenate([ops.first, program.value_op[values.first] + 0.5]), kind="stable"
        )
        self.axis_size = problem.mesh.array()

    def rows(self, sharding: Sharding) -> _FoldedPlan:
        alike = self.alike
        return _FoldedPlan(
            np.array(sharding.op_factor[alike.ops.first], np.int32),
            np.array(sharding.value_dim[alike.values.first], np.int8),
        )

    def sharding(self, rows: _FoldedPlan) -> Sharding:
        op_factor, value_dim = self.alike.whole(self.program, *rows)
        return Sharding(
            np.ascontiguousarray(op_factor, np.int32), np.ascontiguousarray(value_dim, np.int8)
        )

    def price(self, rows: _FoldedPlan, before: Snapshot | None = None) -> tuple[Quick, Snapshot]:
        time_s, peak_bytes, _, snapshot = self.repricer.price(*rows, before)
        return self.pricer.judged(time_s, peak_bytes), snapshot

    def divides(self, rows: _FoldedPlan) -> bool:
        """Do all axes on one factor, or on one dim, divide it together?"""
        program = self.program
        first_dim = program.shape_ptr[self.alike.values.first, None]
        dims = np.where(rows.values >= 0, first_dim + rows.values, 0)
        return self._divide(program.factor_size, rows.ops, rows.ops) and self._divide(
            program.shape, rows.values, dims
        )

    def _divide(self, sizes: np.ndarray, cut: np.ndarray, row_of_size: np.ndarray) -> bool:
        if not sizes.size:
            return True
        for axis in range(cut.shape[1]):
            own = cut[:, axis]
            ways = np.where(cut == own[:, None], self.axis_size, 1).prod(axis=1)
            size = sizes[np.where(own >= 0, row_of_size[:, axis], 0)]
            if ((own >= 0) & (size % ways != 0)).any():
                return False
        return True


class _Descent:
    """Leads one plan towards simpler ones."""

    def __init__(
        self,
        folded: _Folded,
        start: Sharding,
        best: Quick,
        keep: Callable[[Sharding, Quick, PlanSize], None],
    ) -> None:
        self.folded, self.best, self.keep = folded, best, keep
        self.rows = folded.rows(start)
        self.quick, self.priced = folded.price(self.rows)
        self.size = plan_size(folded.program, start)
        self.bound = best.score
        self.trials = 0  #: of this step

    def toward(self, target: _FoldedPlan, most_parts: int = _MOST_PARTS) -> None:
        """Take over what the target has, in parts."""
        chunk = len(self._differing(target))
        smallest = max(1, chunk // most_parts)
        while chunk >= smallest and self.trials < _MOST_TRIALS:
            differing = self._differing(target)
            for begin in range(0, len(differing), chunk):
                part = differing[begin : begin + chunk]
                self._take(target, part)
            if not len(differing):
                break
            chunk //= 2

    def _differing(self, target: _FoldedPlan) -> np.ndarray:
        """[n, 2] (row, axis) where the plan differs from the target, in program order."""
        differs = np.concatenate([self.rows.ops != target.ops, self.rows.values != target.values])[
            self.folded.order
        ]
        axis, place = np.nonzero(differs.T)
        return np.stack([self.folded.order[place], axis], axis=1)

    def _take(self, target: _FoldedPlan, part: np.ndarray) -> None:
        """Take over one part, if that makes the plan simpler and keeps to the bound."""
        rows, op_count = self.rows.copy(), len(self.rows.ops)
        is_op = part[:, 0] < op_count
        at_op = part[is_op, 0], part[is_op, 1]
        at_value = part[~is_op, 0] - op_count, part[~is_op, 1]
        rows.ops[at_op] = target.ops[at_op]
        rows.values[at_value] = target.values[at_value]
        if not self.folded.divides(rows):
            return
        self.trials += 1
        quick, priced = self.folded.price(rows, self.priced)
        if quick.score > self.bound or (self.best.fits and not quick.fits):
            return
        sharding = self.folded.sharding(rows)
        size = plan_size(self.folded.program, sharding)
        if (size.total, quick.score) >= (self.size.total, self.quick.score):
            return
        self.rows, self.quick, self.size, self.priced = rows, quick, size, priced
        self.keep(sharding, quick, size)


@dataclasses.dataclass(frozen=True)
class _ActionPlan:
    """A plan that actions make."""

    actions: tuple[str, ...]
    sharding: Sharding


def simplified(
    problem: Problem,
    best: ShardingPlan,
    trace: Trace,
    cancel: Callable[[], bool] | None = None,
) -> list[FrontRow]:
    """The best plan of a search and simpler ones, the best first; see the module.

    Args:
        problem: that was searched.
        best: its best plan.
        trace: of the search.
        cancel: polled; True gives what there is so far.
    """
    program, pricer = problem.analysis.program, problem.pricer()
    best_quick = _quick(problem, best.sharding)
    seen = [_of_actions(problem, actions) for actions in _seen(problem, trace)]
    beyond_pins = best.actions[len(pinned_texts(problem.space)) :]
    own = tuple(text for text in beyond_pins if _is_action(problem, text))
    with_own = _of_actions(problem, own)
    rows: dict[bytes, FrontRow] = {}
    pinned = None if problem.pins is None else problem.pins

    def keep_as(origin: _ActionPlan) -> Callable[[Sharding, Quick, PlanSize], None]:
        def keep(sharding: Sharding, quick: Quick, size: PlanSize) -> None:
            if pinned is None or not pinned.broken(*sharding):
                key = sharding.op_factor.tobytes() + sharding.value_dim.tobytes()
                rows.setdefault(key, FrontRow(_plan(problem, sharding, origin), quick, size))

        return keep

    keep_as(with_own)(best.sharding, best_quick, plan_size(program, best.sharding))
    first = next(iter(rows.values()), None)
    if first is not None:  # the plan itself, with what it says of how it came about
        rows[next(iter(rows))] = first._replace(plan=best)
    for each in (*seen, with_own):
        quick = _quick(problem, each.sharding)
        if quick.fits or not best_quick.fits:
            keep_as(each)(each.sharding, quick, plan_size(program, each.sharding))
    for origin in _origins(best.sharding, [with_own, *seen], pricer.problem):
        _descend(problem, best, best_quick, origin=origin, keep_as=keep_as, cancel=cancel)
        if cancel is not None and cancel():
            break
    return sorted(rows.values(), key=_rank)


def _descend(
    problem: Problem,
    best: ShardingPlan,
    best_quick: Quick,
    *,
    origin: _ActionPlan,
    keep_as: Callable[[_ActionPlan], Callable[[Sharding, Quick, PlanSize], None]],
    cancel: Callable[[], bool] | None,
) -> None:
    """From the best plan towards one of actions, and on from there with fewer actions."""
    fewer = [
        _of_actions(problem, origin.actions[:index] + origin.actions[index + 1 :])
        for index in range(len(origin.actions))
    ]
    whole = _whole_arguments(problem, best.sharding)
    targets = [origin.sharding, *(each.sharding for each in fewer), *whole]
    folded = _Folded(problem, [best.sharding, *targets])
    descent = _Descent(folded, best.sharding, best_quick, keep_as(origin))
    rows = [folded.rows(target) for target in targets]
    begin = rows[0]
    for level in _LEVELS:
        descent.bound, descent.trials = best_quick.score * (1.0 + level), 0
        descent.toward(begin)
        for other in rows[1:]:
            if cancel is not None and cancel():
                return
            # Only what the action, or the argument, is about
            changed = _changed(begin if other is not begin else other, other, descent.rows)
            descent.toward(changed, _FEW_PARTS)


def _changed(before: _FoldedPlan, after: _FoldedPlan, current: _FoldedPlan) -> _FoldedPlan:
    """``current`` with what tells ``after`` from ``before``, where it still is as ``before``."""
    ops = np.where((before.ops != after.ops) & (current.ops == before.ops), after.ops, current.ops)
    values = np.where(
        (before.values != after.values) & (current.values == before.values),
        after.values,
        current.values,
    )
    return _FoldedPlan(ops, values)


def _whole_arguments(problem: Problem, sharding: Sharding) -> list[Sharding]:
    """For each rule of arguments a sharding in which they are whole, and come back so."""
    program, label = problem.analysis.program, problem.space.alike.values.label
    shardings = []
    for rule in argument_rules(program, sharding):
        values = np.isin(label, label[list(rule.arguments)])
        bare = sharding.copy()
        bare.value_dim[values] = -1
        shardings.append(bare)
    return shardings


def simplest(rows: Sequence[FrontRow[PlanT]], within: float) -> FrontRow[PlanT]:
    """The smallest of some plans that are at most ``within`` (a share) worse than the best."""
    best = min(rows, key=_rank)
    allowed = [
        row
        for row in rows
        if row.quick.score <= best.quick.score * (1.0 + within)
        and (row.quick.fits or not best.quick.fits)
    ]
    return min(allowed, key=lambda row: (row.size.total, row.quick.score))


def _rank(row: FrontRow) -> tuple[bool, float, int]:
    return not row.quick.fits, row.quick.score, row.size.total


def _quick(problem: Problem, sharding: Sharding) -> Quick:
    totals = problem.pricer().totals(*sharding)
    return problem.pricer().judged(totals.time_s, totals.peak_bytes)


def _of_actions(problem: Problem, actions: Sequence[str]) -> _ActionPlan:
    """What some actions make; those that change nothing are left out."""
    state, taken = State(problem.space), []
    for text in actions:
        action = parse_action(problem.analysis, problem.mesh, text)
        if state.apply(action):
            taken.append(action)
    plan = plan_of_state(state, taken)
    return _ActionPlan(tuple(map(problem.space.text, taken)), plan.sharding)


def _plan(problem: Problem, sharding: Sharding, origin: _ActionPlan) -> ShardingPlan:
    """A plan, with how it came about."""
    differing = int(
        (sharding.op_factor != origin.sharding.op_factor).any(axis=1).sum()
        + (sharding.value_dim != origin.sharding.value_dim).any(axis=1).sum()
    )
    labels = (*pinned_texts(problem.space), *origin.actions)
    if differing:
        labels = (*labels, f"refined in {counted(differing, 'place')}")
    return make_plan(problem.analysis, problem.mesh, sharding.copy(), labels, key=sharding.key())


def _is_action(problem: Problem, text: str) -> bool:
    """Is it an action, and not a label that says how else a plan came about?"""
    try:
        parse_action(problem.analysis, problem.mesh, text)
    except ToastError:
        return False
    return True


def _seen(problem: Problem, trace: Trace) -> list[tuple[str, ...]]:
    """Actions of the best plans of a trace that actions make, for each number of actions."""
    row = trace.row
    if not row.n:
        return []
    ends, words = row["action_end"], trace.action["word"]
    starts = np.concatenate([[0], ends[:-1]])
    is_label = np.asarray([not _is_action(problem, text) for text in trace.vocabulary] or [False])
    labels = np.concatenate([[0], np.cumsum(is_label[words])])
    of_actions = labels[ends] == labels[starts]
    length, score = ends - starts, np.where(row["fits"], row["score"], np.inf)
    chosen: list[int] = []
    for count in np.unique(length[of_actions]).tolist():
        candidates = np.flatnonzero(of_actions & (length == count))
        chosen.append(int(candidates[np.argmin(score[candidates])]))
    chosen.sort(key=lambda index: score[index])
    vocabulary = trace.vocabulary
    return [
        tuple(vocabulary[word] for word in words[starts[index] : ends[index]].tolist())
        for index in chosen[:_MOST_SEEN]
    ]


def _origins(
    best: Sharding, candidates: Sequence[_ActionPlan], problem: Problem
) -> list[_ActionPlan]:
    """The plan of actions that is nearest to the best one, and the best of them all."""
    distances = [
        int((each.sharding.op_factor != best.op_factor).sum())
        + int((each.sharding.value_dim != best.value_dim).sum())
        for each in candidates
    ]
    scores = [_quick(problem, each.sharding) for each in candidates]
    nearest = candidates[int(np.argmin(distances))]
    cheapest = min(
        range(len(candidates)), key=lambda index: (not scores[index].fits, scores[index].score)
    )
    origins = [nearest]
    if candidates[cheapest].actions != nearest.actions:
        origins.append(candidates[cheapest])
    return origins
