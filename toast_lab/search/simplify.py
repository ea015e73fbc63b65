"""Simpler plans that are nearly as good: what each further rule or place in a plan gains.

A search takes everything that lowers C(s), however little, so its best plan may deviate from a
simple one in hundreds of places. This module moves a plan back, part by part, towards simpler
ones: towards a plan of colour actions that the search has seen, towards that plan with one action
less, and towards whole arguments. A part of the plan is given up if the plan then takes less to
write (``plan_rules.plan_size``) and C(s) stays within a bound. The bound rises in steps, so the
parts that gain least go first. Parts are tried from large to small and are contiguous in the
program, since an op that changes alone has to be resharded from and to its neighbours. Plans are
priced on the program folded as far as the plans concerned allow.

``simplified`` gives every plan on the way; ``PlanFront`` keeps those that no other beats in time,
memory and size alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.cost.reprice import Repricer, Snapshot
from toast_lab.hashing import classes
from toast_lab.search.action_path import (
    ActionPlan,
    distance,
    of_actions,
    own_actions,
    price_of_sharding,
    seen_actions,
)
from toast_lab.search.trace import Trace
from toast_lab.sharding.alike import Alike, by_classes
from toast_lab.sharding.plan import PlanT, ShardingPlan, make_plan, pinned_texts
from toast_lab.sharding.plan_rules import PlanSize, argument_rules, plan_size
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import as_html, bytes_text, counted, table

#: Least gain, as a share of C(s), for which a front takes a further rule or place. Prices are off
#: by several per cent (docs/accuracy.md), but two plans that differ in one place share nearly all
#: of that error. A tenth of a per cent is the smallest difference that we take to be real.
SMALLEST_GAIN = 0.001
#: how much worse than the best a plan may get, as shares of C(s), in rising steps
_LOSS_LEVELS = (0.0, 0.002, 0.01, 0.02, 0.05, 0.2)
#: most parts into which the difference of two plans is divided; fewer for the smaller changes
_MOST_PARTS, _FEW_PARTS = 32, 2
_MOST_TRIALS = 500  #: most plans priced in one step; bounds the work on programs with many roles


class FrontRow(NamedTuple, Generic[PlanT]):
    """A plan with its price and its size."""

    plan: PlanT  # type: ignore[misc]  # a tuple cannot change, so it may be covariant
    quick: Quick
    size: PlanSize


@dataclasses.dataclass(frozen=True, eq=False)
class PlanFront(Generic[PlanT]):
    """The trade-off of plans between size, time and memory."""

    #: every plan that was considered, the best first
    rows: tuple[FrontRow[PlanT], ...]

    @functools.cached_property
    def kept(self) -> tuple[FrontRow[PlanT], ...]:
        """The plans that no other beats in time, memory and size alike, the smallest first.

        At equal memory, each further rule or place gains at least ``SMALLEST_GAIN`` of C(s).
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
    """A sharding by the classes of ``_Folded``: K classes of ops, L classes of values."""

    ops: np.ndarray  #: [K, A]
    values: np.ndarray  #: [L, A]

    def copy(self) -> _FoldedPlan:
        return _FoldedPlan(self.ops.copy(), self.values.copy())


class _Folded:
    """A program folded into classes of ops and values that all given shardings split alike."""

    def __init__(self, problem: Problem, shardings: Sequence[Sharding]) -> None:
        self.problem, self.program = problem, problem.analysis.program
        program, space = self.program, problem.space
        first_name = program.factor_ptr[:-1, None]
        like_op = problem.folded.memory.like_op
        result_index = np.arange(program.n_values) - program.result_ptr[program.value_op]
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
            result_index,
            *value_columns,
        )
        self.alike: Alike = by_classes(ops, values, space.op_effects, space.value_effects)
        self.repricer = Repricer(problem.prices.folded(self.alike))
        self.pricer = problem.pricer()
        #: indices of the op rows, then of the value rows, sorted in program order
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
        """Does the product of the axes on each factor, and on each dim, divide its size?"""
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
            split = cut[:, axis]
            ways = np.where(cut == split[:, None], self.axis_size, 1).prod(axis=1)
            row_size = sizes[np.where(split >= 0, row_of_size[:, axis], 0)]
            if ((split >= 0) & (row_size % ways != 0)).any():
                return False
        return True


class _Descent:
    """Moves one plan towards simpler ones.

    Attributes:
        rows: the plan at present, with its price ``quick``, its ``priced`` snapshot and ``size``.
        best: price of the best plan.
        keep: called with every plan that is taken.
        bound: highest C(s) that a plan may have.
        trials: plans priced in this step.
    """

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
        self.trials = 0

    def toward(self, target: _FoldedPlan, most_parts: int = _MOST_PARTS) -> None:
        """Take over the target's choices in parts, each only if it makes the plan simpler."""
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
        """[n, 2] (row, axis) where the plan differs from the target; by axis, in program order."""
        differs = np.concatenate([self.rows.ops != target.ops, self.rows.values != target.values])[
            self.folded.order
        ]
        axis, position = np.nonzero(differs.T)
        return np.stack([self.folded.order[position], axis], axis=1)

    def _take(self, target: _FoldedPlan, part: np.ndarray) -> None:
        """Take over one part if the plan then is simpler and keeps to the bound."""
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


def simplified(
    problem: Problem,
    best: ShardingPlan,
    trace: Trace,
    cancel: Callable[[], bool] | None = None,
) -> list[FrontRow]:
    """The best plan of a search and simpler ones, the best first; see the module docstring.

    Args:
        problem: the problem that was searched.
        best: the best plan of the search.
        trace: the trace of the search.
        cancel: polled; True ends the work and gives the plans made so far.
    """
    program, pricer = problem.analysis.program, problem.pricer()
    best_quick = price_of_sharding(problem, best.sharding)
    seen_plans = [of_actions(problem, actions) for actions in seen_actions(problem, trace)]
    plan_of_best_actions = of_actions(problem, own_actions(problem, best))
    rows: dict[bytes, FrontRow] = {}
    pins = None if problem.pins is None else problem.pins

    def keep_as(origin: ActionPlan) -> Callable[[Sharding, Quick, PlanSize], None]:
        def keep(sharding: Sharding, quick: Quick, size: PlanSize) -> None:
            if pins is None or not pins.broken(*sharding):
                key = sharding.op_factor.tobytes() + sharding.value_dim.tobytes()
                rows.setdefault(
                    key, FrontRow(_labelled_plan(problem, sharding, origin), quick, size)
                )

        return keep

    keep_as(plan_of_best_actions)(best.sharding, best_quick, plan_size(program, best.sharding))
    best_row = next(iter(rows.values()), None)
    if best_row is not None:  # keep the best plan itself, with its labels
        rows[next(iter(rows))] = best_row._replace(plan=best)
    for candidate in (*seen_plans, plan_of_best_actions):
        quick = price_of_sharding(problem, candidate.sharding)
        if quick.fits or not best_quick.fits:
            keep_as(candidate)(candidate.sharding, quick, plan_size(program, candidate.sharding))
    for origin in _origins(best.sharding, [plan_of_best_actions, *seen_plans], pricer.problem):
        _descend(problem, best, best_quick, origin=origin, keep_as=keep_as, cancel=cancel)
        if cancel is not None and cancel():
            break
    return sorted(rows.values(), key=_rank)


def _descend(
    problem: Problem,
    best: ShardingPlan,
    best_quick: Quick,
    *,
    origin: ActionPlan,
    keep_as: Callable[[ActionPlan], Callable[[Sharding, Quick, PlanSize], None]],
    cancel: Callable[[], bool] | None,
) -> None:
    """Move the best plan towards ``origin``, ``origin`` less one action, and whole arguments."""
    fewer = [
        of_actions(problem, origin.actions[:index] + origin.actions[index + 1 :]).sharding
        for index in range(len(origin.actions))
    ]
    whole_arguments = _whole_arguments(problem, best.sharding)
    folded = _Folded(problem, [best.sharding, origin.sharding, *fewer, *whole_arguments])
    descent = _Descent(folded, best.sharding, best_quick, keep_as(origin))
    best_rows, origin_rows = folded.rows(best.sharding), folded.rows(origin.sharding)
    # What an action or a whole argument changes is told by the plan that it was taken from
    changes = [(origin_rows, folded.rows(sharding)) for sharding in fewer]
    changes += [(best_rows, folded.rows(sharding)) for sharding in whole_arguments]
    for loss in _LOSS_LEVELS:
        descent.bound, descent.trials = best_quick.score * (1.0 + loss), 0
        descent.toward(origin_rows)
        for before, after in changes:
            if cancel is not None and cancel():
                return
            descent.toward(_changed(before, after, descent.rows), _FEW_PARTS)


def _changed(before: _FoldedPlan, after: _FoldedPlan, current: _FoldedPlan) -> _FoldedPlan:
    """``current`` with the changes from ``before`` to ``after``, where it equals ``before``."""
    ops = np.where((before.ops != after.ops) & (current.ops == before.ops), after.ops, current.ops)
    values = np.where(
        (before.values != after.values) & (current.values == before.values),
        after.values,
        current.values,
    )
    return _FoldedPlan(ops, values)


def _whole_arguments(problem: Problem, sharding: Sharding) -> list[Sharding]:
    """For each argument rule, the sharding with its arguments, and all values like them, whole."""
    program, label = problem.analysis.program, problem.space.alike.values.label
    shardings = []
    for rule in argument_rules(program, sharding):
        is_whole = np.isin(label, label[list(rule.arguments)])
        whole = sharding.copy()
        whole.value_dim[is_whole] = -1
        shardings.append(whole)
    return shardings


def simplest(rows: Sequence[FrontRow[PlanT]], within: float) -> FrontRow[PlanT]:
    """The smallest plan whose C(s) is at most ``within`` (a share) above the best plan's."""
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


def _labelled_plan(problem: Problem, sharding: Sharding, origin: ActionPlan) -> ShardingPlan:
    """A plan labelled with its actions and the number of places refined since."""
    differing = int(
        (sharding.op_factor != origin.sharding.op_factor).any(axis=1).sum()
        + (sharding.value_dim != origin.sharding.value_dim).any(axis=1).sum()
    )
    labels = (*pinned_texts(problem.space), *origin.actions)
    if differing:
        labels = (*labels, f"refined in {counted(differing, 'place')}")
    return make_plan(problem.analysis, problem.mesh, sharding.copy(), labels, key=sharding.key())


def _origins(
    best: Sharding, candidates: Sequence[ActionPlan], problem: Problem
) -> list[ActionPlan]:
    """The plan of actions nearest to the best plan, and the best of them if it is another."""
    distances = [distance(candidate.sharding, best) for candidate in candidates]
    prices = [price_of_sharding(problem, candidate.sharding) for candidate in candidates]
    nearest = candidates[int(np.argmin(distances))]
    cheapest = min(
        range(len(candidates)), key=lambda index: (not prices[index].fits, prices[index].score)
    )
    origins = [nearest]
    if candidates[cheapest].actions != nearest.actions:
        origins.append(candidates[cheapest])
    return origins
