"""Reads a ``shard_map``: its specs, its rule, and the devices that its collectives join.

In StableHLO it is an ``sdy.manual_computation``: a body on one device's parts, with the shardings
in which operands come in and results go out. It is one op of the program (``ir.program.ShardMap``).
No plan splits it in any other way, so all its factors stay whole; they only carry colours through
it. Dims that have the same axes in the specs and the same size share a factor, as the batch does
that goes in with one operand and comes out with a result.

Inside, devices are numbered in the order of the mesh, and collectives list groups of these numbers.
``axes_of_groups`` finds the axes that a list of groups means.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir.own_rules import Rule, Shapes
from toast_lab.ir.program import NEED_REPLICATION

SHARD_MAP = "sdy.manual_computation"

Spec = tuple[tuple[str, ...], ...]


def rule(operands: Shapes, results: Shapes, specs: Sequence[Spec]) -> Rule:
    """The rule of a ``shard_map``, from the specs of its operands and then of its results."""
    sizes: list[int] = []
    shared: dict[tuple[tuple[str, ...], int], int] = {}
    tensors = []
    for shape, spec in zip((*operands, *results), specs, strict=True):
        dims: list[tuple[int, ...]] = []
        for size, axes in zip(shape, spec, strict=True):
            factor = shared.get((axes, size), len(sizes)) if axes else len(sizes)
            if factor == len(sizes):
                sizes.append(size)
                shared[axes, size] = factor
            dims.append((factor,))
        tensors.append(dims)
    return Rule(
        sizes,
        [NEED_REPLICATION] * len(sizes),
        tensors[: len(operands)],
        tensors[len(operands) :],
    )


def interface(
    operation: Any, meshes: dict[str, _jaxlib.MeshAxes]
) -> tuple[_jaxlib.MeshAxes, tuple[str, ...], list[Spec], str]:
    """Read the attributes of a ``shard_map``.

    Gives (mesh, manual axes in the mesh's order, specs of operands and then results, the reason why
    no plan can keep it; empty if one can). Specs name manual axes only.
    """
    manual = _jaxlib.manual_axes_of(operation)
    mesh: _jaxlib.MeshAxes = ()
    specs: list[Spec] = []
    troubles: dict[str, None] = {}
    for key, values in (
        ("in_shardings", operation.operands),
        ("out_shardings", operation.results),
    ):
        shardings = _jaxlib.shardings_in(operation, key)
        for attribute, value in zip(shardings, values, strict=True):
            rank = len(value.type.shape)
            mesh_of_value, spec, _, trouble = _jaxlib.sharding_parts(attribute, meshes, rank)
            mesh = mesh or mesh_of_value
            if trouble:
                troubles[trouble] = None
            specs.append(tuple(tuple(axis for axis in dim if axis in manual) for dim in spec))
    if not mesh:
        troubles["its specs name no mesh"] = None
    ordered = tuple(axis for axis, _ in mesh if axis in manual)
    return mesh, ordered, specs, "; ".join(troubles)


_NAMED_GROUPS = re.compile(r"replica_group_mesh_axes<.*?axes = \[(.*)\]")
_AXIS = re.compile(r'axis_ref<name = "([^"]*)"')


def axes_of_collective(operation: Any, mesh: _jaxlib.MeshAxes) -> tuple[tuple[str, ...], bool]:
    """The mesh axes over which a collective's devices differ, and whether it joins all of them."""
    if "source_target_pairs" in operation.attributes:
        pairs = np.asarray(ir.DenseIntElementsAttr(operation.attributes["source_target_pairs"]))
        return _axes_between(pairs.tolist(), mesh), True
    written = operation.attributes["replica_groups"]
    # Newer versions of JAX name the axes
    if named := _NAMED_GROUPS.search(str(written)):
        axes = tuple(_AXIS.findall(named.group(1)))
        return axes, "sub_axis_info" not in named.group(1)
    groups = np.asarray(ir.DenseIntElementsAttr(written))
    # Groups of unequal size are filled up with -1.
    return axes_of_groups([[i for i in group if i >= 0] for group in groups.tolist()], mesh)


def axes_of_groups(
    groups: Iterable[Sequence[int]], mesh: _jaxlib.MeshAxes
) -> tuple[tuple[str, ...], bool]:
    """The fewest mesh axes that join all devices of each group, and whether they join no others.

    >>> axes_of_groups([[0, 1], [2, 3]], (("data", 2), ("model", 2)))
    (('model',), True)
    >>> axes_of_groups([[0, 1], [2, 3]], (("data", 4),))
    (('data',), False)
    """
    sizes = [size for _, size in mesh]
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    wanted = {frozenset(group) for group in groups if len(group) > 1}
    larger = [i for i, size in enumerate(sizes) if size > 1]
    for count in range(len(larger) + 1):
        for chosen in itertools.combinations(larger, count):
            joined = np.moveaxis(devices, chosen, range(-count, 0)) if count else devices
            rows = joined.reshape(-1, math.prod(sizes[i] for i in chosen)).tolist()
            sets = {frozenset(row) for row in rows if len(row) > 1}
            if all(any(group <= row for row in sets) for group in wanted):
                return tuple(mesh[i][0] for i in chosen), wanted == sets
    return tuple(axis for axis, _ in mesh), False


def _axes_between(pairs: Sequence[Sequence[int]], mesh: _jaxlib.MeshAxes) -> tuple[str, ...]:
    """The axes along which sources and targets differ."""
    sizes = [size for _, size in mesh]
    places = np.stack(np.unravel_index(np.asarray(pairs, np.int64).reshape(-1, 2), sizes))
    differs = (places[:, :, 0] != places[:, :, 1]).any(axis=1)
    return tuple(axis for (axis, _), is_used in zip(mesh, differs, strict=True) if is_used)
