"""Bytes and devices of a collective, from the scheduler's own description of it.

The compiler renames and fuses after it has scheduled, so that the final text may not know a
collective by the schedule's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: A block of the text: by key the values and blocks that stand in it, in their order.
Block = Mapping[str, Sequence[Any]]

_BITS = re.compile(r"[A-Z]+(\d+)")


def is_collective(opcode: str) -> bool:
    """Does an instruction with this opcode join devices?"""
    return opcode.startswith(
        ("all-", "reduce-scatter", "collective-permute", "collective-broadcast", "ragged-all")
    )


def local_bytes(block: Block) -> float:
    """The larger of what one device holds before and after; 0 where no shape is told.

    The first half of an asynchronous collective has the shape (what it takes, what it gives, ...).
    """
    (shape,) = block.get("shape", ({},))
    sides = shape.get("tuple_shapes", ())
    return max(map(_nbytes, sides)) if sides else _nbytes(shape)


def _nbytes(shape: Block) -> float:
    parts = shape.get("tuple_shapes", ())
    if parts:
        return math.fsum(map(_nbytes, parts))
    (name,) = shape.get("element_type", ("",))
    bits = _BITS.match(name)
    size = int(bits[1]) / 8.0 if bits is not None else float(name == "PRED")
    return size * math.prod(_numbers(shape, "dimensions"))


def device_groups(block: Block, n_devices: int) -> list[list[int]]:
    """Groups of devices that a collective joins; the pairs of a permute.

    All devices are one group where none is told.
    """
    pairs = block.get("source_target_pairs", ())
    if pairs:
        return [[_number(pair, "source"), _number(pair, "target")] for pair in pairs]
    for listed in block.get("collective_device_list", ()):
        groups = device_groups(listed, n_devices)
        if groups:
            return groups
    for form, read in _FORMS.items():
        for listed in block.get(form, ()):
            return read(listed)
    listed = [_numbers(group, "replica_ids") for group in block.get("replica_groups", ())]
    return [group for group in listed if group] or [list(range(n_devices))]


def _iota_groups(listed: Block) -> list[list[int]]:
    devices = np.arange(
        _number(listed, "num_replica_groups") * _number(listed, "num_devices_per_group")
    ).reshape(_numbers(listed, "iota_reshape_dims"))
    order = _numbers(listed, "iota_transpose_perm")
    if order:
        devices = devices.transpose(order)
    return devices.reshape(_number(listed, "num_replica_groups"), -1).tolist()


def _mesh_groups(listed: Block) -> list[list[int]]:
    """Groups along axes of a mesh, or along parts of axes."""
    (mesh,) = listed["mesh"]
    sizes = [_number(axis, "size") for axis in mesh.get("axes", ())]
    cuts: list[list[int]] = [[size] for size in sizes]  # of each axis, major part first
    chosen: list[tuple[int, int]] = []  # (axis, part)
    for axis in listed.get("axes", ()):
        index = _number(axis, "mesh_axis_index")
        part = 0
        for info in axis.get("sub_axis_info", ()):
            before, size = _number(info, "pre_size"), _number(info, "size")
            cuts[index] = [before, size, sizes[index] // (before * size)]
            part = 1
        chosen.append((index, part))
    shape = [size for parts in cuts for size in parts]
    first = np.cumsum([0, *map(len, cuts)])
    inside = [int(first[axis]) + part for axis, part in chosen]
    outside = [place for place in range(len(shape)) if place not in inside]
    devices = np.arange(math.prod(shape))
    for assignment in mesh.get("device_assignment", ()):
        named = _numbers(assignment, "replica_device_ids") or _numbers(assignment, "device_ids")
        if len(named) == len(devices):
            devices = np.asarray(named)
    width = math.prod(shape[place] for place in inside)
    return devices.reshape(shape).transpose([*outside, *inside]).reshape(-1, width).tolist()


_FORMS = {"iota_replica_group_list": _iota_groups, "mesh_axes_replica_group_list": _mesh_groups}


def _numbers(block: Block, key: str) -> list[int]:
    return [int(value) for value in block.get(key, ())]


def _number(block: Block, key: str) -> int:
    """A field; the text leaves zeros out."""
    return next(iter(_numbers(block, key)), 0)
