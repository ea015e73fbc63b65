"""A problem as a graph of small choices whose prices add up to no more than any plan's time.

Nodes are what is chosen: for each row of ops the names that it is split along on all axes, for each
value the layout that it is kept in.  A node has a price for each of its choices, an edge one for
each pair of choices of a row of ops and a value:

* computing an op: a price of its row, and what reading an operand adds that lies otherwise than is
  best for it (``relaxed_prices``);
* bringing a result from how its op leaves it to how it is kept: exactly the evaluator's price;
* bringing a value to a use: exactly the evaluator's price, where the use shares its copy with no
  earlier one.  Where uses may share copies, each counts for a part such that no copy is counted for
  more than it costs.

Whatever plan of the space there is, the prices of its choices add up to at most its time: that is
what ``tests/search/gap`` holds them to.

**The space** is that of all plans that treat alike what costs the same under every plan
(``mcts.refine.fine_rows``: repeated layers go together, arguments and results as their colours do),
and split what colour actions may split, pins kept.  All that ``mcts``, ``beam``, ``exhaustive``,
``random`` and ``alpa`` can return lies in it; ``Relaxation.choice_of`` says of a plan whether it
does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.cost import price_inputs
from toast_lab.cost.one_op import make_bench
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.ragged import row_starts
from toast_lab.search.alpa.strategy_prices import (
    bench_for,
    compute_times,
    move_facts,
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
#: Pairs of a row of an op and a layout of what it reads; where there are more, how operands lie is
#: left out of its price.
_MOST_READINGS = 100_000
_MOST_ENTRIES = 40_000_000  # of all edges: 320 MB; prices beyond are left out


class ChoiceEdge(NamedTuple):
    """Prices of a row of ops and a value together."""

    op: int  #: node
    value: int  #: node
    label: np.ndarray  #: [S] what each row asks of the value or gives to it, 0 to W - 1
    time_s: np.ndarray  #: [W, T]; infinite: cannot be


class SharedUse(NamedTuple):
    """A use that may share the copy of an earlier one, or whose copy a later one may share."""

    edge: int
    times: float  #: how many uses it stands for
    wanted: np.ndarray  #: [labels of the edge] place of the layout that it wants in ``cost_s``
    cost_s: np.ndarray  #: [W, T] seconds of bringing one copy, infinite: it never wants that
    #: [W, T] what of that the prices of the edge have, once for each that it stands for
    part_s: np.ndarray


class Sharing(NamedTuple):
    """The uses of one value that may share copies.

    What uses count for may be chosen anew: a copy is paid for by the earliest use that wants it,
    and each later use that shares it finds that one among the wants before it.  So it is enough
    that ``shares @ part_s <= cost_s`` for each layout wanted and kept.
    """

    value: int  #: node
    uses: list[SharedUse]
    shares: np.ndarray  #: [uses, uses] how many of the second may take their copy from the first


@dataclasses.dataclass(frozen=True, eq=False)
class Relaxation:
    """Choices (``K`` rows of ops, then ``N - K`` values) and their prices, in seconds."""

    alike: Alike  #: the rows of the space
    folded: PriceInputs  #: the program folded to them
    menus: list[np.ndarray]  #: K of [S, A] int32 names of the row's first op, -1: none
    layouts: list[np.ndarray]  #: N - K of [T] int64 packed layouts, ascending
    value_node: np.ndarray  #: [V'] node of each value of the folded program, -1: constant
    value_menus: list[np.ndarray]  #: L of [T, A] int8 dims that each row of values may have
    time_s: list[np.ndarray]  #: N of [S] or [T]
    edges: list[ChoiceEdge]
    sharings: list[Sharing]
    rank: np.ndarray  #: [N] where each node stands in the program
    whole: bool  #: False: some prices were left out, for time or memory

    def price_s(self, choice: np.ndarray) -> float:
        """Seconds that a choice for each node takes at least."""
        total = sum(
            float(times[number]) for times, number in zip(self.time_s, choice.tolist(), strict=True)
        )
        return total + sum(
            float(edge.time_s[edge.label[choice[edge.op]], choice[edge.value]])
            for edge in self.edges
        )

    def choice_of(self, op_factor: np.ndarray, value_dim: np.ndarray) -> np.ndarray | None:
        """[N] the choices of a plan, None if it is not in the space.

        Args:
            op_factor: [O, A] of the plan.
            value_dim: [V, A] of the plan.

        Raises:
            InvalidProblem: the plan is of another program or mesh.
        """
        known = (len(self._name_starts), len(self._constant))
        if (len(op_factor), len(value_dim)) != known or (
            op_factor.shape[1] != len(self.folded.axis_size)
        ):
            raise InvalidProblem(
                f"a plan of another program or mesh: it has {len(op_factor)} ops, {len(value_dim)} "
                f"values and {op_factor.shape[1]} mesh axes, this program {known[0]} ops, "
                f"{known[1]} values and {len(self.folded.axis_size)} mesh axes"
            )
        alike, tables = self.alike, self.folded.tables
        ops, values = op_factor[alike.ops.first], value_dim[alike.values.first]
        starts = self._name_starts
        inner = np.arange(len(op_factor)) >= self._n_arguments
        spread = ops[alike.ops.label]
        spread = np.where(
            spread >= 0,
            spread + (starts - starts[alike.ops.first[alike.ops.label]])[:, None],
            -1,
        )
        if (spread != op_factor)[inner].any() or (
            (values[alike.values.label] != value_dim) & ~self._constant[:, None]
        ).any():
            return None
        choice = np.zeros(len(self.time_s), np.int64)
        for node, menu in enumerate(self.menus):
            place = np.flatnonzero((menu == ops[node]).all(axis=1))
            if not len(place):
                return None
            choice[node] = place[0]
        for row, menu in enumerate(self.value_menus):
            if not (menu == values[row]).all(axis=1).any():
                return None
        kept = st.kept_layouts(tables, ops, values)
        for value, node in enumerate(self.value_node.tolist()):
            if node >= 0:
                layouts = self.layouts[node - len(self.menus)]
                at = int(np.searchsorted(layouts, kept[value]))
                if at == len(layouts) or layouts[at] != kept[value]:
                    return None
                choice[node] = at
        return choice

    _name_starts: np.ndarray  #: [O] first name of each op of the program
    _constant: np.ndarray  #: [V] values of the program that are made of constants alone
    _n_arguments: int


def relax(
    problem: Problem,
    check: Check = lambda: None,
    enough: Callable[[], bool] = lambda: False,
) -> Relaxation:
    """Take the price of a problem's plans apart.

    Args:
        problem: program, mesh, machine, price list and pins.
        check: called now and then; may raise to end this.
        enough: polled; once True, prices that are still missing are left out.
    """
    return _Relaxing(problem, check, enough).relaxation()


class _Relaxing:
    """The making of a ``Relaxation``."""

    def __init__(self, problem: Problem, check: Check, enough: Callable[[], bool]) -> None:
        self.problem, self.check, self.enough = problem, check, enough
        self.n_entries, self.whole = 0, True
        self.alike = fine_rows(problem)
        self.folded = problem.prices.folded(self.alike)
        self.tables, self.facts = self.folded.tables, self.folded.facts
        self.axis_size = problem.mesh.array()
        self.n_rows = len(self.alike.ops.first)
        # Facts are changed for a moment while an op is priced.
        facts = self.facts._replace(
            value=self.facts.value._replace(bytes=self.facts.value.bytes.copy()),
            use=self.facts.use._replace(sent=self.facts.use.sent.copy()),
        )
        listed = self.folded.listed
        unlisted = price_inputs.no_listed_times(len(self.tables.op_row))._replace(
            compute_scale=listed.compute_scale, moving_scale=listed.moving_scale
        )
        # What operands add one by one may be added up as far as it is traffic of one memory. Of
        # what is gathered ahead as much is hidden as can be: the op computes as it likes.
        rates = self.folded.rates._replace(near_bytes_per_s=np.inf, ahead_of=np.inf)
        self.rules = make_bench(
            self.folded._replace(facts=facts, listed=unlisted, rates=rates), self.n_rows
        )
        self.bench = bench_for(self.folded._replace(rates=rates), self.n_rows)
        # How long an op computes whose sums may be scattered piece by piece depends on what becomes
        # of its result: what it takes more than at least is counted with that.  Where a price list
        # is asked as well, it takes at least as long as on a machine whose memory and kernels take
        # no time.
        self.after_s: dict[int, np.ndarray] = {}
        rates = rates._replace(product_bytes_per_s=np.inf, op_overhead_s=0.0)
        at_once = self.folded._replace(rates=rates)
        self.sent_at_once = bench_for(at_once, self.n_rows)
        self.ruled_at_once = bench_for(at_once._replace(listed=unlisted), self.n_rows)
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
        joined: dict[tuple[int, int], np.ndarray] = {}
        for nodes, parts in self.pairs.items():
            edge_of[nodes] = len(edges)
            edge, joined[nodes] = _edge(*nodes, parts)
            edges.append(edge)
        sharings = [
            Sharing(
                value,
                [
                    SharedUse(
                        edge_of[nodes],
                        times,
                        wanted[joined[nodes][:, number]],
                        cost_s,
                        part_s=part_s,
                    )
                    for nodes, number, times, wanted, cost_s, part_s in uses
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
        """Are there time and memory for more prices?"""
        self.whole = self.whole and not self.enough() and self.n_entries < _MOST_ENTRIES
        return self.whole

    # -- choices ----------------------------------------------------------------------------------
    def _layouts(self) -> None:
        """The node of each value and the layouts that it may be kept in.

        Arguments and results of the program are kept as their row says, all others as it says or as
        their op leaves them, or whole where that would be partial (``steps.kept_layouts_into``).
        """
        tables = self.tables
        inner = (
            ~tables.value_constant & (tables.value_op >= tables.n_arguments) & ~tables.value_output
        )
        self.value_node = np.full(len(tables.value_op), -1, np.int64)
        self.layouts: list[np.ndarray] = []
        self.by_row: dict[int, np.ndarray] = {}  # layouts that anything may be brought to
        of_row: dict[int, int] = {}
        for value in np.flatnonzero(~tables.value_constant).tolist():
            row = int(tables.value_row[value])
            layouts = packed_layouts(self.value_menus[row])
            if not inner[value]:
                if row not in of_row:
                    of_row[row] = self.n_rows + len(self.layouts)
                    self.layouts.append(np.unique(layouts))
                self.value_node[value] = of_row[row]
                continue
            label = result_labels(self.bench, value, self.menus[tables.value_owner[value]])
            natural, partial = self._taken_apart(label)
            masks = np.unique(partial)
            whole = [
                layouts & ~self._digits(int(mask) & part)
                for mask in masks.tolist()
                for part in range(1, 1 << len(self.axis_size))
                if mask & part
            ]
            offered = np.unique(np.concatenate([layouts, *whole]))
            self.by_row[value] = offered
            self.value_node[value] = self.n_rows + len(self.layouts)
            self.layouts.append(np.unique(np.concatenate([offered, natural])))

    def _digits(self, mask: int) -> int:
        """The bits of a packed layout that say where the axes of a mask stand."""
        return sum(
            31 << LAYOUT_BITS * axis for axis in range(len(self.axis_size)) if mask >> axis & 1
        )

    def _taken_apart(self, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(layouts, masks of partial axes) of ``result_labels``."""
        shift = LAYOUT_BITS * len(self.axis_size)
        return label & ((1 << shift) - 1), label >> shift

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

        Those that are all 0 are left out, but if ``always``.
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
            return  # nothing is known of it by its row alone, and no time is below 0
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
        fewest = np.minimum(
            facts.value.bytes[values], facts.use.sent[uses] * tables.value_bytes[values]
        )
        least_s, more_s = np.zeros(len(menu)), np.zeros(len(menu) * len(flat))
        readings = Readings(roots, ptr, flat, fewest, coarse=coarse)
        listed, times = self.folded.listed, float(self.folded.times[op])
        in_ring = bool(self.in_rings[op])
        asked = in_ring and listed.begin[op] == listed.end[op]
        kept = self._layouts_of(int(results[0])) if asked else np.zeros(0, np.int64)
        kept_s = np.zeros((len(menu), len(kept)))
        computing_times(
            self.rules, op, menu, readings, least_s, more_s, kept=kept, kept_s=kept_s.reshape(-1)
        )
        if in_ring:
            summed = self._summed_in_ring(op, menu)
            more_s.reshape(len(menu), len(flat))[summed] = 0.0
            if asked:
                least_s[summed] = np.minimum(least_s[summed], kept_s[summed].min(axis=1))
                self.after_s[op] = kept_s - least_s[:, None]

            else:
                at_once_s = compute_times(self.ruled_at_once, op, menu[summed])
                least_s[summed] = np.minimum(least_s[summed], at_once_s)
        if listed.begin[op] < listed.end[op]:
            # An entry holds for one way to meet all operands and results; which one does is not
            # asked: computing takes what the rule says, or what one of the entries does.
            entries = slice(int(listed.begin[op]), int(listed.end[op]))
            least_s = np.minimum(least_s, listed.time_s[entries].min())
            more_s[:] = 0.0
        self.time_s[row] += times * least_s
        if not more_s.any():
            return
        more = times * more_s.reshape(len(menu), len(flat))
        for number, root in enumerate(roots.tolist()):
            part = more[:, ptr[number] : ptr[number + 1]]
            self._add(row, int(self.value_node[root]), np.arange(len(menu)), part)

    def _summed_in_ring(self, op: int, menu: np.ndarray) -> np.ndarray:
        """[S] bool: the rows of a product that sum over a group large enough for a ring."""
        value = int(self.tables.result[self.tables.result_ptr[op]])
        _, partial = self._taken_apart(result_labels(self.bench, value, menu))
        devices = np.ones(len(menu))
        for axis, size in enumerate(self.axis_size):
            devices[(partial >> axis) & 1 == 1] *= size
        return devices >= self.folded.rates.ring_devices

    def _results(self, op: int) -> None:
        tables = self.tables
        results = tables.result[tables.result_ptr[op] : tables.result_ptr[op + 1]]
        # Results that are alike are one value, whose prices are those of all of them.
        for value in np.unique(results).tolist():
            if tables.value_constant[value]:
                continue
            owner = int(tables.value_owner[value])
            label = result_labels(self.bench, value, self.menus[owner])
            distinct, first, place = np.unique(label, return_index=True, return_inverse=True)
            layouts = self._layouts_of(value)
            if op in self.after_s:
                move_s = np.full((len(distinct), len(layouts)), np.inf)
                np.minimum.at(move_s, place, self.after_s[op])
            else:
                bench = self.sent_at_once if self.in_rings[op] else self.bench
                move_s, _ = result_times(bench, op, value, self.menus[owner][first], layouts)
            move_s *= self.folded.times[op]
            if value in self.by_row:
                # What the value's row cannot say is only how the op leaves it.
                natural, _ = self._taken_apart(distinct)
                left = ~np.isin(layouts, self.by_row[value])[None, :]
                move_s[left & (natural[:, None] != layouts[None, :])] = np.inf
            self._add(owner, int(self.value_node[value]), place, move_s)

    def _uses(self) -> None:
        """Prices of bringing values to uses, each use for its part of a shared copy."""
        tables = self.tables
        wants = [
            want_labels(self.bench, want, self.menus[owner])
            for want, owner in enumerate(tables.use_owner.tolist())
        ]
        together = self._used_together()
        uses_of: dict[int, list[int]] = {}
        for use, value in enumerate(tables.use_value.tolist()):
            # The uses of arguments of the folded program's loops and the like come with their ops.
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
                # Whoever wants it in the same way always brought it before.
                if tables.use_want[use] not in self._earlier(use)
            ]
            distinct = [np.unique(wants[tables.use_want[use]]) for use in uses]
            wanted = np.unique(np.concatenate(distinct)) if uses else np.zeros(0, np.int64)
            cost = np.full((len(uses), len(wanted), len(layouts)), np.inf)
            for place, use in enumerate(uses):
                op = int(tables.use_op[use])
                cost[place, np.searchsorted(wanted, distinct[place])] = self._moves(
                    moves, op, use, distinct[place], layouts=layouts
                )
            shares = self._shares(uses, together)
            shared = (shares + shares.T - 2 * np.eye(len(uses))).any(axis=1)
            part_s = _even_parts(cost, shares)
            members = []
            for place, use in enumerate(uses):
                want = int(tables.use_want[use])
                nodes = (int(tables.use_owner[want]), int(self.value_node[value]))
                rows = np.searchsorted(wanted, distinct[place])
                times = float(self.folded.times[tables.use_op[use]])
                label = np.searchsorted(distinct[place], wants[want])
                if shared[place]:
                    number = len(self.pairs.get(nodes, []))
                    members.append((nodes, number, times, rows, cost[place], part_s[place]))
                self._add(*nodes, label, times * part_s[place, rows], always=bool(shared[place]))
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
        """[W, T] seconds of one use; moves of equal tensors cost the same."""
        key: tuple[object, ...] = (
            *move_facts(self.folded, op, use),
            self.facts.use.ahead[use],
            wanted.tobytes(),
            layouts.tobytes(),
        )
        if key not in known:
            known[key], _ = use_costs(self.bench, op, use, wanted, layouts)
        return known[key]

    def _used_together(self) -> np.ndarray:
        """[U'] most uses that are like each one and are of one value."""
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
        """[uses, uses] how many of the second may take their copy from one of the first.

        Args:
            uses: of one value.
            together: see ``_used_together``.
        """
        wants = [int(self.tables.use_want[use]) for use in uses]
        shares = np.eye(len(uses))
        for place, use in enumerate(uses):
            for want in self._earlier(use):
                for other in range(len(uses)):
                    if wants[other] == want and other != place:
                        shares[other, place] = together[use]
        return shares


def _even_parts(cost_s: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """[uses, W, T] what each use counts for, where all that share a copy count alike.

    Args:
        cost_s: [uses, W, T] seconds that bringing takes, infinite: it never wants that.
        shares: see ``Sharing``.
    """
    can = np.isfinite(cost_s)
    each = cost_s / np.einsum("pu,uwt->pwt", shares, can.astype(np.float64))
    part = each.copy()
    for place in range(len(cost_s)):
        part = np.minimum(part, np.where((shares[place] > 0)[:, None, None], each[place], np.inf))
    return np.where(can, part, 0.0)


def _edge(
    op: int, value: int, parts: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[ChoiceEdge, np.ndarray]:
    """The sum of prices that have labels of their own, and those labels [W, parts]."""
    labels = np.stack([label for label, _ in parts], axis=1)
    distinct, place = np.unique(labels, axis=0, return_inverse=True)
    total = sum(time_s[distinct[:, number]] for number, (_, time_s) in enumerate(parts))
    edge = ChoiceEdge(
        op=op, value=value, label=place.reshape(-1), time_s=np.asarray(total, np.float64)
    )
    return edge, distinct
