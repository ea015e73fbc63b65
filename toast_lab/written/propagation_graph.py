"""A program as JAX's propagation sees it, as arrays for compiled code.

It differs from the ``Program`` in these ways:

* a value of constants alone is made anew for each op that reads it, and so is a scalar that is
  expanded: readers do not hear of each other through it;
* what a loop, conditional or barrier passes on is joined by an *edge*, an op that has all places
  where it enters as operands; a loop's result and what its body begins with are one node;
* a value with a constraint is one node if an ordinary op makes it, which then makes it in that
  sharding; an argument, or what comes out of an edge, keeps its own sharding, and its readers see
  another node, the *kept* one, which is joined to it by an op, as by JAX's constraint.

Start reading at ``graph_of``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from toast_lab.ir.op_kinds import is_elementwise, op_kind
from toast_lab.ir.program import NEED_REPLICATION, PASS, Program
from toast_lab.packs import dtypes, zeros
from toast_lab.ragged import Ragged
from toast_lab.written.propagation_kernel import (
    BROADCASTS,
    OTHER,
    PASSES,
    PASSES_FORWARD,
    OpGraph,
    Scratch,
)


@dataclasses.dataclass(frozen=True)
class PropagationGraph:
    """The arrays, and where the program's values are in them."""

    graph: OpGraph
    #: [V] the node of each value as its op leaves it, -1: constants; of an expanded scalar the one
    #: that is made for the last reader
    node: np.ndarray
    #: [V] the node that readers see where it is another one if the value is constrained; else -1
    kept_node: np.ndarray
    #: [V] touches that read the kept node if the value is constrained
    readers: dict[int, np.ndarray]
    result_node: np.ndarray  #: [results] node of each result of the program
    most_touches: int  #: of one op
    most_factors: int  #: of one op
    most_entries: int  #: touches times factors, of one op

    def scratch(self) -> Scratch:
        """Memory for one thread."""
        graph = self.graph
        counts = {
            **dict.fromkeys(("lists", "closed"), int(graph.node_dim[-1])),
            "is_cut": len(graph.node_dim) - 1,
            **dict.fromkeys(("changed", "waits", "stack"), len(graph.way)),
            **dict.fromkeys(("axes", "rest", "shut", "minor"), self.most_entries),
            **dict.fromkeys(("common", "order", "source_size", "source"), self.most_factors),
            "taken": self.most_touches,
        }
        return Scratch(**zeros(Scratch, {name: (count,) for name, count in counts.items()}))


def graph_of(program: Program, axis_sizes: np.ndarray) -> PropagationGraph:
    """The graph of a program."""
    return _Builder(program).build(np.asarray(axis_sizes, np.int64))


class _Builder:
    """Collects nodes, then ops in the order of their first visit."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind = program.kind
        self.of_owner = Ragged.by_key(program.owner, program.n_ops)
        self.ranks: list[int] = []
        self.node = np.full(program.n_values, -1, np.int32)
        self.kept_node = np.full(program.n_values, -1, np.int32)
        self.readers: dict[int, list[int]] = {}
        self.copied = program.value_is_constant | self._scalar_expansions()
        self.op_touch = [0]
        self.op_results: list[int] = []
        self.op_factor = [0]
        self.way: list[int] = []
        self.elementwise: list[bool] = []
        self.single: list[bool] = []
        self.touch_node: list[int] = []
        self.touch_dim = [0]
        self.touch_size: list[int] = []
        self.dim_factors = [0]
        self.factor: list[int] = []
        self.factor_size: list[int] = []
        self.passes_on: list[bool] = []
        self.blocked: list[bool] = []

    def _scalar_expansions(self) -> np.ndarray:
        program = self.program
        result = np.zeros(program.n_values, np.bool_)
        for op in program.ops():
            if self.kind[op] == "broadcast_in_dim" and not program.dims(program.operands(op)[0]):
                result[program.results(op)] = True
        return result

    def new_node(self, rank: int) -> int:
        self.ranks.append(rank)
        return len(self.ranks) - 1

    def build(self, axis_sizes: np.ndarray) -> PropagationGraph:
        program = self.program
        self._make_nodes()
        is_read_once = self._read_once()
        for op in self._visit_order():
            self._add_op(op, is_read_once)
            if self._is_edge(op):
                for member in self._members(op):
                    for value in program.results(member):
                        self._add_constraint(value)
        result_node = [self.new_node(len(program.dims(v))) for v in program.outputs.tolist()]
        sinks = [
            node
            for value, result in zip(program.outputs.tolist(), result_node, strict=True)
            if self.node[value] >= 0
            for node in (int(self.node[value]), result)
        ]
        touch_op = np.repeat(np.arange(len(self.way)), np.diff(self.op_touch))
        visits, node_op = self._visits(touch_op)
        widths = np.diff(self.op_factor)
        touches = np.diff(self.op_touch)
        rows = {
            **{name: rows for name, rows in vars(self).items() if name in OpGraph._fields},
            "node_dim": np.cumsum([0, *self.ranks]),
            "node_op": node_op,
            "visits": visits,
            "sink_node": sinks,
            "axis_size": axis_sizes,
        }
        types = dtypes(OpGraph)
        graph = OpGraph(**{name: np.asarray(row, types[name]) for name, row in rows.items()})
        return PropagationGraph(
            graph=graph,
            node=np.where(self.copied, self.kept_node, self.node).astype(np.int32),
            kept_node=self.kept_node,
            readers={value: np.array(rows, np.int64) for value, rows in self.readers.items()},
            result_node=np.array(result_node, np.int32),
            most_touches=int(touches.max(initial=1)),
            most_factors=int(widths.max(initial=1)),
            most_entries=int((widths * touches).max(initial=1)),
        )

    def _make_nodes(self) -> None:
        program = self.program
        for value in range(program.n_values):
            if program.value_is_constant[value]:
                continue
            op = int(program.value_op[value])
            if self.kind[op] == "while.result":
                # The same node as the value with which the body begins
                (entered,) = program.results(int(program.owner[op]))
                self.node[value] = self.node[entered]
            else:
                self.node[value] = self.new_node(len(program.dims(value)))
        for value in np.flatnonzero(self.node >= 0).tolist():
            op = int(program.value_op[value])
            if op < program.n_arguments or self._is_edge(op) or self.kind[op] == "while.result":
                self.kept_node[value] = self.new_node(len(program.dims(value)))

    def _is_edge(self, op: int) -> bool:
        return op_kind(self.kind[op]).has_edges

    def _read_once(self) -> np.ndarray:
        """[V] is the value read at most once?"""
        program = self.program
        reads = np.bincount(program.use_value, minlength=program.n_values)
        np.add.at(reads, program.outputs, 1)
        # What a loop's condition reads is another tensor than what its body reads.
        conditions = [region for region in program.regions if region.kind == "cond"]
        for region in conditions:
            for op in range(region.begin, region.end):
                for value in program.operands(op):
                    if self.kind[int(program.value_op[value])] == "while.enter":
                        reads[value] -= 1
        return reads <= 1

    def _visit_order(self) -> list[int]:
        """Ops that have factors, in the order of the module's text."""
        program = self.program
        places: dict[int, int] = {}
        for op in program.ops():
            owner = int(program.owner[op])
            # The edge of a loop comes behind the loop
            places[owner] = max(places.get(owner, -1), op)
        return sorted(places, key=lambda op: places[op])

    def _add_op(self, op: int, is_read_once: np.ndarray) -> None:
        program, kind = self.program, self.kind[op]
        values = self._touched(op)
        if not any(rank for _, _, rank in values):
            return
        is_edge = self._is_edge(op)
        elementwise = is_elementwise(kind)
        if is_edge or elementwise or op_kind(kind).passes_early:
            way = PASSES
        elif op_kind(kind).picks_slice:
            way = PASSES_FORWARD
        else:
            way = BROADCASTS if kind == "broadcast_in_dim" else OTHER
        self.way.append(way)
        self.elementwise.append(elementwise)
        uses = program.uses(op)
        self.single.append(
            is_edge
            or all(
                is_read_once[value] or self.copied[value] or not program.dims(value)
                for value in program.use_value[uses.start : uses.stop].tolist()
            )
        )
        factors = program.factors(op)
        for factor in factors:
            role = program.factor_class[factor]
            self.factor_size.append(int(program.factor_size[factor]))
            self.passes_on.append(bool(role == PASS))
            self.blocked.append(bool(role == NEED_REPLICATION and op_kind(kind).blocks_whole))
        self.op_factor.append(len(self.factor_size))
        self._add_touches(op, values, factors.start)

    def _add_constraint(self, value: int) -> None:
        """Join the kept node of a value to its own one, as a constraint does."""
        dims = self.program.dims(value)
        if self.kept_node[value] < 0 or not dims:
            return
        self.way.append(PASSES)
        self.elementwise.append(True)
        self.single.append(True)
        self.factor_size += dims
        self.passes_on += [True] * len(dims)
        self.blocked += [False] * len(dims)
        self.op_factor.append(len(self.factor_size))
        for node in (int(self.node[value]), int(self.kept_node[value])):
            for factor in range(len(dims)):
                self.factor.append(factor)
                self.dim_factors.append(len(self.factor))
            self.touch_node.append(node)
            self.touch_size.append(math.prod(dims))
            self.touch_dim.append(len(self.dim_factors) - 1)
        self.op_results.append(len(self.touch_node) - 1)
        self.op_touch.append(len(self.touch_node))

    def _touched(self, op: int) -> list[tuple[bool, int, int]]:
        """(is it a result, use or value, rank) of all places where the op's factors are."""
        program = self.program
        touched: list[tuple[bool, int, int]] = []
        results: list[tuple[bool, int, int]] = []
        seen: set[int] = set()
        for member in self._members(op):
            for use in program.uses(member):
                rank = int(program.use_dim_ptr[use + 1] - program.use_dim_ptr[use])
                touched.append((False, use, rank))
            for value in program.results(member):
                if self.node[value] >= 0 and int(self.node[value]) not in seen:
                    seen.add(int(self.node[value]))
                    results.append((True, value, len(program.dims(value))))
        return touched + results

    def _members(self, op: int) -> list[int]:
        return self.of_owner.row(op).tolist()

    def _add_touches(self, op: int, values: list[tuple[bool, int, int]], first_factor: int) -> None:
        program = self.program
        is_result_before = False
        for is_result, row, rank in values:
            if is_result and not is_result_before:
                self.op_results.append(len(self.touch_node))
                is_result_before = True
            if is_result:
                node, begin = int(self.node[row]), int(program.shape_ptr[row])
                dims = program.def_dim_minor[begin : begin + rank]
            else:
                value, begin = int(program.use_value[row]), int(program.use_dim_ptr[row])
                dims = program.use_dim_factors[begin : begin + rank]
                if self.copied[value]:
                    node = self.new_node(rank)
                    if not program.value_is_constant[value]:
                        self.kept_node[value] = node
                else:
                    node = int(self.node[value])
                if self.kept_node[value] >= 0:
                    self.readers.setdefault(value, []).append(len(self.touch_node))
            size = 1
            for factors in dims:
                for factor in factors:
                    self.factor.append(factor - first_factor)
                    size *= int(program.factor_size[factor])
                self.dim_factors.append(len(self.factor))
            self.touch_node.append(node)
            self.touch_size.append(size)
            self.touch_dim.append(len(self.dim_factors) - 1)
        if not is_result_before:
            self.op_results.append(len(self.touch_node))
        self.op_touch.append(len(self.touch_node))

    def _visits(self, touch_op: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ops to visit when a node changes: in the order in which they wait on the stack."""
        defines = np.zeros(len(self.touch_node), np.bool_)
        for op, first in enumerate(self.op_results):
            defines[first : self.op_touch[op + 1]] = True
        rows: list[list[int]] = [[] for _ in self.ranks]
        for touch in np.flatnonzero(defines).tolist():
            rows[self.touch_node[touch]].append(int(touch_op[touch]))
        for touch in np.flatnonzero(~defines)[::-1].tolist():
            rows[self.touch_node[touch]].append(int(touch_op[touch]))
        unique = [list(dict.fromkeys(row)) for row in rows]
        return (
            np.array([op for row in unique for op in row], np.int32),
            np.concatenate([[0], np.cumsum([len(row) for row in unique])]).astype(np.int32),
        )
