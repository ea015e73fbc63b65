"""Menus: all that a class of ops, or of values, may be split along, all mesh axes at once.

What searches that choose for each class by itself choose from (``alpa``, and the bound of ``gap``).
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
    problem: Problem, ops: Classes, values: Classes, check: Callable[[], None] = lambda: None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """All that sizes and pins allow.

    Only what some colour action may split, or is pinned, is split; the first choice of each menu
    splits nothing but what is pinned.

    Args:
        problem: program, mesh and pins.
        ops: what ops go together, no coarser than the problem's colours tell them apart.
        values: the same of values.
        check: called now and then; may raise to end this.

    Returns:
        (K of [S, A] int32 name of the class's first op on each axis, -1: none;
        L of [T, A] int8 dim on each axis, -1: none).
    """
    program, coarse, axis_size = problem.analysis.program, problem.space.alike, problem.mesh.array()
    # Names and dims by the classes of the colours, counted from the first of their op
    starts, effects = program.factor_ptr[coarse.ops.first], coarse.op_effects
    names_of = _axes_of(effects, effects.cut - starts[effects.target], len(starts))
    effects = coarse.value_effects
    dims_of = _axes_of(effects, effects.cut, len(coarse.values.first))
    start_ops, start_values = problem.space.start
    op_menus, value_menus = [], []
    for first in ops.first.tolist():
        check()
        begin, row = int(program.factor_ptr[first]), int(coarse.ops.label[first])
        moved = begin - int(starts[row])
        names = {begin + offset: on for offset, on in names_of[row].items()}
        pinned = [name + moved if name >= 0 else -1 for name in start_ops[row].tolist()]
        size = {name: int(program.factor_size[name]) for name in program.factors(first)}
        op_menus.append(_menu(names, pinned, size, axis_size))
    for first in values.first.tolist():
        row = int(coarse.values.label[first])
        size = dict(enumerate(program.dims(first)))
        menu = _menu(dims_of[row], start_values[row].tolist(), size, axis_size)
        value_menus.append(menu.astype(np.int8))
    return op_menus, value_menus


def packed_layouts(menu: np.ndarray) -> np.ndarray:
    """[T] int64 packed layouts (``sharding.steps``) of rows of dims [T, A], -1: none."""
    shift = LAYOUT_BITS * np.arange(menu.shape[1], dtype=np.int64)
    return ((menu.astype(np.int64) + 1) << shift).sum(axis=1)


def unpacked_layouts(layouts: np.ndarray, n_axes: int) -> np.ndarray:
    """[T, A] rows of dims, -1: none, of [T] packed layouts: undoes ``packed_layouts``."""
    shift = LAYOUT_BITS * np.arange(n_axes, dtype=np.int64)
    return ((layouts[:, None] >> shift) & 31) - 1


def _axes_of(effects: Effects, cut: np.ndarray, count: int) -> list[dict[int, int]]:
    """For each class what some move cuts, as ``cut`` counts it, and the axes it may be on."""
    axes_of: list[dict[int, int]] = [{} for _ in range(count)]
    for target, name, axes in zip(
        effects.target.tolist(), cut.tolist(), effects.axes.tolist(), strict=True
    ):
        axes_of[target][name] = axes_of[target].get(name, 0) | axes
    return axes_of


def _menu(
    axes_of: dict[int, int], pinned: list[int], size: dict[int, int], axis_size: np.ndarray
) -> np.ndarray:
    """[S, A] all ways to put mesh axes on names, or dims, such that the sizes divide.

    Args:
        axes_of: the axes that each may be on, a bit each.
        pinned: what each axis is put on, -1: not pinned.
        size: of each.
        axis_size: [A].
    """
    each_size = axis_size.tolist()
    choices = [
        [on_it]
        if on_it >= 0
        else [-1, *(name for name, on in sorted(axes_of.items()) if ways > 1 and on >> axis & 1)]
        for axis, (on_it, ways) in enumerate(zip(pinned, each_size, strict=True))
    ]
    rows = []
    for row in itertools.product(*choices):
        cut: dict[int, int] = {}
        for name, ways in zip(row, each_size, strict=True):
            if name >= 0:
                cut[name] = cut.get(name, 1) * ways
        if all(size[name] % ways == 0 for name, ways in cut.items()):
            rows.append(row)
    return np.asarray(rows, np.int32).reshape(-1, len(each_size))
