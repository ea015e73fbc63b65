"""Refinement of a plan of colour actions: change one neighbourhood of the program at a time.

A colour action shards its colour everywhere, which makes the search quick, but the best plan may
shard a colour in one part of a layer and not in another. Refinement starts from a state of the tree
search and proposes one of three changes. It picks a row (a class of alike ops or values), a mesh
axis and a move of the space, and gives the axis to the move's name, or takes it away, on the rows
within a few steps through the program. Or it replaces one name by another on the rows of such a
neighbourhood. Or it copies a neighbourhood from another good state. A change is kept if C(s) gets
lower, or slightly higher while annealing is warm.

Rows are finer than those of the search's states: ops that cost the same under every plan
(``cost.fold``) share a row, so that repeated layers still change together but the parts of a layer
change separately.

Several states, the chains, are changed side by side by annealing from a low temperature.
Neighbourhoods are copied from the best states of the chains and of earlier starts. From time to
time the worst chains begin again at the states of the best ones.

Arguments and results of the program keep the rows of the search (a parameter has to leave with the
sharding with which it came). Values that loops and conditionals carry are left alone, since they
are one value in several places.

The paper has no such step; the tables of the evaluation show its gain over colour actions alone.
Threads share the chains, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.cost.reprice import Repricer
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
from toast_lab.search.terms.grain_rows import rows_of_grain
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.divides import divides
from toast_lab.sharding.moves import Moves
from toast_lab.sharding.space import Space
from toast_lab.sharding.state import State

CHAINS, STEPS = 16, 16  #: number of chains, and steps of each in one batch
COPY_SHARE = 0.3  #: share of the proposals that copy a neighbourhood of another state
#: share of the other proposals that replace one name by another on an axis
REPLACE_SHARE = 0.1
#: mean of the loss that a step may bring, as a share of C(s), at the beginning and at the end
WARMEST, COLDEST = 0.0002, 0.00001
EXCHANGES = 8  #: number of times that the worst chains begin again at the best ones
MIXES = 32  #: number of times that the best states of the chains are put into the pool


@packed
class Neighbourhood(NamedTuple):
    """Neighbours and moves of each row: rows are classes of ops (``K``), then of values (``L``)."""

    #: M if pins make axes differ, else 0: a move on axis a is row ``layer * a + move`` of the next
    #: three arrays
    layer: int
    #: [M or A * M, K] name along which the move splits the class; -1: none, or pins forbid it
    move_factor: Int32Matrix
    #: [M or A * M, L] dim along which the move shards the class; -1: none, or pins forbid it
    move_dim: Int8Matrix
    value_size: Int64Matrix  #: [M or A * M, L] size of that dim
    ptr: Int64Array  #: [K+L+1] where the neighbours of each row start in ``neighbour``
    neighbour: Int64Array  #: for each row, the rows that share a definition or a use with it
    move_ptr: Int64Array  #: [K+L+1] where the moves of each row start in ``move``
    move: Int64Array  #: for each row, the moves that split it
    free: Int64Array  #: rows that may be changed
    is_free: BoolArray  #: [K+L] the same as flags


@packed
class Chains(NamedTuple):
    """States (``K``) that are changed side by side, each with the best state it has reached."""

    ops: Int32Cube  #: [K, rows, A]
    values: Int8Cube  #: [K, rows, A]
    price: Float64Matrix  #: [K, 2] time_s, peak_bytes
    best_ops: Int32Cube  #: [K, rows, A]
    best_values: Int8Cube  #: [K, rows, A]
    best: Float64Matrix  #: [K, 2] time_s, peak_bytes
    random: UInt64Matrix  #: [K, 1] uint64
    #: [P, rows, A] good states from which neighbourhoods are copied: those of the chains first (see
    #: ``mix``), then those of earlier starts
    pool_ops: Int32Cube
    pool_values: Int8Cube  #: [P, rows, A]
    origin: Int64Array  #: [K] index of the state that the chain began with
    priced: Int64Array  #: [K] number of states priced


class FineRows(NamedTuple):
    """The finer rows that refinement changes, their neighbours, and prices folded to them."""

    alike: Alike
    neighbourhood: Neighbourhood
    repricer: Repricer


def make_fine(problem: Problem) -> FineRows:
    """The finer rows of a problem, with their neighbours and prices."""
    alike = rows_of_grain(problem, "fine")
    return FineRows(
        alike=alike,
        neighbourhood=neighbourhood(problem.space, alike),
        repricer=Repricer(problem.prices.folded(alike)),
    )


def rows_of(fine: FineRows, state: State) -> tuple[np.ndarray, np.ndarray]:
    """A state in the finer rows: ([K, A] names of each class's first op, [L, A] dims)."""
    return state.op_factor[fine.alike.ops.first], state.value_dim[fine.alike.values.first]


def neighbourhood(space: Space, alike: Alike) -> Neighbourhood:
    """Find the rows that share a definition or a use, and the moves that split each row."""
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
    is_touched = np.concatenate([move_factor >= 0, move_dim >= 0], axis=1)
    is_free = np.array(is_touched.any(axis=0))
    # Values that loops and conditionals carry are one value in several places: not free.
    is_tied = program.owner != np.arange(program.n_ops)
    is_tied[program.owner[is_tied]] = True
    is_free[op_row[np.flatnonzero(is_tied)]] = False
    is_free[value_row[np.flatnonzero(is_tied[program.value_op])]] = False
    move_of_row = [np.flatnonzero(is_touched[:, row]) for row in range(row_count)]
    layer, n_axes = 0, len(space.mesh.axes)
    if space.fixed is not None:
        # A pinned row is not changed on its pinned axis: no move splits it there.
        fixed_ops = space.fixed.op_factor[alike.ops.first]
        fixed = np.concatenate([fixed_ops, space.fixed.value_dim[alike.values.first]])
        on_axis = (axes >> np.arange(n_axes, dtype=np.uint8)[:, None, None]) & 1 == 1
        is_allowed = (on_axis & (fixed.T < 0)[:, None]).reshape(n_axes * n_moves, row_count)
        move_factor = np.where(
            is_allowed[:, :n_ops], np.tile(move_factor, (n_axes, 1)), np.int32(-1)
        )
        move_dim = np.where(is_allowed[:, n_ops:], np.tile(move_dim, (n_axes, 1)), np.int8(-1))
        value_size = np.tile(value_size, (n_axes, 1))
        layer = n_moves
    return Neighbourhood(
        layer=layer,
        move_factor=move_factor,
        move_dim=move_dim,
        value_size=value_size,
        ptr=np.searchsorted(pairs[0], np.arange(row_count + 1)),
        neighbour=pairs[1].astype(np.int64),
        move_ptr=np.cumsum([0, *map(len, move_of_row)]),
        move=np.concatenate(move_of_row).astype(np.int64),
        free=np.flatnonzero(is_free),
        is_free=is_free,
    )


@helper
def _give_axis(
    near: Neighbourhood,
    moves: Moves,
    ops: np.ndarray,
    values: np.ndarray,
    row: int,
    move: int,
    axis: int,
) -> bool:
    """Give ``axis`` to the move's name on a row, if it divides; True if the row has changed."""
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
def _has_axis(
    near: Neighbourhood, ops: np.ndarray, values: np.ndarray, row: int, move: int, axis: int
) -> bool:
    """Is the move's name on ``axis`` in this row?"""
    n_ops = ops.shape[0]
    if row < n_ops:
        return near.move_factor[move, row] >= 0 and ops[row, axis] == near.move_factor[move, row]
    return (
        near.move_dim[move, row - n_ops] >= 0
        and values[row - n_ops, axis] == near.move_dim[move, row - n_ops]
    )


class Flood(NamedTuple):
    """The rows that a change spreads over, the nearest first."""

    seen: np.ndarray  #: [rows] flags
    queue: np.ndarray  #: [rows] rows in the order they were reached
    distance: np.ndarray  #: [rows] distance of each row in the queue, in steps through the program


@helper
def _flood_from(middle: int, n_rows: int) -> Flood:
    """A flood that begins at one row."""
    flood = Flood(
        np.zeros(n_rows, np.bool_), np.empty(n_rows, np.int64), np.empty(n_rows, np.int64)
    )
    flood.queue[0], flood.distance[0], flood.seen[middle] = middle, 0, True
    return flood


@helper
def _reach(near: Neighbourhood, flood: Flood, row: int, distance: int, back: int) -> int:
    """Append the free neighbours of ``row`` not seen yet to the queue; gives its new end."""
    for position in range(near.ptr[row], near.ptr[row + 1]):
        neighbour = near.neighbour[position]
        if near.is_free[neighbour] and not flood.seen[neighbour]:
            flood.seen[neighbour] = True
            flood.queue[back], flood.distance[back] = neighbour, distance
            back += 1
    return back


@helper
def _hops(drawn: np.ndarray, least: int, everywhere: int, n_rows: int) -> int:
    """Draw how far a change may spread, in steps: ``least`` to ``ends - 1``, or everywhere.

    All of these are equally likely.
    """
    hops = least + int((everywhere - least + 1) * random(drawn))
    return n_rows if hops == everywhere else hops


@helper
def _clear_axis(ops: np.ndarray, values: np.ndarray, row: int, axis: int) -> None:
    """Leave ``axis`` of a row unused."""
    if row < ops.shape[0]:
        ops[row, axis] = -1
    else:
        values[row - ops.shape[0], axis] = -1


@helper
def _change_move(
    near: Neighbourhood, moves: Moves, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray
) -> int:
    """Give an axis to a move in one neighbourhood, or take it away; gives the rows changed."""
    n_ops, n_rows = ops.shape[0], ops.shape[0] + values.shape[0]
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    axis = int(moves.axis_size.shape[0] * random(drawn))
    if moves.axis_size[axis] < 2:
        return 0
    begin, end = near.move_ptr[middle], near.move_ptr[middle + 1]
    move = near.layer * axis + near.move[begin + int((end - begin) * random(drawn))]
    current_name = ops[middle, axis] if middle < n_ops else values[middle - n_ops, axis]
    takes_away = _has_axis(near, ops, values, middle, move, axis)
    # If set, rows that use the axis for another name stay as they are.
    only_free = not takes_away and current_name < 0 and random(drawn) < 0.5
    hops = _hops(drawn, 0, 5, n_rows)
    flood = _flood_from(middle, n_rows)
    front, back, changed = 0, 1, 0
    while front < back:
        row, distance = flood.queue[front], flood.distance[front]
        front += 1
        if takes_away:
            if not _has_axis(near, ops, values, row, move, axis):
                continue
            _clear_axis(ops, values, row, axis)
            changed += 1
        else:
            current = ops[row, axis] if row < n_ops else values[row - n_ops, axis]
            if only_free and current >= 0:
                continue
            if not _give_axis(near, moves, ops, values, row, move, axis):
                continue
            changed += 1
        if distance < hops:
            back = _reach(near, flood, row, distance + 1, back)
    return changed


@helper
def _recolour(
    near: Neighbourhood, moves: Moves, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray
) -> int:
    """Replace one move by another on an axis in one neighbourhood; gives the rows changed.

    On rows that the new move cannot split, the axis becomes unused.
    """
    n_rows = ops.shape[0] + values.shape[0]
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    axis = int(moves.axis_size.shape[0] * random(drawn))
    begin, end = near.move_ptr[middle], near.move_ptr[middle + 1]
    layer = near.layer * axis
    old, new = -1, layer + near.move[begin + int((end - begin) * random(drawn))]
    for position in range(begin, end):
        if _has_axis(near, ops, values, middle, layer + near.move[position], axis):
            old = layer + near.move[position]
    if old < 0 or _has_axis(near, ops, values, middle, new, axis):
        return 0
    hops = _hops(drawn, 1, 8, n_rows)
    flood = _flood_from(middle, n_rows)
    front, back, changed = 0, 1, 0
    while front < back:
        row, distance = flood.queue[front], flood.distance[front]
        front += 1
        if not _has_axis(near, ops, values, row, old, axis):
            continue
        _clear_axis(ops, values, row, axis)
        _give_axis(near, moves, ops, values, row, new, axis)
        changed += 1
        if distance < hops:
            back = _reach(near, flood, row, distance + 1, back)
    return changed


@helper
def _take_over(
    near: Neighbourhood, drawn: np.ndarray, ops: np.ndarray, values: np.ndarray, chains: Chains
) -> int:
    """Copy a neighbourhood from another good state; gives the number of rows changed."""
    n_ops, n_rows = ops.shape[0], ops.shape[0] + values.shape[0]
    source = int(chains.pool_ops.shape[0] * random(drawn))
    middle = near.free[int(near.free.shape[0] * random(drawn))]
    hops = _hops(drawn, 1, 8, n_rows)
    flood = _flood_from(middle, n_rows)
    front, back, changed = 0, 1, 0
    while front < back:
        row, distance = flood.queue[front], flood.distance[front]
        front += 1
        differs = False
        for axis in range(ops.shape[1]):
            if row < n_ops:
                differs |= ops[row, axis] != chains.pool_ops[source, row, axis]
                ops[row, axis] = chains.pool_ops[source, row, axis]
            else:
                differs |= (
                    values[row - n_ops, axis] != chains.pool_values[source, row - n_ops, axis]
                )
                values[row - n_ops, axis] = chains.pool_values[source, row - n_ops, axis]
        changed += differs
        if distance < hops and (differs or distance == 0):
            back = _reach(near, flood, row, distance + 1, back)
    return changed


@helper
def _better(pricing: Pricing, price: np.ndarray, other: np.ndarray, allowance: float) -> bool:
    """Is a price lower than another, or above it by less than the allowance (a share)?

    A price that fits is better than one that does not.
    """
    fits, other_fits = price[1] <= pricing.limit_bytes, other[1] <= pricing.limit_bytes
    if fits != other_fits:
        return fits
    return score_of(pricing, price[0], price[1]) < score_of(pricing, other[0], other[1]) * (
        1.0 + allowance
    )


@helper
def _enough_s(pricing: Pricing, price: np.ndarray, allowance: float) -> float:
    """The time above which no state is ``_better``, whatever its memory.

    It exists because C(s) is never below the relative time; infinite if ``price`` does not fit.
    """
    if price[1] > pricing.limit_bytes or pricing.base_time_s <= 0:
        return math.inf
    return score_of(pricing, price[0], price[1]) * (1.0 + allowance) * pricing.base_time_s


@compiled
def anneal(
    near: Neighbourhood,
    moves: Moves,
    pricing: Pricing,
    worker: RolloutScratch,
    chains: Chains,
    begin: int,
    end: int,
    steps: int,
    warmth: float,
) -> None:
    """Change chains ``begin`` to ``end`` by ``steps`` steps each, some of them for the worse.

    The loss that a step may bring is drawn from an exponential distribution with mean ``warmth`` (a
    share of C(s)).
    """
    ops, values = np.empty_like(chains.ops[0]), np.empty_like(chains.values[0])
    price = np.empty(2)
    for chain in range(begin, end):
        drawn, current, proposed = chains.random[chain], worker.near, worker.far
        price_from(
            pricing,
            worker,
            chains.ops[chain],
            chains.values[chain],
            pricing.root,
            current,
            math.inf,
        )
        for _ in range(steps):
            copy_rows(ops, chains.ops[chain])
            copy_rows(values, chains.values[chain])
            if random(drawn) < COPY_SHARE:
                changed = _take_over(near, drawn, ops, values, chains)
            elif random(drawn) < REPLACE_SHARE:
                changed = _recolour(near, moves, drawn, ops, values)
            else:
                changed = _change_move(near, moves, drawn, ops, values)
            # Some changes help only together.
            if changed > 0 and random(drawn) < 0.3:
                changed += _change_move(near, moves, drawn, ops, values)
            if changed == 0:
                continue
            allowance = -warmth * math.log(max(random(drawn), 1e-12))
            enough_s = _enough_s(pricing, chains.price[chain], allowance)
            price[0], price[1] = price_from(
                pricing, worker, ops, values, current, proposed, enough_s
            )
            chains.priced[chain] += 1
            if not _better(pricing, price, chains.price[chain], allowance):
                continue
            current, proposed = proposed, current
            copy_rows(chains.ops[chain], ops)
            copy_rows(chains.values[chain], values)
            copy_row(chains.price[chain], price)
            if _better(pricing, price, chains.best[chain], -1e-9):
                copy_rows(chains.best_ops[chain], ops)
                copy_rows(chains.best_values[chain], values)
                copy_row(chains.best[chain], price)


Rows = tuple[np.ndarray, np.ndarray]  #: a state in the finer rows: its ops and its values


def start(
    states: list[Rows], prices: list[tuple[float, float]], others: list[Rows], seed: int
) -> Chains:
    """Chains that begin with the given states in turn.

    Args:
        states: the states to begin with.
        prices: (time_s, peak_bytes) of each state.
        others: further states from which neighbourhoods may be copied.
        seed: seed of the random choices.
    """
    origin = np.arange(CHAINS) % len(states)
    ops = np.stack([states[index][0] for index in origin])
    values = np.stack([states[index][1] for index in origin])
    price = np.array([prices[index] for index in origin], float)
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
    """The warmth of annealing when this share of its steps is done."""
    return WARMEST * (COLDEST / WARMEST) ** share


def mix(chains: Chains) -> None:
    """Put the best state of each chain into the pool, from which neighbourhoods are copied."""
    chains.pool_ops[:CHAINS] = chains.best_ops
    chains.pool_values[:CHAINS] = chains.best_values


def take_in(chains: Chains, rows: Rows, price: tuple[float, float], scores: np.ndarray) -> None:
    """Start the worst quarter of the chains again at a state from elsewhere.

    ``price``: (time_s, peak_bytes) of the state. ``scores``: [K] lower is better.
    """
    for chain in np.argsort(scores, kind="stable")[::-1][: CHAINS // 4]:
        chains.ops[chain], chains.values[chain] = (
            chains.best_ops[chain],
            chains.best_values[chain],
        ) = rows
        chains.price[chain] = chains.best[chain] = price


def exchange(chains: Chains, scores: np.ndarray) -> None:
    """Start the worst quarter of the chains again at the states of the best quarter.

    ``scores``: [K] lower is better.
    """
    order = np.argsort(scores, kind="stable")
    for best, worst in zip(order[: CHAINS // 4], order[::-1][: CHAINS // 4], strict=True):
        for array in (
            chains.ops,
            chains.values,
            chains.price,
            chains.best_ops,
            chains.best_values,
            chains.best,
            chains.origin,
        ):
            array[worst] = array[best]
