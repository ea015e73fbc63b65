"""The terms of a relaxation: what prices are added for which choices, and why no plan is below.

* Computing an op: a price of its row, plus the time that is added by an operand whose layout is not
  the best for the op (``least_times``).
* Bringing a result from the layout in which its op leaves it to the one in which it is kept:
  exactly the evaluator's price.
* Bringing a value to a use: exactly the evaluator's price if the use shares its copy with no
  earlier one. If uses may share copies, each counts for a part, such that no copy counts for more
  than it costs.

A further term is a function that adds prices to a ``RelaxationBuilder``, and an entry of ``TERMS``.
Start reading at ``relax``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from toast_lab.cost import price_inputs
from toast_lab.cost.device_parts import is_heavy
from toast_lab.cost.one_op import make_op_pricer
from toast_lab.cost.problem import Problem
from toast_lab.ragged import row_starts
from toast_lab.search.gap.relaxation import CopyPart, Relaxation, RelaxationBuilder
from toast_lab.search.terms.grain_rows import rows_of_grain
from toast_lab.search.terms.menus import make_menus
from toast_lab.search.terms.op_prices import (
    Readings,
    compute_times,
    equal_rows,
    least_times,
    op_pricer_for,
    result_times,
)
from toast_lab.sharding.steps import LAYOUT_BITS

#: Most pairs of a row of an op and a layout of an operand; if there are more, the layouts of
#: operands are left out of its price.
_MOST_READINGS = 100_000


def computing(builder: RelaxationBuilder) -> None:
    """Add the prices of computing each op, and of bringing its results to where they are kept."""
    priced = _Computing(builder)
    for op in range(builder.tables.n_arguments, len(builder.tables.op_row)):
        builder.check()
        if not builder.goes_on():
            return
        priced.add_results(op, priced.add_op(op))


class _Computing:
    """The prices of ops and of their results."""

    def __init__(self, builder: RelaxationBuilder) -> None:
        self.builder, self.folded = builder, builder.folded
        facts, listed, rates = builder.facts, self.folded.listed, self.folded.rates
        unlisted = price_inputs.no_listed_times(len(builder.tables.op_row))._replace(
            compute_scale=listed.compute_scale, moving_scale=listed.moving_scale
        )
        # The times that operands add one by one may be summed only if all traffic is to one memory,
        # so vector memory is infinitely fast here.
        rates = rates._replace(near_bytes_per_s=np.inf, ahead_of=np.inf)
        n_rows = len(builder.menus)
        by_rule = self.folded._replace(listed=unlisted, rates=rates)
        self.rules = make_op_pricer(by_rule, n_rows)
        # A machine on which no product waits for operands in windows has one price for both.
        unwaited = by_rule._replace(rates=rates._replace(near_room_bytes=np.inf))
        waits = min(rates.tile, rates.near_room_bytes) > 0.0
        self.unwaited = make_op_pricer(unwaited, n_rows) if waits else None
        self.moves = op_pricer_for(self.folded._replace(rates=rates), n_rows)
        # If an op's sums may be scattered piece by piece, its computing time depends on the layout
        # of its result: the time above the minimum is counted with the result. If a price list
        # applies as well, a lower bound is the time on a machine whose memory and kernels take no
        # time.
        rates = rates._replace(product_bytes_per_s=np.inf, op_overhead_s=0.0)
        at_once = self.folded._replace(rates=rates)
        self.sent_at_once = op_pricer_for(at_once, n_rows)
        self.ruled_at_once = op_pricer_for(at_once._replace(listed=unlisted), n_rows)
        ring_devices = self.folded.rates.ring_devices
        self.in_rings = (facts.op.ring_left_dims >= 0) & (
            0.0 < ring_devices < builder.problem.mesh.n_devices
        )

    def add_op(self, op: int) -> np.ndarray | None:
        """Price an op; gives the [S, T] seconds that the layout of its first result adds."""
        builder, tables, facts = self.builder, self.builder.tables, self.builder.facts
        row = int(tables.op_row[op])
        uses = np.arange(tables.use_ptr[op], tables.use_ptr[op + 1])
        results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
        if facts.op.free[op]:
            return None
        if (tables.use_owner[tables.use_want[uses]] != row).any() or (
            tables.value_owner[results] != row
        ).any():
            return None  # its row alone does not determine its time; 0 is a lower bound
        menu, listed = builder.menus[row], self.folded.listed
        in_ring, is_listed = bool(self.in_rings[op]), bool(listed.begin[op] < listed.end[op])
        # No other time depends on the layout to which a result goes.
        reads_kept = is_heavy.py_func(facts, op) or facts.op.joins[op]
        needs_kept = reads_kept and not (in_ring and is_listed)
        kept = builder.layouts_of(int(results[0])) if needs_kept else np.zeros(0, np.int64)
        readings = self._readings(op, uses)
        least_s, more_s, kept_s, kept_move_s = self._least_times(op, readings, kept)
        if in_ring:
            summed = self._summed_in_ring(op, menu)
            more_s[summed] = 0.0
            if is_listed:
                at_once_s = compute_times(self.ruled_at_once, op, menu[summed])
                least_s[summed] = np.minimum(least_s[summed], at_once_s)
            kept_s += kept_move_s
        if is_listed:
            # An entry holds for one combination of the layouts of all operands and results. Which
            # entry applies is left open: the bound is the least of the rule's time and all entries.
            entries = slice(int(listed.begin[op]), int(listed.end[op]))
            least_s = np.minimum(least_s, listed.time_s[entries].min())
            more_s[:] = 0.0
        times = float(self.folded.times[op])
        builder.add_to(row, times * least_s)
        for index, root in enumerate(readings.roots.tolist()):
            columns = slice(readings.layout_ptr[index], readings.layout_ptr[index + 1])
            added_s = times * more_s[:, columns]
            builder.add(row, int(builder.value_node[root]), np.arange(len(menu)), added_s)
        return kept_s - least_s[:, None] if len(kept) and not is_listed else None

    def _least_times(
        self, op: int, readings: Readings, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """See ``least_times``, also for products that wait for operands in windows.

        Multiplying takes longer if both operands are too large for vector memory, by what each
        brings, and memory may be busy longer than that or not: so what one operand adds depends on
        the other. Here only the cheapest reading waits, and others add what memory is busy beyond.
        """
        builder = self.builder
        menu = builder.menus[builder.tables.op_row[op]]
        least_s, more_s, kept_s, move_s = least_times(self.rules, op, menu, readings, kept)
        if self.unwaited is not None and builder.facts.op.rows[op] > 0.0:
            other_s, more_s, other_kept_s, _ = least_times(self.unwaited, op, menu, readings, kept)
            waited_s = np.hstack([(least_s - other_s)[:, None], kept_s - other_kept_s])
            more_s = np.maximum(0.0, more_s - waited_s.max(axis=1)[:, None])
        return least_s, more_s, kept_s, move_s

    def _readings(self, op: int, uses: np.ndarray) -> Readings:
        """The layouts of an op's operands; if there are too many, one finer than all of them."""
        builder, tables, facts = self.builder, self.builder.tables, self.builder.facts
        values, sources = tables.use_value[uses], facts.root[uses].astype(np.int64)
        is_constant, is_view = tables.value_constant[values], sources != values
        is_read = (facts.use.reads[uses] > 0) & (builder.value_node[sources] >= 0)
        roots = np.unique(sources[is_read])
        layouts = [builder.layouts_of(root) for root in roots.tolist()]
        n_strategies = len(builder.menus[tables.op_row[op]])
        coarse = n_strategies * sum(map(len, layouts)) > _MOST_READINGS
        if coarse:
            finest = sum(1 << LAYOUT_BITS * axis for axis in range(len(builder.axis_size)))
            roots = np.setdiff1d(sources[is_read & is_view], values)
            layouts = [np.asarray([finest], np.int64) for _ in roots]
        return Readings(
            roots,
            row_starts([*map(len, layouts)]),
            np.concatenate([*layouts, np.zeros(0, np.int64)]).astype(np.int64),
            is_open=(is_view | coarse) & ~is_constant,
        )

    def _summed_in_ring(self, op: int, menu: np.ndarray) -> np.ndarray:
        """[S] bool: rows of a product that sum over a group large enough for a ring."""
        builder = self.builder
        value = int(builder.tables.result[builder.tables.result_ptr[op]])
        _, partial = builder.split_labels(builder.exact.left(value))
        devices = np.ones(len(menu))
        for axis, size in enumerate(builder.axis_size):
            devices[(partial >> axis) & 1 == 1] *= size
        return devices >= self.folded.rates.ring_devices

    def add_results(self, op: int, after_s: np.ndarray | None) -> None:
        """Price the results of an op in each layout; ``after_s`` is what ``add_op`` gave."""
        builder, tables, in_ring = self.builder, self.builder.tables, bool(self.in_rings[op])
        results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
        # Alike results are one value, whose prices count for all of them.
        for value in np.unique(results).tolist():
            if tables.value_constant[value]:
                continue
            owner, layouts = int(tables.value_owner[value]), builder.layouts_of(value)
            label = builder.exact.left(value)
            if after_s is None or not in_ring:
                op_pricer = self.sent_at_once if in_ring else self.moves
                move_s, computing_s, _ = result_times(
                    op_pricer, op, value, builder.menus[owner], layouts
                )
                if in_ring:
                    move_s += computing_s
                elif after_s is not None:
                    move_s += after_s
            else:
                move_s = after_s
            first, row = equal_rows(label, move_s)
            distinct, move_s = label[first], move_s[first] * self.folded.times[op]
            if value in builder.by_row:
                # A layout that the value's row cannot give is possible only if the op leaves it so.
                natural, _ = builder.split_labels(distinct)
                is_not_offered = ~np.isin(layouts, builder.by_row[value])[None, :]
                move_s[is_not_offered & (natural[:, None] != layouts[None, :])] = np.inf
            builder.add(owner, int(builder.value_node[value]), row, move_s)


def bringing(builder: RelaxationBuilder) -> None:
    """Add the prices of bringing values to uses; a copy that uses may share counts in parts."""
    tables, wants = builder.tables, builder.exact.wants
    together = _used_together(builder)
    uses_of: dict[int, list[int]] = {}
    for use, value in enumerate(tables.use_value.tolist()):
        # Ops before ``n_arguments`` are arguments of the folded program: nothing to price. A use
        # whose very want occurs earlier always shares that copy.
        if (
            not tables.value_constant[value]
            and tables.use_op[use] >= tables.n_arguments
            and tables.use_want[use] not in _earlier(builder, use)
        ):
            uses_of.setdefault(value, []).append(use)
    for value, uses in uses_of.items():
        builder.check()
        if not builder.goes_on():
            return
        layouts, node = builder.layouts_of(value), int(builder.value_node[value])
        distinct = [np.unique(wants[tables.use_want[use]]) for use in uses]
        wanted = np.unique(np.concatenate(distinct))
        cost_s = np.full((len(uses), len(wanted), len(layouts)), np.inf)
        for index, use in enumerate(uses):
            cost_s[index, np.searchsorted(wanted, distinct[index])] = builder.exact.bringing_s(
                int(tables.use_op[use]), use, distinct[index], layouts
            )
        shares = _shares(builder, uses, together)
        is_shared = (shares + shares.T - 2 * np.eye(len(uses))).any(axis=1)
        part_s = _even_parts(cost_s, shares)
        parts = []
        for index, use in enumerate(uses):
            want = int(tables.use_want[use])
            part = CopyPart(
                nodes=(int(tables.use_owner[want]), node),
                label=np.searchsorted(distinct[index], wants[want]),
                wanted=np.searchsorted(wanted, distinct[index]),
                times=float(builder.folded.times[tables.use_op[use]]),
                cost_s=cost_s[index],
                part_s=part_s[index],
            )
            if is_shared[index]:
                parts.append(part)
            else:
                builder.add(*part.nodes, part.label, part.times * part.part_s[part.wanted])
        if parts:
            builder.add_shared(node, parts, shares[np.ix_(is_shared, is_shared)])


def _earlier(builder: RelaxationBuilder, use: int) -> list[int]:
    tables = builder.tables
    return tables.earlier[tables.earlier_begin[use] : tables.earlier_end[use]].tolist()


def _used_together(builder: RelaxationBuilder) -> np.ndarray:
    """[U'] for each use of the folded program, the most uses of one value that are like it."""
    program, like_use = builder.problem.analysis.program, builder.folded.memory.like_use
    pairs, counts = np.unique(
        np.stack([like_use.astype(np.int64), np.asarray(program.use_value, np.int64)]),
        axis=1,
        return_counts=True,
    )
    most = np.ones(len(builder.tables.use_value), np.int64)
    np.maximum.at(most, pairs[0], counts)
    return most


def _shares(builder: RelaxationBuilder, uses: list[int], together: np.ndarray) -> np.ndarray:
    """[uses, uses] ``[i, j]``: the number of uses like j that may share the copy of use i.

    Args:
        builder: the choices.
        uses: uses of one value.
        together: see ``_used_together``.
    """
    wants = builder.tables.use_want[uses]
    shares = np.eye(len(uses))
    for index, use in enumerate(uses):
        shares[np.isin(wants, _earlier(builder, use)), index] = together[use]
    return shares


def _even_parts(cost_s: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """[uses, W, T] the part of its cost that each use counts for, if all that share count alike.

    Args:
        cost_s: [uses, W, T] seconds to bring one copy; infinite: never wanted.
        shares: see ``Sharing``.
    """
    is_wanted = np.isfinite(cost_s)
    even_s = cost_s / np.einsum("pu,uwt->pwt", shares, is_wanted.astype(np.float64))
    part_s = even_s.copy()
    for index in range(len(cost_s)):
        part_s = np.minimum(
            part_s, np.where((shares[index] > 0)[:, None, None], even_s[index], np.inf)
        )
    return np.where(is_wanted, part_s, 0.0)


#: Each adds its prices to a builder.
TERMS: tuple[Callable[[RelaxationBuilder], None], ...] = (computing, bringing)


def relax(
    problem: Problem,
    check: Callable[[], None] = lambda: None,
    enough: Callable[[], bool] = lambda: False,
    *,
    grain: str = "fine",
    min_names: int = 0,
    terms: Sequence[Callable[[RelaxationBuilder], None]] = TERMS,
) -> Relaxation:
    """Split the prices of a problem's plans into prices of small choices.

    Args:
        problem: program, mesh, machine, price list and pins.
        check: called regularly; may raise to end the work.
        enough: polled; once True, prices that are still missing are left out.
        grain: how finely ops and values are told apart, see ``rows_of_grain``.
        min_names: fewest names of a colour group that an action splits.
        terms: what prices count.
    """
    rows = rows_of_grain(problem, grain)
    menus = make_menus(problem, rows.ops, rows.values, check, min_names=min_names)
    builder = RelaxationBuilder(problem, rows, menus, check=check, enough=enough)
    for term in terms:
        term(builder)
    return builder.relaxation()
