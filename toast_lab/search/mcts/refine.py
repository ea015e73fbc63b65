"""Refinement of a plan of colour actions: change one neighbourhood of the program at a time.

A colour action treats every place of its colour alike, which is what makes the search quick, but
the best plan may shard a colour in one part of a layer and not in another.  Refinement starts from
a state of the tree search.  It picks a class of alike ops or values, a mesh axis, and either a move
of the space or none, and gives the axis to that move's name (or takes it away) on all rows within a
few steps through the program, if C(s) gets lower; or it gives to one name what another has there;
or it takes such a neighbourhood over from another good state.

Rows are finer than those of the search's states: ops that cost the same under every plan
(``cost.fold``) make up one, so that the layers still change together but the parts of a layer do
not.

Several states are changed side by side, by annealing from a low temperature.  What parts are taken
over from are the best states that each of them has found and those of earlier starts; from time to
time the worst ones begin again where the best ones are.

Arguments and results of the program stay in the rows that the search has (a parameter has to come
back as it went in), and what loops and conditionals carry is left alone (one value seen at several
places).

The paper has no such step; what it gains over colour actions alone is in the tables of the
evaluation.  Threads share the states out, and what is found does not depend on their number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.cost.reprice import Repricer
from toast_lab.hashing import classes
from toast_lab.kernels import compiled, copy_row, copy_rows, helper
from toast_lab.packs import (
    BoolArray,
    Float64Matrix,
    Int8Cube,
    Int8Matrix,
    Int32Cube,
    Int32Matrix,
    Int64Array,
    Int64Matrix,
    UInt64Matrix,
    packed,
)
from toast_lab.search.mcts.rollout import Pricing, RolloutScratch, price_from, score_of
from toast_lab.search.mcts.tree import random
from toast_lab.sharding.alike import Alike, by_classes
from toast_lab.sharding.divides import divides
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.space import Space
from toast_lab.sharding.state import State

CHAINS, STEPS = 16, 16  #: states side by side, and steps of each in one batch
TAKEN_OVER = 0.3  #: share of the proposals that take over a neighbourhood of another state
#: share of the other proposals that let another name have an axis wherever one has it now
RECOLOURED = 0.1
WARMEST, COLDEST = 0.0002, 0.00001  #: mean of what a step may make worse, as a part of C(s)
EXCHANGES = 8  #: times that the worst begin again where the best are
MIXES = 32  #: times that the best state of each becomes what others may take over


@packed
class Near(NamedTuple):
    """Rows that share a value: the classes of ops (``K``), then those of values (``L``)."""

    #: a move on axis a is row ``layer * a + move`` of the next three: M where pins tell axes apart,
    #: else 0
    layer: int
    #: [M or A * M, K] name along which the move splits the class, -1: none, or pins rule it out
    move_factor: Int32Matrix
    #: [M or A * M, L] dim along which the move shards the class, -1: none, or pins rule it out
    move_dim: Int8Matrix
    value_size: Int64Matrix  #: [M or A * M, L] size of that dim
    ptr: Int64Array  #: [K+L+1] row starts into near
    near: Int64Array  #: rows that share a definition or a use
    move_ptr: Int64Array  #: [K+L+1] row starts into move
    move: Int64Array  #: moves that touch the row
    free: Int64Array  #: rows that may be changed
    is_free: BoolArray  #: [K+L] the same as flags


@packed
class Chains(NamedTuple):
    """A few states (``K``) that are changed side by side, each with the best it has found."""

    ops: Int32Cube  #: [K, rows, A]
    values: Int8Cube  #: [K, rows, A]
    price: Float64Matrix  #: [K, 2] time_s, peak_bytes
    best_ops: Int32Cube  #: [K, rows, A]
    best_values: Int8Cube  #: [K, rows, A]
    best: Float64Matrix  #: [K, 2] time_s, peak_bytes
    random: UInt64Matrix  #: [K, 1] uint64
    #: [P, rows, A] good states, of which neighbourhoods are taken over; K first, see ``mix``
    pool_ops: Int32Cube
    pool_values: Int8Cube  #: [P, rows, A]
    origin: Int64Array  #: [K] the state that it began with
    priced: Int64Array  #: [K] states priced


class Fine(NamedTuple):
    """What refinement changes: finer rows, their neighbours, and the program so folded."""

    alike: Alike
    near: Near
    repricer: Repricer


def fine_rows(problem: Problem) -> Alike:
    """Sort a program into finer rows; arguments and results stay in the search's rows."""
    space, program, like_op = problem.space, problem.analysis.program, problem.folded.memory.like_op
    coarse = space.alike
    outside = np.zeros(program.n_values, bool)
    outside[: program.n_arguments] = True
    outside[program.outputs] = True
    place = np.arange(program.n_values) - program.result_ptr[program.value_op]
    ops = classes(program.n_ops, coarse.ops.label, like_op)
    values = classes(
        program.n_values,
        coarse.values.label,
        np.where(outside, -1, like_op[program.value_op]),
        np.where(outside, -1, place),
    )
    return by_classes(ops, values, space.op_effects, space.value_effects)


def make_fine(problem: Problem) -> Fine:
    """What refinement works on."""
    alike = fine_rows(problem)
    return Fine(
        alike=alike,
        near=neighbourhood(problem.space, alike),
        repricer=Repricer(problem.prices.folded(alike)),
    )


def rows_of(fine: Fine, state: State) -> tuple[np.ndarray, np.ndarray]:
    """([K, A] names of the first ops, [L, A] dims) of a state in the finer rows."""
    return state.op_factor[fine.alike.ops.first], state.value_dim[fine.alike.values.first]


def neighbourhood(space: Space, alike: Alike) -> Near:
    """Work out which rows share a definition or a use, and which moves touch them."""
    program = space.analysis.program
    n_ops, n_values, n_moves = len(alike.ops.first), len(alike.values.first), space.n_moves
    move_factor = np.full((n_moves, n_ops), -1, np.int32)
    move_dim = np.full((n_moves, n_values), -1, np.int8)
    value_size = np.ones((n_moves, n_values), np.int64)
    axes = np.zeros((n_moves, n_ops + n_values), np.uint8)
    effects = alike.op_effects
    move_factor[effects.move, effects.target] = effects.cut
    axes[effects.move, effects.target] = effects.axes
    effects = alike.value_effects
    move_dim[effects.move, effects.target] = effects.cut
    value_size[effects.move, effects.target] = effects.size
    axes[effects.move, n_ops + effects.target] = effects.axes
    op_row, value_row = alike.ops.label, alike.values.label + n_ops
    pairs = np.concatenate(
        [
            np.stack([op_row[program.value_op], value_row]),
            np.stack([op_row[program.use_op], value_row[program.use_value]]),
        ],
        axis=1,
    )
    pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    row_count = n_ops + n_values
    touched = np.concatenate([move_factor >= 0, move_dim >= 0], axis=1)
    free = np.array(touched.any(axis=0))
    # What several places see as one value.
    tied = program.owner != np.arange(program.n_ops)
    tied[program.owner[tied]] = True
    free[op_row[np.flatnonzero(tied)]] = False
    free[value_row[np.flatnonzero(tied[program.value_op])]] = False
    move_of_row = [np.flatnonzero(touched[:, row]) for row in range(row_count)]
    layer, n_axes = 0, len(space.mesh.axes)
    if space.fixed is not None:
        # What is pinned is neither given nor taken away on that axis: there is no move that touches
        # it.
        fixed_ops = space.fixed.op_factor[alike.ops.first]
        fixed = np.concatenate([fixed_ops, space.fixed.value_dim[alike.values.first]])
        on_axis = (axes >> np.arange(n_axes, dtype=np.uint8)[:, None, None]) & 1 == 1
        may = (on_axis & (fixed.T < 0)[:, None]).reshape(n_axes * n_moves, row_count)
        move_factor = np.where(may[:, :n_ops], np.tile(move_factor, (n_axes, 1)), np.int32(-1))
        move_dim = np.where(may[:, n_ops:], np.tile(move_dim, (n_axes, 1)), np.int8(-1))
        value_size = np.tile(value_size, (n_axes, 1))
        layer = n_moves
    return Near(
        layer=layer,
        move_factor=move_factor,
        move_dim=move_dim,
        value_size=value_size,
        ptr=np.searchsorted(pairs[0], np.arange(row_count + 1)),
        near=pairs[1].astype(np.int64),
        move_ptr=np.cumsum([0, *map(len, move_of_row)]),
        move=np.concatenate(move_of_row).astype(np.int64),
        free=np.flatnonzero(free),
        is_free=free,
    )


@helper
def _give(
    near: Near, moves: Moves, ops: np.ndarray, values: np.ndarray, row: int, move: int, axis: int
) -> bool:
    """Give ``axis`` to the move's name on a row, if it divides there; True: the row has changed."""
    n_ops = ops.shape[0]
    if row < n_ops:
        name = near.move_factor[move, row]
        if name < 0 or ops[row, axis] == name:
            return False
        if not divides(moves.factor_size[name], ops, row, name, axis, moves.axis_size):
            return False
        ops[row, axis] = name
        return True
    row -= n_ops
    dim = near.move_dim[move, row]
    if dim < 0 or values[row, axis] == dim:
        return False
    if not divides(near.value_size[move, row], values, row, dim, axis, moves.axis_size):
        return False
    values[row, axis] = dim
    return True


@helper
def _has(near: Near, ops: np.ndarray, values: np.ndarray, row: int, move: int, axis: int) -> bool:
    """Does a row have the move's name on ``axis``, so that it could be taken away?"""
    n_ops = ops.shape[0]
    if row < n_ops:
        return near.move_factor[move, row] >= 0 and ops[row, axis] == near.move_factor[move, row]
    return (
        near.move_dim[move, row - n_ops] >= 0
        and values[row - n_ops, axis] == near.move_dim[move, row - n_ops]
    )


class Flood(NamedTuple):
    """Rows that a change spreads over, nearest first."""

    seen: np.ndarray  #: [rows] flags
    queue: np.ndarray  #: [rows] rows in the order they were reached
    far: np.ndarray  #: [rows] steps through the program to each


@helper
def _from(middle: int, n_rows: int) -> Flood:
    """A change that begins in one row."""
    flood = Flood(
        np.zeros(n_rows, np.bool_), np.empty(n_rows, np.int64), np.empty(n_rows, np.int64)
    )
    flood.queue[0], flood.far[0], flood.seen[middle] = middle, 0, True
    return flood


@helper
def _reach(near: Near, flood: Flood, row: int, distance: int, last: int) -> int:
    """Put the free rows near ``row`` that were not seen yet into the queue; gives its new end."""
    for place in range(near.ptr[row], near.ptr[row + 1]):
        other = near.near[place]
        if near.is_free[other] and not flood.seen[other]:
            flood.seen[other] = True
            flood.queue[last], flood.far[last] = other, distance
            last += 1
    return last


@helper
def _hops(drawn: np.ndarray, least: int, ends: int, n_rows: int) -> int:
    """How far a change may spread, in steps: ``least`` to ``ends - 1``, or everywhere.

    Each of these is as likely as the others.
    """
    hops = least + int((ends - least + 1) * random(drawn))
    return n_rows if hops == ends else hops


@helper
def _take_away(ops: np.ndarray, values: np.ndarray, row: int, axis: int) -> None:
    """Let a row have nothing on ``axis``."""
    if row < ops.shape[0]:
        ops[row, axis] = -1
    else:
        values[row - ops.shape[0], axis] = -1


@helper
def _change(
    near: Near, moves: Moves, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray
) -> int:
    """Change a state in one neighbourhood; gives the number of rows changed."""
    n_ops, n_rows = ops.shape[0], ops.shape[0] + values.shape[0]
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    axis = int(moves.axis_size.shape[0] * random(drawn))
    if moves.axis_size[axis] < 2:
        return 0
    begin, end = near.move_ptr[middle], near.move_ptr[middle + 1]
    move = near.layer * axis + near.move[begin + int((end - begin) * random(drawn))]
    now = ops[middle, axis] if middle < n_ops else values[middle - n_ops, axis]
    take = _has(near, ops, values, middle, move, axis)
    # Leave alone what uses the axis for something else
    only_free = not take and now < 0 and random(drawn) < 0.5
    hops = _hops(drawn, 0, 5, n_rows)
    flood = _from(middle, n_rows)
    first, last, changed = 0, 1, 0
    while first < last:
        row, distance = flood.queue[first], flood.far[first]
        first += 1
        if take:
            if not _has(near, ops, values, row, move, axis):
                continue
            _take_away(ops, values, row, axis)
            changed += 1
        else:
            current = ops[row, axis] if row < n_ops else values[row - n_ops, axis]
            if only_free and current >= 0:
                continue
            if not _give(near, moves, ops, values, row, move, axis):
                continue
            changed += 1
        if distance < hops:
            last = _reach(near, flood, row, distance + 1, last)
    return changed


@helper
def _recolour(
    near: Near, moves: Moves, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray
) -> int:
    """Let another move have an axis where one has it now; gives the rows changed.

    Where the other cannot have it, none has.
    """
    n_rows = ops.shape[0] + values.shape[0]
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    axis = int(moves.axis_size.shape[0] * random(drawn))
    begin, end = near.move_ptr[middle], near.move_ptr[middle + 1]
    layer = near.layer * axis
    old, new = -1, layer + near.move[begin + int((end - begin) * random(drawn))]
    for place in range(begin, end):
        if _has(near, ops, values, middle, layer + near.move[place], axis):
            old = layer + near.move[place]
    if old < 0 or _has(near, ops, values, middle, new, axis):
        return 0
    hops = _hops(drawn, 1, 8, n_rows)
    flood = _from(middle, n_rows)
    first, last, changed = 0, 1, 0
    while first < last:
        row, distance = flood.queue[first], flood.far[first]
        first += 1
        if not _has(near, ops, values, row, old, axis):
            continue
        _take_away(ops, values, row, axis)
        _give(near, moves, ops, values, row, new, axis)
        changed += 1
        if distance < hops:
            last = _reach(near, flood, row, distance + 1, last)
    return changed


@helper
def _take_over(
    near: Near, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray, chains: Chains
) -> int:
    """Take a neighbourhood over from another good state; gives the number of rows changed."""
    n_ops, n_rows = ops.shape[0], ops.shape[0] + values.shape[0]
    other = int(chains.pool_ops.shape[0] * random(drawn))
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    hops = _hops(drawn, 1, 8, n_rows)
    flood = _from(middle, n_rows)
    first, last, changed = 0, 1, 0
    while first < last:
        row, distance = flood.queue[first], flood.far[first]
        first += 1
        differs = False
        for axis in range(ops.shape[1]):
            if row < n_ops:
                differs |= ops[row, axis] != chains.pool_ops[other, row, axis]
                ops[row, axis] = chains.pool_ops[other, row, axis]
            else:
                differs |= values[row - n_ops, axis] != chains.pool_values[other, row - n_ops, axis]
                values[row - n_ops, axis] = chains.pool_values[other, row - n_ops, axis]
        changed += differs
        if distance < hops and (differs or distance == 0):
            last = _reach(near, flood, row, distance + 1, last)
    return changed


@helper
def _better(pricing: Pricing, price: np.ndarray, other: np.ndarray, allowance: float) -> bool:
    """Is a price lower than another, or above it by no more than the allowance?

    What fits is better than what does not.
    """
    fits, fit = price[1] <= pricing.limit_bytes, other[1] <= pricing.limit_bytes
    if fits != fit:
        return fits
    return score_of(pricing, price[0], price[1]) < score_of(pricing, other[0], other[1]) * (
        1.0 + allowance
    )


@helper
def _enough_s(pricing: Pricing, price: np.ndarray, allowance: float) -> float:
    """Time from which on a state is not ``_better``, whatever its memory.

    C(s) is never below its relative time.
    """
    if price[1] > pricing.limit_bytes or pricing.base_time_s <= 0:
        return math.inf
    return score_of(pricing, price[0], price[1]) * (1.0 + allowance) * pricing.base_time_s


@compiled
def anneal(
    near: Near,
    moves: Moves,
    pricing: Pricing,
    worker: RolloutScratch,
    chains: Chains,
    begin: int,
    end: int,
    steps: int,
    warmth: float,
) -> None:
    """Change chains ``begin`` to ``end`` in ``steps`` steps each, at times for the worse.

    How much worse it may get is drawn from an exponential distribution with mean ``warmth`` (a part
    of C(s)).
    """
    ops, values = np.empty_like(chains.ops[0]), np.empty_like(chains.values[0])
    price = np.empty(2)
    for chain in range(begin, end):
        drawn, now, then = chains.random[chain], worker.near, worker.far
        price_from(
            pricing, worker, chains.ops[chain], chains.values[chain], pricing.root, now, math.inf
        )
        for _ in range(steps):
            copy_rows(ops, chains.ops[chain])
            copy_rows(values, chains.values[chain])
            if random(drawn) < TAKEN_OVER:
                changed = _take_over(near, drawn, ops, values, chains)
            elif random(drawn) < RECOLOURED:
                changed = _recolour(near, moves, drawn, ops, values)
            else:
                changed = _change(near, moves, drawn, ops, values)
            # Two changes may help only together.
            if changed > 0 and random(drawn) < 0.3:
                changed += _change(near, moves, drawn, ops, values)
            if changed == 0:
                continue
            allowance = -warmth * math.log(max(random(drawn), 1e-12))
            enough_s = _enough_s(pricing, chains.price[chain], allowance)
            price[0], price[1] = price_from(pricing, worker, ops, values, now, then, enough_s)
            chains.priced[chain] += 1
            if not _better(pricing, price, chains.price[chain], allowance):
                continue
            now, then = then, now
            copy_rows(chains.ops[chain], ops)
            copy_rows(chains.values[chain], values)
            copy_row(chains.price[chain], price)
            if _better(pricing, price, chains.best[chain], -1e-9):
                copy_rows(chains.best_ops[chain], ops)
                copy_rows(chains.best_values[chain], values)
                copy_row(chains.best[chain], price)


Rows = tuple[np.ndarray, np.ndarray]  #: ops and values of a state, in the finer rows


def start(
    states: list[Rows], prices: list[tuple[float, float]], others: list[Rows], seed: int
) -> Chains:
    """Chains that begin with the given states, in turn; prices are (time_s, peak_bytes).

    ``others``: states whose parts may be taken over besides those of the chains.
    """
    origin = np.arange(CHAINS) % len(states)
    ops = np.stack([states[number][0] for number in origin])
    values = np.stack([states[number][1] for number in origin])
    price = np.array([prices[number] for number in origin], float)
    drawn = np.random.default_rng(seed).integers(1, 2**63, (CHAINS, 1)).astype(np.uint64)
    return Chains(
        ops=ops,
        values=values,
        price=price,
        best_ops=ops.copy(),
        best_values=values.copy(),
        best=price.copy(),
        random=drawn,
        pool_ops=np.stack([*ops, *(state[0] for state in others)]),
        pool_values=np.stack([*values, *(state[1] for state in others)]),
        origin=origin,
        priced=np.zeros(CHAINS, np.int64),
    )


def warmth(share: float) -> float:
    """How warm annealing is when this share of its steps is done."""
    return WARMEST * (COLDEST / WARMEST) ** share


def mix(chains: Chains) -> None:
    """Let the chains take over from the best that each of them has found."""
    chains.pool_ops[:CHAINS] = chains.best_ops
    chains.pool_values[:CHAINS] = chains.best_values


def take_in(chains: Chains, rows: Rows, price: tuple[float, float], scores: np.ndarray) -> None:
    """Let the worst quarter of the chains begin again at a state from elsewhere.

    ``price``: (time_s, peak_bytes) of the state.  ``scores``: [K] lower is better.
    """
    for bad in np.argsort(scores, kind="stable")[::-1][: CHAINS // 4]:
        chains.ops[bad], chains.values[bad] = chains.best_ops[bad], chains.best_values[bad] = rows
        chains.price[bad] = chains.best[bad] = price


def exchange(chains: Chains, scores: np.ndarray) -> None:
    """Let the worst quarter of the chains begin again where the best quarter is.

    ``scores``: [K] lower is better.
    """
    order = np.argsort(scores, kind="stable")
    for good, bad in zip(order[: CHAINS // 4], order[::-1][: CHAINS // 4], strict=True):
        for array in (
            chains.ops,
            chains.values,
            chains.price,
            chains.best_ops,
            chains.best_values,
            chains.best,
            chains.origin,
        ):
            array[bad] = array[good]
