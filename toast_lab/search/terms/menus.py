"""Menus: every way to split a class of ops, or of values, on all mesh axes at once.

Integer programs and the lower bound choose for each class separately, from its menu.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.hashing import Classes
from toast_lab.sharding.alike import Effects
from toast_lab.sharding.steps import LAYOUT_BITS


def make_menus(
    problem: Problem,
    ops: Classes,
    values: Classes,
    check: Callable[[], None] = lambda: None,
    *,
    min_names: int = 0,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The menu of each class: all choices that sizes and pins allow.

    Only names and dims that some colour action can split, or that are pinned, are split; the first
    choice of each menu splits only what is pinned.

    Args:
        problem: program, mesh and pins.
        ops: classes of ops, at least as fine as the classes of the problem's colours.
        values: classes of values, likewise.
        check: called regularly; may raise to end the work.
        min_names: fewest names of a colour group that an action splits.

    Returns:
        (K arrays [S, A], int32: the name of the class's first op that each axis splits, -1: none;
        L arrays [T, A], int8: the dim that each axis splits, -1: none).
    """
    program, coarse, axis_size = problem.analysis.program, problem.space.alike, problem.mesh.array()
    # Names and dims for each class of the colours; names count from the first one of their op
    is_acted_on = problem.space.n_names >= min_names
    starts, effects = program.factor_ptr[coarse.ops.first], coarse.op_effects
    offsets = effects.cut - starts[effects.target]
    names_of = _axes_of(effects, offsets, len(starts), is_acted_on)
    effects = coarse.value_effects
    dims_of = _axes_of(effects, effects.cut, len(coarse.values.first), is_acted_on)
    start_ops, start_values = problem.space.start
    op_menus, value_menus = [], []
    for first in ops.first.tolist():
        check()
        begin, label = int(program.factor_ptr[first]), int(coarse.ops.label[first])
        shift = begin - int(starts[label])
        names = {begin + offset: axes for offset, axes in names_of[label].items()}
        pinned = [name + shift if name >= 0 else -1 for name in start_ops[label].tolist()]
        size = {name: int(program.factor_size[name]) for name in program.factors(first)}
        op_menus.append(_menu(names, pinned, size, axis_size))
    for first in values.first.tolist():
        label = int(coarse.values.label[first])
        size = dict(enumerate(program.dims(first)))
        menu = _menu(dims_of[label], start_values[label].tolist(), size, axis_size)
        value_menus.append(menu.astype(np.int8))
    return op_menus, value_menus


def packed_layouts(menu: np.ndarray) -> np.ndarray:
    """[T] int64 packed layouts (``sharding.steps``) of a menu [T, A] of dims, -1: none."""
    shift = LAYOUT_BITS * np.arange(menu.shape[1], dtype=np.int64)
    return ((menu.astype(np.int64) + 1) << shift).sum(axis=1)


def unpacked_layouts(layouts: np.ndarray, n_axes: int) -> np.ndarray:
    """[T, A] dims, -1: none, of [T] packed layouts; the inverse of ``packed_layouts``."""
    shift = LAYOUT_BITS * np.arange(n_axes, dtype=np.int64)
    return ((layouts[:, None] >> shift) & 31) - 1


def _axes_of(
    effects: Effects, cut: np.ndarray, count: int, is_acted_on: np.ndarray
) -> list[dict[int, int]]:
    """For each class, the names or dims that moves split, each with the axes it may be on.

    Args:
        effects: the effects of all moves on the classes.
        cut: the name or dim that each effect splits.
        count: number of classes.
        is_acted_on: [M] which moves count.

    Returns:
        For each class {name or dim: axes, one bit each}.
    """
    axes_of: list[dict[int, int]] = [{} for _ in range(count)]
    counts = is_acted_on[effects.move]
    entries = (column[counts].tolist() for column in (effects.target, cut, effects.axes))
    for target, name, axes in zip(*entries, strict=True):
        axes_of[target][name] = axes_of[target].get(name, 0) | axes
    return axes_of


def _menu(
    axes_of: dict[int, int], pinned: list[int], size: dict[int, int], axis_size: np.ndarray
) -> np.ndarray:
    """[S, A] all ways to put mesh axes on names, or dims, such that the sizes divide.

    Args:
        axes_of: the axes that each name or dim may be on, one bit each.
        pinned: the name or dim that each axis is pinned to, -1: not pinned.
        size: the size of each name or dim.
        axis_size: [A].
    """
    ways_of_axis = axis_size.tolist()
    choices = [
        [pinned_name]
        if pinned_name >= 0
        else [
            -1,
            *(name for name, axes in sorted(axes_of.items()) if ways > 1 and axes >> axis & 1),
        ]
        for axis, (pinned_name, ways) in enumerate(zip(pinned, ways_of_axis, strict=True))
    ]
    rows = []
    for row in itertools.product(*choices):
        total_ways: dict[int, int] = {}
        for name, ways in zip(row, ways_of_axis, strict=True):
            if name >= 0:
                total_ways[name] = total_ways.get(name, 1) * ways
        if all(size[name] % ways == 0 for name, ways in total_ways.items()):
            rows.append(row)
    return np.asarray(rows, np.int32).reshape(-1, len(ways_of_axis))
