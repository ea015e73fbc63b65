"""The compiled part of ``propagation``: visits ops in JAX's order until nothing changes.

A dim's axes are one number, a *list*: four bits for each axis (its number + 1), the major one
lowest. A *node* is a tensor that has one sharding. The algorithm is that of Shardy's default
pipeline, described in its documentation and read from its sources; parts of axes are left out.
Start reading at ``propagate``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolArray,
    Int8Array,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    packed,
)

#: How an op passes shardings on before the others do (``OpGraph.way``)
OTHER, PASSES, PASSES_FORWARD, BROADCASTS = range(4)
NONE, FORWARD, BACKWARD, BOTH = range(4)
PRIORITIES = 5


@packed
class OpGraph(NamedTuple):
    """Ops and the nodes that they touch, as propagation sees them.

    ``P`` ops, in the order in which they are first visited, ``N`` nodes, ``T`` touches: operands of
    an op first, then its results.
    """

    op_touch: Int32Array  #: [P+1] first touch of each op
    op_results: Int32Array  #: [P] first touch of each op that is a result
    op_factor: Int32Array  #: [P+1] first factor of each op
    way: Int8Array  #: [P] OTHER, PASSES, PASSES_FORWARD or BROADCASTS
    elementwise: BoolArray  #: [P]
    single: BoolArray  #: [P] no operand is read by another op
    touch_node: Int32Array  #: [T]
    touch_dim: Int32Array  #: [T] first dim of each touch, in ``dim_factors``
    touch_size: Int64Array  #: [T] number of elements
    dim_factors: Int32Array  #: [dims + 1] first factor of each dim of each touch, in ``factor``
    factor: Int32Array  #: factors of dims, major first, counted from the op's first
    factor_size: Int64Array  #: [factors]
    passes_on: BoolArray  #: [factors] the op neither sums over it nor needs it whole
    blocked: BoolArray  #: [factors] shardings do not go along it
    node_dim: Int32Array  #: [N+1] first dim of each node
    node_op: Int32Array  #: [N+1] first of the ops that touch each node, in ``visits``
    visits: Int32Array  #: ops to visit when a node changes, in reverse order
    sink_node: Int32Array  #: [R, 2 flat] pairs (node returned, node of the result)
    axis_size: Int64Array  #: [A]


@packed
class Scratch(NamedTuple):
    """Memory of one thread."""

    lists: Int64Array  #: [dims of nodes] axes of each dim
    closed: BoolArray  #: [dims of nodes] no axes may be added
    is_cut: BoolArray  #: [N]
    changed: BoolArray  #: [P] a node that the op touches has changed since its last visit
    waits: BoolArray  #: [P]
    stack: Int32Array  #: [P] ops to visit again
    axes: Int64Array  #: [touches of an op, its factors] axes along each factor; -1: has no such dim
    rest: Int64Array  #: the same shape: axes that do not fit the factor
    shut: BoolArray  #: the same shape: no axes may be added
    minor: BoolArray  #: the same shape: it is the last factor of its dim
    common: Int64Array  #: [factors of an op] axes that can be passed along each factor
    order: Int32Array  #: [factors of an op]
    source_size: Int64Array  #: [factors of an op]
    source: Int32Array  #: [factors of an op]
    taken: BoolArray  #: [touches of an op] it has taken on axes


@helper
def _length(axes: int) -> int:
    count = 0
    while axes:
        axes >>= 4
        count += 1
    return count


@helper
def _ways(axes: int, axis_size: np.ndarray) -> int:
    ways = 1
    while axes:
        ways *= axis_size[(axes & 15) - 1]
        axes >>= 4
    return ways


@helper
def _has(axes: int, axis: int) -> bool:
    """Is ``axis`` (its number + 1) in a list?"""
    while axes:
        if axes & 15 == axis:
            return True
        axes >>= 4
    return False


@helper
def _is_prefix(short: int, long: int) -> bool:
    while short:
        if short & 15 != long & 15:
            return False
        short >>= 4
        long >>= 4
    return True


@helper
def _direction(way: int, single: bool, passes_on: bool, priority: int) -> int:
    """The directions in which an op passes shardings along a factor."""
    result = NONE
    if way != OTHER and way != BROADCASTS and (single or priority >= 1):
        result = BOTH if way == PASSES else FORWARD
    if (priority >= 2 and passes_on) or priority >= 3:
        result |= BACKWARD if way == BROADCASTS else BOTH
    return BOTH if priority >= 4 else result


@helper
def _project(graph: OpGraph, scratch: Scratch, op: int) -> None:
    """Write the axes of each touch along each factor."""
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    first_factor = graph.op_factor[op]
    first_touch = graph.op_touch[op]
    for touch in range(first_touch, graph.op_touch[op + 1]):
        base = (touch - first_touch) * width
        for factor in range(width):
            scratch.axes[base + factor] = -1
        node = graph.touch_node[touch]
        row = graph.node_dim[node]
        for dim in range(graph.touch_dim[touch], graph.touch_dim[touch + 1]):
            axes, is_closed = scratch.lists[row], scratch.closed[row]
            row += 1
            end, has_rest = graph.dim_factors[dim + 1], False
            for place in range(graph.dim_factors[dim], end):
                factor = graph.factor[place]
                index = base + factor
                scratch.axes[index] = scratch.rest[index] = 0
                scratch.minor[index] = place == end - 1
                scratch.shut[index] = is_closed or has_rest
                if has_rest:
                    continue
                if place == end - 1:
                    scratch.axes[index] = axes
                    continue
                left = graph.factor_size[first_factor + factor]
                taken, shift = 0, 0
                while axes and left % graph.axis_size[(axes & 15) - 1] == 0:
                    left //= graph.axis_size[(axes & 15) - 1]
                    taken |= (axes & 15) << shift
                    shift += 4
                    axes >>= 4
                scratch.axes[index] = taken
                if left > 1 and axes:
                    has_rest = True
                    scratch.rest[index] = axes


@helper
def _common_axes(graph: OpGraph, scratch: Scratch, op: int, factor: int, direction: int) -> int:
    """Axes along a factor on which those agree that may pass them on."""
    first, middle, end = graph.op_touch[op], graph.op_results[op], graph.op_touch[op + 1]
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    common, grows = 0, True
    for part in range(2):
        is_results = (part == 1) != (direction == BACKWARD)
        begin, stop = (middle, end) if is_results else (first, middle)
        if part == 1 and direction != BOTH:
            grows = False
        for touch in range(begin, stop):
            axes = scratch.axes[(touch - first) * width + factor]
            if axes <= 0:
                continue
            mine, other, shift, agrees = common, axes, 0, True
            while mine and other:
                if mine & 15 != other & 15:
                    agrees = False
                    break
                mine >>= 4
                other >>= 4
                shift += 4
            if not agrees:
                common &= (1 << shift) - 1
                grows = False
            elif grows and not mine:
                common = axes
    return common


@helper
def _fitting(graph: OpGraph, scratch: Scratch, op: int, touch: int, factor: int) -> int:
    """The axes along a factor that a touch can take on, 0 if they are none more than it has."""
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    base = (touch - graph.op_touch[op]) * width
    index = base + factor
    had, wanted = scratch.axes[index], scratch.common[factor]
    if had < 0 or had == wanted or not _is_prefix(had, wanted):
        return 0
    if scratch.shut[index] or scratch.rest[index]:
        return 0
    size, ways = graph.factor_size[graph.op_factor[op] + factor], 1
    taken, shift = 0, 0
    while wanted:
        axis = wanted & 15
        ways *= graph.axis_size[axis - 1]
        if not _has(had, axis) and not scratch.minor[index] and size % ways:
            break
        is_free = True
        for other in range(width):
            axes = scratch.axes[base + other]
            if other != factor and axes >= 0:
                if _has(axes, axis) or _has(scratch.rest[base + other], axis):
                    is_free = False
                    break
        if not is_free:
            break
        taken |= axis << shift
        shift += 4
        wanted >>= 4
    return taken if taken != had and _is_prefix(had, taken) else 0


@helper
def _order_factors(graph: OpGraph, scratch: Scratch, op: int) -> int:
    """Sort the factors that have axes to pass on; gives their number.

    The factor with the largest source comes first; then, element by element, the one that is cut
    most; then the one whose source comes first.
    """
    first, end = graph.op_touch[op], graph.op_touch[op + 1]
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    count = 0
    for factor in range(width):
        wanted = scratch.common[factor]
        if wanted == 0:
            continue
        size, source = -1, -1
        for touch in range(first, end):
            axes = scratch.axes[(touch - first) * width + factor]
            if axes > 0 and graph.touch_size[touch] > size and _is_prefix(wanted, axes):
                size, source = graph.touch_size[touch], touch
        scratch.source_size[factor], scratch.source[factor] = size, source
        place = count
        while place > 0 and _before(graph, scratch, op, factor, scratch.order[place - 1]):
            scratch.order[place] = scratch.order[place - 1]
            place -= 1
        scratch.order[place] = factor
        count += 1
    return count


@helper
def _before(graph: OpGraph, scratch: Scratch, op: int, factor: int, other: int) -> bool:
    """Does a factor go before another of a lower number?"""
    if scratch.source_size[factor] != scratch.source_size[other]:
        return scratch.source_size[factor] > scratch.source_size[other]
    if graph.elementwise[op]:
        ways = _ways(scratch.common[factor], graph.axis_size)
        other_ways = _ways(scratch.common[other], graph.axis_size)
        if ways != other_ways:
            return ways > other_ways
    return scratch.source[factor] < scratch.source[other]


@helper
def _take(graph: OpGraph, scratch: Scratch, op: int, touch: int, count: int) -> bool:
    """Let a touch take on what it can, factor by factor; True if it takes on something."""
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    first, results = graph.op_touch[op], graph.op_results[op]
    taken = False
    for place in range(count):
        factor = scratch.order[place]
        axes = _fitting(graph, scratch, op, touch, factor)
        if axes == 0:
            continue
        if touch < results and graph.elementwise[op]:
            # An operand does not take on what the result cannot
            for result in range(results, graph.op_touch[op + 1]):
                kept = scratch.axes[(result - first) * width + factor]
                if kept >= 0 and kept != axes and _is_prefix(kept, axes):
                    axes = kept
        had = scratch.axes[(touch - first) * width + factor]
        if axes != had and _is_prefix(had, axes):
            scratch.axes[(touch - first) * width + factor] = axes
            taken = True
    return taken


@helper
def _write(graph: OpGraph, scratch: Scratch, op: int, touch: int) -> bool:
    """Give a touched node the axes along the factors of its dims; True if that changes it."""
    width = graph.op_factor[op + 1] - graph.op_factor[op]
    base = (touch - graph.op_touch[op]) * width
    node = graph.touch_node[touch]
    row, changed = graph.node_dim[node], False
    for dim in range(graph.touch_dim[touch], graph.touch_dim[touch + 1]):
        axes, shift = 0, 0
        for place in range(graph.dim_factors[dim], graph.dim_factors[dim + 1]):
            factor = graph.factor[place]
            part, rest = scratch.axes[base + factor], scratch.rest[base + factor]
            axes |= part << shift
            shift += 4 * _length(part)
            if rest:
                axes |= rest << shift
                break
            size = graph.factor_size[graph.op_factor[op] + factor]
            if _ways(part, graph.axis_size) < size:
                break
        if axes != scratch.lists[row]:
            scratch.lists[row] = axes
            changed = True
        row += 1
    if changed:
        scratch.is_cut[node] = True
    return changed


@helper
def _notify(graph: OpGraph, scratch: Scratch, node: int, op: int, begun: int, waiting: int) -> int:
    """Let the ops that touch a changed node be visited again; gives the height of the stack."""
    for row in range(graph.node_op[node], graph.node_op[node + 1]):
        other = graph.visits[row]
        if other != op:
            scratch.changed[other] = True
            # Those that have not been visited yet are visited in any case.
            if other < begun and not scratch.waits[other]:
                scratch.waits[other] = True
                scratch.stack[waiting] = other
                waiting += 1
    return waiting


@helper
def _visit(
    graph: OpGraph, scratch: Scratch, op: int, priority: int, begun: int, waiting: int
) -> int:
    """Propagate through one op; gives the height of the stack."""
    first, end = graph.op_touch[op], graph.op_touch[op + 1]
    is_cut = False
    for touch in range(first, end):
        if scratch.is_cut[graph.touch_node[touch]]:
            is_cut = True
            break
    if not is_cut:
        return waiting
    _project(graph, scratch, op)
    way, single = graph.way[op], graph.single[op]
    for factor in range(graph.op_factor[op + 1] - graph.op_factor[op]):
        index = graph.op_factor[op] + factor
        direction = _direction(way, single, graph.passes_on[index], priority)
        scratch.common[factor] = 0
        if direction != NONE and not graph.blocked[index]:
            scratch.common[factor] = _common_axes(graph, scratch, op, factor, direction)
    count = _order_factors(graph, scratch, op)
    if count == 0:
        return waiting
    results = graph.op_results[op]
    n_results = end - results
    for turn in range(end - first):
        # Results take on axes first, and operands what is left to them.
        touch = results + turn if turn < n_results else first + turn - n_results
        scratch.taken[touch - first] = _take(graph, scratch, op, touch, count)
    for touch in range(first, end):
        if scratch.taken[touch - first] and _write(graph, scratch, op, touch):
            waiting = _notify(graph, scratch, graph.touch_node[touch], op, begun, waiting)
    return waiting


@helper
def _is_due(graph: OpGraph, scratch: Scratch, op: int, priority: int) -> bool:
    """Can an op do more than at its last visit?"""
    if scratch.changed[op] or priority == 0:
        return True
    way, single = graph.way[op], graph.single[op]
    return _direction(way, single, True, priority) != _direction(
        way, single, True, priority - 1
    ) or _direction(way, single, False, priority) != _direction(way, single, False, priority - 1)


@helper
def _pass_to(graph: OpGraph, scratch: Scratch, node: int, other: int) -> None:
    """Let a node take on the axes of another of the same shape, as far as they fit."""
    row, other_row = graph.node_dim[node], graph.node_dim[other]
    end = graph.node_dim[node + 1]
    for dim in range(end - row):
        had, wanted = scratch.lists[row + dim], scratch.lists[other_row + dim]
        if had == wanted or scratch.closed[row + dim] or not _is_prefix(had, wanted):
            continue
        taken, shift = 0, 0
        while wanted:
            axis, is_free = wanted & 15, True
            for place in range(row, end):
                if place != row + dim and _has(scratch.lists[place], axis):
                    is_free = False
            if not is_free:
                break
            taken |= axis << shift
            shift += 4
            wanted >>= 4
        if taken != had and _is_prefix(had, taken):
            scratch.lists[row + dim] = taken
            scratch.is_cut[node] = True
            for visit in range(graph.node_op[node], graph.node_op[node + 1]):
                scratch.changed[graph.visits[visit]] = True


@helper
def _pass_returned(graph: OpGraph, scratch: Scratch) -> None:
    """Propagate between the values that the program returns and its results."""
    for place in range(0, graph.sink_node.shape[0], 2):
        value, result = graph.sink_node[place], graph.sink_node[place + 1]
        _pass_to(graph, scratch, result, value)
        _pass_to(graph, scratch, value, result)


@compiled
def propagate(graph: OpGraph, scratch: Scratch) -> None:
    """Propagate the axes in ``scratch.lists`` until nothing changes.

    ``changed`` and ``waits`` have to be False, and ``is_cut`` has to tell which nodes have axes.
    """
    n_ops = graph.way.shape[0]
    for priority in range(PRIORITIES):
        _pass_returned(graph, scratch)
        waiting, begun = 0, 0
        while waiting or begun < n_ops:
            if waiting:
                waiting -= 1
                op = scratch.stack[waiting]
                scratch.waits[op] = False
                is_due = scratch.changed[op]
            else:
                op = begun
                begun += 1
                is_due = _is_due(graph, scratch, op, priority)
            if is_due:
                scratch.changed[op] = False
                waiting = _visit(graph, scratch, op, priority, begun, waiting)
        _pass_returned(graph, scratch)


@compiled
def fix(graph: OpGraph, scratch: Scratch, nodes: Int32Array, node_dims: Int8Matrix) -> None:
    """Shard each node as its row of ``node_dims`` says, and let nothing be added.

    ``nodes`` is [n], ``node_dims`` [n, A]: the dim that each mesh axis cuts, -1: none. Several axes
    on one dim are in mesh order.
    """
    for row in range(nodes.shape[0]):
        node = nodes[row]
        first = graph.node_dim[node]
        for place in range(first, graph.node_dim[node + 1]):
            scratch.lists[place] = 0
            scratch.closed[place] = True
        for axis in range(node_dims.shape[1]):
            dim = node_dims[row, axis]
            if dim >= 0:
                length = _length(scratch.lists[first + dim])
                scratch.lists[first + dim] |= (axis + 1) << (4 * length)
                scratch.is_cut[node] = True


@compiled
def cut_dims(graph: OpGraph, scratch: Scratch, nodes: Int32Array, value_dim: Int8Matrix) -> None:
    """Write the dim of each node that each axis cuts into the row of ``value_dim``; -1: none."""
    for value in range(nodes.shape[0]):
        node = nodes[value]
        if node < 0:
            continue
        for axis in range(value_dim.shape[1]):
            value_dim[value, axis] = -1
        if not scratch.is_cut[node]:
            continue
        first = graph.node_dim[node]
        for row in range(first, graph.node_dim[node + 1]):
            axes = scratch.lists[row]
            while axes:
                value_dim[value, (axes & 15) - 1] = row - first
                axes >>= 4


@compiled
def drop_uneven(
    cut: Int32Matrix, sizes: Int64Array, first: Int64Array, axis_size: Int64Array
) -> None:
    """Leave dims whole that their axes do not divide, in place.

    ``cut`` is [n, A], the dim that each mesh axis cuts, -1: none; ``first`` [n] the place in
    ``sizes`` from which a row's dims are counted.
    """
    for row in range(cut.shape[0]):
        for axis in range(cut.shape[1]):
            dim = cut[row, axis]
            if dim < 0:
                continue
            ways = 1
            for other in range(cut.shape[1]):
                if cut[row, other] == dim:
                    ways *= axis_size[other]
            if sizes[first[row] + dim] % ways:
                for other in range(axis, cut.shape[1]):
                    if cut[row, other] == dim:
                        cut[row, other] = -1
