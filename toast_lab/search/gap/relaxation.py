"""A problem as a graph of small choices whose prices add up to no more than any plan's time.

A node stands for a choice: for each row of ops the names along which it is split on all axes, for
each value the layout in which it is kept. A node has a price for each of its choices, an edge has
one for each pair of choices of a row of ops and a value:

* computing an op: a price of its row, plus the time that is added by an operand whose layout is not
  the best for the op (``relaxed_prices``);
* bringing a result from the layout in which its op leaves it to the layout in which it is kept:
  exactly the evaluator's price;
* bringing a value to a use: exactly the evaluator's price if the use shares its copy with no
  earlier one. If uses may share copies, each counts for a part, such that no copy counts for more
  than it costs.

For every plan of the space, the prices of its choices add up to at most its time;
``tests/search/gap`` tests this.

**The space** holds all plans that treat alike the ops and values that cost the same under every
plan (``mcts.refine.fine_rows``: repeated layers go together, arguments and results as their colours
do), that split only names and dims that colour actions may split, and that keep to the pins. All
plans that ``mcts``, ``beam``, ``exhaustive``, ``random`` and ``alpa`` can return lie in it;
``Relaxation.choice_of`` says whether a given plan does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.cost import price_inputs
from toast_lab.cost.device_parts import is_heavy
from toast_lab.cost.moving_prices import bringing_key
from toast_lab.cost.one_op import make_op_pricer
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.ragged import row_starts
from toast_lab.search.alpa.strategy_prices import (
    compute_times,
    equal_rows,
    op_pricer_for,
    result_labels,
    result_times,
    use_costs,
    want_labels,
)
from toast_lab.search.gap.relaxed_prices import Readings, computing_times
from toast_lab.search.mcts.refine import fine_rows
from toast_lab.search.menus import make_menus, packed_layouts
from toast_lab.sharding import steps as st
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.steps import LAYOUT_BITS

Check = Callable[[], None]
#: Most pairs of a row of an op and a layout of an operand; if there are more, the layouts of
#: operands are left out of its price.
_MOST_READINGS = 100_000
_MOST_ENTRIES = 40_000_000  # most entries of all edges: 320 MB; further prices are left out


class ChoiceEdge(NamedTuple):
    """The prices of pairs of choices of a row of ops and a value."""

    op: int  #: node
    value: int  #: node
    label: np.ndarray  #: [S] 0 to W - 1, by choice of the op: equal labels have equal prices
    time_s: np.ndarray  #: [W, T] seconds; infinite: impossible


class SharedUse(NamedTuple):
    """A use that may share the copy of an earlier one, or whose copy a later one may share."""

    edge: int
    times: float  #: number of uses that it stands for
    wanted: np.ndarray  #: [labels of the edge] index in ``cost_s`` of the layout that it wants
    cost_s: np.ndarray  #: [W, T] seconds to bring one copy; infinite: never wanted
    #: [W, T] the part of ``cost_s`` in the prices of the edge, once for each use that it stands for
    part_s: np.ndarray


class Sharing(NamedTuple):
    """The uses of one value that may share copies.

    The parts for which the uses count are free within limits. The earliest use that wants a copy
    pays for it, and is among the earlier uses of each later one that shares the copy. So the parts
    are valid if ``shares @ part_s <= cost_s`` for each layout wanted and kept.
    """

    value: int  #: node
    uses: list[SharedUse]
    shares: np.ndarray  #: [uses, uses] ``[i, j]``: how many uses like j may share the copy of i


@dataclasses.dataclass(frozen=True, eq=False)
class Relaxation:
    """Choices (``K`` rows of ops, then ``N - K`` values) and their prices, in seconds."""

    alike: Alike  #: the rows of the space
    folded: PriceInputs  #: the program folded to these rows
    menus: list[np.ndarray]  #: K of [S, A] int32 names of the row's first op, -1: none
    layouts: list[np.ndarray]  #: N - K of [T] int64 packed layouts, ascending
    value_node: np.ndarray  #: [V'] node of each value of the folded program, -1: constant
    value_menus: list[np.ndarray]  #: L of [T, A] int8 dims that each row of values may have
    time_s: list[np.ndarray]  #: N of [S] or [T] prices of the choices of each node
    edges: list[ChoiceEdge]
    sharings: list[Sharing]
    rank: np.ndarray  #: [N] position of each node in the program
    whole: bool  #: False: some prices were left out to save time or memory

    def price_s(self, choice: np.ndarray) -> float:
        """The least seconds of a choice for each node."""
        total = sum(
            float(times[index]) for times, index in zip(self.time_s, choice.tolist(), strict=True)
        )
        return total + sum(
            float(edge.time_s[edge.label[choice[edge.op]], choice[edge.value]])
            for edge in self.edges
        )

    def choice_of(self, op_factor: np.ndarray, value_dim: np.ndarray) -> np.ndarray | None:
        """[N] the choices of a plan; None if it is not in the space.

        Args:
            op_factor: [O, A] of the plan.
            value_dim: [V, A] of the plan.

        Raises:
            InvalidProblem: the plan is of another program or mesh.
        """
        expected = (len(self._name_starts), len(self._constant))
        if (len(op_factor), len(value_dim)) != expected or (
            op_factor.shape[1] != len(self.folded.axis_size)
        ):
            raise InvalidProblem(
                f"the plan is of another program or mesh: it has {len(op_factor)} ops, "
                f"{len(value_dim)} values and {op_factor.shape[1]} mesh axes, but this program "
                f"has {expected[0]} ops, {expected[1]} values and {len(self.folded.axis_size)} "
                "mesh axes"
            )
        alike, tables = self.alike, self.folded.tables
        ops, values = op_factor[alike.ops.first], value_dim[alike.values.first]
        starts = self._name_starts
        is_computed = np.arange(len(op_factor)) >= self._n_arguments
        unfolded = ops[alike.ops.label]
        unfolded = np.where(
            unfolded >= 0,
            unfolded + (starts - starts[alike.ops.first[alike.ops.label]])[:, None],
            -1,
        )
        if (unfolded != op_factor)[is_computed].any() or (
            (values[alike.values.label] != value_dim) & ~self._constant[:, None]
        ).any():
            return None
        choice = np.zeros(len(self.time_s), np.int64)
        for node, menu in enumerate(self.menus):
            rows = np.flatnonzero((menu == ops[node]).all(axis=1))
            if not len(rows):
                return None
            choice[node] = rows[0]
        for row, menu in enumerate(self.value_menus):
            if not (menu == values[row]).all(axis=1).any():
                return None
        kept = st.kept_layouts(tables, ops, values)
        for value, node in enumerate(self.value_node.tolist()):
            if node >= 0:
                layouts = self.layouts[node - len(self.menus)]
                index = int(np.searchsorted(layouts, kept[value]))
                if index == len(layouts) or layouts[index] != kept[value]:
                    return None
                choice[node] = index
        return choice

    _name_starts: np.ndarray  #: [O] first name of each op of the program
    _constant: np.ndarray  #: [V] values of the program that are made of constants alone
    _n_arguments: int


def relax(
    problem: Problem,
    check: Check = lambda: None,
    enough: Callable[[], bool] = lambda: False,
) -> Relaxation:
    """Split the prices of a problem's plans into prices of small choices.

    Args:
        problem: program, mesh, machine, price list and pins.
        check: called regularly; may raise to end the work.
        enough: polled; once True, prices that are still missing are left out.
    """
    return _RelaxationBuilder(problem, check, enough).relaxation()


class _RelaxationBuilder:
    """Builds a ``Relaxation``."""

    def __init__(self, problem: Problem, check: Check, enough: Callable[[], bool]) -> None:
        self.problem, self.check, self.enough = problem, check, enough
        self.n_entries, self.whole = 0, True
        self.alike = fine_rows(problem)
        self.folded = problem.prices.folded(self.alike)
        self.tables, self.facts = self.folded.tables, self.folded.facts
        self.axis_size = problem.mesh.array()
        self.n_rows = len(self.alike.ops.first)
        # A copy, since the facts are changed temporarily while an op is priced.
        facts = self.facts._replace(
            value=self.facts.value._replace(bytes=self.facts.value.bytes.copy()),
            use=self.facts.use._replace(
                sent=self.facts.use.sent.copy(),
            ),
        )
        listed = self.folded.listed
        unlisted = price_inputs.no_listed_times(len(self.tables.op_row))._replace(
            compute_scale=listed.compute_scale, moving_scale=listed.moving_scale
        )
        # The times that operands add one by one may be summed only if all traffic is to one memory,
        # so vector memory is infinitely fast here. A gather ahead is hidden as far as it can be,
        # however long the op computes.
        rates = self.folded.rates._replace(near_bytes_per_s=np.inf, ahead_of=np.inf)
        self.rules = make_op_pricer(
            self.folded._replace(facts=facts, listed=unlisted, rates=rates), self.n_rows
        )
        self.op_pricer = op_pricer_for(self.folded._replace(rates=rates), self.n_rows)
        # If an op's sums may be scattered piece by piece, its computing time depends on the layout
        # of its result: the time above the minimum is counted with the result. If a price list
        # applies as well, a lower bound is the time on a machine whose memory and kernels take no
        # time.
        self.after_s: dict[int, np.ndarray] = {}
        rates = rates._replace(product_bytes_per_s=np.inf, op_overhead_s=0.0)
        at_once = self.folded._replace(rates=rates)
        self.sent_at_once = op_pricer_for(at_once, self.n_rows)
        self.ruled_at_once = op_pricer_for(at_once._replace(listed=unlisted), self.n_rows)
        ring_devices = self.folded.rates.ring_devices
        self.in_rings = (self.facts.op.ring_left_dims >= 0) & (
            0.0 < ring_devices < problem.mesh.n_devices
        )
        #: (op node, value node) -> prices by row and layout
        self.pairs: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self.sharings: list[tuple[int, list[tuple], np.ndarray]] = []

    def relaxation(self) -> Relaxation:
        self.menus, self.value_menus = make_menus(
            self.problem, self.alike.ops, self.alike.values, self.check
        )
        self._layouts()
        self.time_s = [np.zeros(len(menu)) for menu in (*self.menus, *self.layouts)]
        rank = np.full(len(self.time_s), np.inf)
        tables = self.tables
        for priced in (self._compute, self._results):
            for op in range(tables.n_arguments, len(tables.op_row)):
                self.check()
                if self._goes_on():
                    priced(op)
        self._uses()
        for op in range(len(tables.op_row)):
            row = int(tables.op_row[op])
            rank[row] = min(rank[row], op)
        for value, node in enumerate(self.value_node.tolist()):
            if node >= 0:
                rank[node] = min(rank[node], tables.value_op[value] + 0.5)
        program = self.problem.analysis.program
        edges: list[ChoiceEdge] = []
        edge_of: dict[tuple[int, int], int] = {}
        part_labels: dict[tuple[int, int], np.ndarray] = {}
        for nodes, parts in self.pairs.items():
            edge_of[nodes] = len(edges)
            edge, part_labels[nodes] = _edge(*nodes, parts)
            edges.append(edge)
        sharings = [
            Sharing(
                value,
                [
                    SharedUse(
                        edge_of[nodes],
                        times,
                        wanted[part_labels[nodes][:, part_index]],
                        cost_s,
                        part_s=part_s,
                    )
                    for nodes, part_index, times, wanted, cost_s, part_s in uses
                ],
                shares,
            )
            for value, uses, shares in self.sharings
        ]
        return Relaxation(
            alike=self.alike,
            folded=self.folded,
            menus=self.menus,
            layouts=self.layouts,
            value_node=self.value_node,
            value_menus=self.value_menus,
            time_s=self.time_s,
            edges=edges,
            sharings=sharings,
            rank=rank,
            whole=self.whole,
            _name_starts=np.asarray(program.factor_ptr[:-1], np.int64),
            _constant=np.asarray(program.value_is_constant),
            _n_arguments=program.n_arguments,
        )

    def _goes_on(self) -> bool:
        """Is there time and memory for more prices?"""
        self.whole = self.whole and not self.enough() and self.n_entries < _MOST_ENTRIES
        return self.whole

    # -- choices ----------------------------------------------------------------------------------
    def _layouts(self) -> None:
        """Find the node of each value and the layouts in which it may be kept.

        Arguments and results of the program are kept as their row says. All other values are kept
        as their row says, or as their op leaves them, or whole on axes on which the op leaves
        partial sums (``steps.kept_layouts_into``).
        """
        tables = self.tables
        is_inner = (
            ~tables.value_constant & (tables.value_op >= tables.n_arguments) & ~tables.value_output
        )
        self.value_node = np.full(len(tables.value_op), -1, np.int64)
        self.layouts: list[np.ndarray] = []
        self.by_row: dict[int, np.ndarray] = {}  # layouts to which each value may be brought
        node_of_row: dict[int, int] = {}
        for value in np.flatnonzero(~tables.value_constant).tolist():
            row = int(tables.value_row[value])
            layouts = packed_layouts(self.value_menus[row])
            if not is_inner[value]:
                if row not in node_of_row:
                    node_of_row[row] = self.n_rows + len(self.layouts)
                    self.layouts.append(np.unique(layouts))
                self.value_node[value] = node_of_row[row]
                continue
            label = result_labels(self.op_pricer, value, self.menus[tables.value_owner[value]])
            natural, partial = self._split_labels(label)
            masks = np.unique(partial)
            whole_layouts = [
                layouts & ~self._digits(int(mask) & axes)
                for mask in masks.tolist()
                for axes in range(1, 1 << len(self.axis_size))
                if mask & axes
            ]
            offered = np.unique(np.concatenate([layouts, *whole_layouts]))
            self.by_row[value] = offered
            self.value_node[value] = self.n_rows + len(self.layouts)
            self.layouts.append(np.unique(np.concatenate([offered, natural])))

    def _digits(self, mask: int) -> int:
        """The bits of a packed layout that hold the dims of the axes of a mask."""
        return sum(
            31 << LAYOUT_BITS * axis for axis in range(len(self.axis_size)) if mask >> axis & 1
        )

    def _split_labels(self, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split ``result_labels`` into (layouts, masks of partial axes)."""
        n_bits = LAYOUT_BITS * len(self.axis_size)
        return label & ((1 << n_bits) - 1), label >> n_bits

    def _layouts_of(self, value: int) -> np.ndarray:
        return self.layouts[self.value_node[value] - self.n_rows]

    # -- prices -----------------------------------------------------------------------------------
    def _add(
        self,
        op_node: int,
        value_node: int,
        label: np.ndarray,
        time_s: np.ndarray,
        *,
        always: bool = False,
    ) -> None:
        """Add prices [W, T] of labels [S] of a row of ops and layouts of a value.

        Prices that are all 0 are left out, unless ``always``.
        """
        if always or time_s.any():
            self.n_entries += time_s.size
            self.pairs.setdefault((op_node, value_node), []).append((label, time_s))

    def _compute(self, op: int) -> None:
        tables, facts = self.tables, self.facts
        row = int(tables.op_row[op])
        uses = np.arange(tables.use_ptr[op], tables.use_ptr[op + 1])
        results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
        if facts.op.free[op]:
            return
        if (tables.use_owner[tables.use_want[uses]] != row).any() or (
            tables.value_owner[results] != row
        ).any():
            return  # its row alone does not determine its time; 0 is a lower bound
        menu = self.menus[row]
        sources = facts.root[uses].astype(np.int64)
        roots = np.unique(sources[(facts.use.reads[uses] > 0) & (self.value_node[sources] >= 0)])
        layouts = [self._layouts_of(root) for root in roots.tolist()]
        coarse = len(menu) * sum(map(len, layouts)) > _MOST_READINGS
        if coarse:
            finest = sum(1 << LAYOUT_BITS * axis for axis in range(len(self.axis_size)))
            layouts = [np.asarray([finest], np.int64) for _ in layouts]
        ptr = row_starts([*map(len, layouts)])
        flat = np.concatenate([*layouts, np.zeros(0, np.int64)]).astype(np.int64)
        values = tables.use_value[uses]
        fewest_bytes = np.minimum(
            facts.value.bytes[values], facts.use.sent[uses] * tables.value_bytes[values]
        )
        least_s, more_s = np.zeros(len(menu)), np.zeros(len(menu) * len(flat))
        readings = Readings(roots, ptr, flat, fewest_bytes, coarse=coarse)
        listed, times = self.folded.listed, float(self.folded.times[op])
        in_ring, is_listed = bool(self.in_rings[op]), bool(listed.begin[op] < listed.end[op])
        # No other time depends on the layout to which a result goes.
        reads_kept = is_heavy.py_func(facts, op) or facts.op.joins[op]
        needs_kept = reads_kept and not (in_ring and is_listed)
        kept = self._layouts_of(int(results[0])) if needs_kept else np.zeros(0, np.int64)
        kept_own_s, kept_move_s = np.zeros((2, len(menu), len(kept)))
        computing_times(
            self.rules,
            op,
            menu,
            readings,
            least_s,
            more_s,
            kept=kept,
            kept_own_s=kept_own_s.reshape(-1),
            kept_move_s=kept_move_s.reshape(-1),
        )
        if in_ring:
            summed = self._summed_in_ring(op, menu)
            more_s.reshape(len(menu), len(flat))[summed] = 0.0
            if is_listed:
                at_once_s = compute_times(self.ruled_at_once, op, menu[summed])
                least_s[summed] = np.minimum(least_s[summed], at_once_s)
            else:
                kept_own_s += kept_move_s
        if len(kept):
            least_s = np.minimum(least_s, kept_own_s.min(axis=1))
            self.after_s[op] = kept_own_s - least_s[:, None]
        if is_listed:
            # An entry holds for one combination of the layouts of all operands and results. Which
            # entry applies is left open: the bound is the least of the rule's time and all entries.
            entries = slice(int(listed.begin[op]), int(listed.end[op]))
            least_s = np.minimum(least_s, listed.time_s[entries].min())
            more_s[:] = 0.0
            self.after_s.pop(op, None)
        self.time_s[row] += times * least_s
        if not more_s.any():
            return
        added_s = times * more_s.reshape(len(menu), len(flat))
        for index, root in enumerate(roots.tolist()):
            added_by_root_s = added_s[:, ptr[index] : ptr[index + 1]]
            self._add(row, int(self.value_node[root]), np.arange(len(menu)), added_by_root_s)

    def _summed_in_ring(self, op: int, menu: np.ndarray) -> np.ndarray:
        """[S] bool: rows of a product that sum over a group large enough for a ring."""
        value = int(self.tables.result[self.tables.result_ptr[op]])
        _, partial = self._split_labels(result_labels(self.op_pricer, value, menu))
        devices = np.ones(len(menu))
        for axis, size in enumerate(self.axis_size):
            devices[(partial >> axis) & 1 == 1] *= size
        return devices >= self.folded.rates.ring_devices

    def _results(self, op: int) -> None:
        tables = self.tables
        results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
        # Alike results are one value, whose prices count for all of them.
        for value in np.unique(results).tolist():
            if tables.value_constant[value]:
                continue
            owner = int(tables.value_owner[value])
            layouts = self._layouts_of(value)
            label = result_labels(self.op_pricer, value, self.menus[owner])
            if op in self.after_s and self.in_rings[op]:
                move_s = self.after_s[op]
            else:
                op_pricer = self.sent_at_once if self.in_rings[op] else self.op_pricer
                move_s, computing_s, _ = result_times(
                    op_pricer, op, value, self.menus[owner], layouts
                )
                move_s += computing_s if self.in_rings[op] else self.after_s.get(op, 0.0)
            first, row = equal_rows(label, move_s)
            distinct, move_s = label[first], move_s[first]
            move_s *= self.folded.times[op]
            if value in self.by_row:
                # A layout that the value's row cannot give is possible only if the op leaves it so.
                natural, _ = self._split_labels(distinct)
                is_not_offered = ~np.isin(layouts, self.by_row[value])[None, :]
                move_s[is_not_offered & (natural[:, None] != layouts[None, :])] = np.inf
            self._add(owner, int(self.value_node[value]), row, move_s)

    def _uses(self) -> None:
        """Add the prices of bringing values to uses; a shared copy counts in parts."""
        tables = self.tables
        wants = [
            want_labels(self.op_pricer, want, self.menus[owner])
            for want, owner in enumerate(tables.use_owner.tolist())
        ]
        together = self._used_together()
        uses_of: dict[int, list[int]] = {}
        for use, value in enumerate(tables.use_value.tolist()):
            # Ops before ``n_arguments`` are arguments of the folded program: nothing to price.
            if not tables.value_constant[value] and tables.use_op[use] >= tables.n_arguments:
                uses_of.setdefault(value, []).append(use)
        moves: dict[tuple[object, ...], np.ndarray] = {}
        for value, uses in uses_of.items():
            self.check()
            if not self._goes_on():
                return
            layouts = self._layouts_of(value)
            uses = [
                use
                for use in uses
                # A use whose very want occurs earlier always shares that copy.
                if tables.use_want[use] not in self._earlier(use)
            ]
            distinct = [np.unique(wants[tables.use_want[use]]) for use in uses]
            wanted = np.unique(np.concatenate(distinct)) if uses else np.zeros(0, np.int64)
            cost = np.full((len(uses), len(wanted), len(layouts)), np.inf)
            for index, use in enumerate(uses):
                op = int(tables.use_op[use])
                cost[index, np.searchsorted(wanted, distinct[index])] = self._moves(
                    moves, op, use, distinct[index], layouts=layouts
                )
            shares = self._shares(uses, together)
            shared = (shares + shares.T - 2 * np.eye(len(uses))).any(axis=1)
            part_s = _even_parts(cost, shares)
            members = []
            for index, use in enumerate(uses):
                want = int(tables.use_want[use])
                nodes = (int(tables.use_owner[want]), int(self.value_node[value]))
                rows = np.searchsorted(wanted, distinct[index])
                times = float(self.folded.times[tables.use_op[use]])
                label = np.searchsorted(distinct[index], wants[want])
                if shared[index]:
                    part_index = len(self.pairs.get(nodes, []))
                    members.append((nodes, part_index, times, rows, cost[index], part_s[index]))
                self._add(*nodes, label, times * part_s[index, rows], always=bool(shared[index]))
            if members:
                kept = np.flatnonzero(shared)
                self.sharings.append(
                    (int(self.value_node[value]), members, shares[np.ix_(kept, kept)])
                )

    def _earlier(self, use: int) -> list[int]:
        tables = self.tables
        return tables.earlier[tables.earlier_begin[use] : tables.earlier_end[use]].tolist()

    def _moves(
        self,
        known: dict[tuple[object, ...], np.ndarray],
        op: int,
        use: int,
        wanted: np.ndarray,
        layouts: np.ndarray,
    ) -> np.ndarray:
        """[W, T] seconds of one use, looked up if an equal tensor was moved before."""
        key: tuple[object, ...] = (
            *bringing_key(self.op_pricer.inputs, op, use),
            wanted.tobytes(),
            layouts.tobytes(),
        )
        if key not in known:
            known[key], _ = use_costs(self.op_pricer, op, use, wanted, layouts)
        return known[key]

    def _used_together(self) -> np.ndarray:
        """[U'] for each use of the folded program, the most uses of one value that are like it."""
        program, like_use = self.problem.analysis.program, self.folded.memory.like_use
        pairs, counts = np.unique(
            np.stack([like_use.astype(np.int64), np.asarray(program.use_value, np.int64)]),
            axis=1,
            return_counts=True,
        )
        most = np.ones(len(self.tables.use_value), np.int64)
        np.maximum.at(most, pairs[0], counts)
        return most

    def _shares(self, uses: list[int], together: np.ndarray) -> np.ndarray:
        """[uses, uses] ``[i, j]``: the number of uses like j that may share the copy of use i.

        Args:
            uses: uses of one value.
            together: see ``_used_together``.
        """
        wants = [int(self.tables.use_want[use]) for use in uses]
        shares = np.eye(len(uses))
        for index, use in enumerate(uses):
            for want in self._earlier(use):
                for other_index in range(len(uses)):
                    if wants[other_index] == want and other_index != index:
                        shares[other_index, index] = together[use]
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


def _edge(
    op: int, value: int, parts: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[ChoiceEdge, np.ndarray]:
    """The edge with the sum of some prices, and the label [W, parts] of each price in it."""
    labels = np.stack([label for label, _ in parts], axis=1)
    distinct, inverse = np.unique(labels, axis=0, return_inverse=True)
    total = sum(time_s[distinct[:, index]] for index, (_, time_s) in enumerate(parts))
    edge = ChoiceEdge(
        op=op, value=value, label=inverse.reshape(-1), time_s=np.asarray(total, np.float64)
    )
    return edge, distinct
