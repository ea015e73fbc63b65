"""Bytes and devices of a collective, from the scheduler's own description of it.

The compiler renames and fuses instructions after scheduling, so the final HLO text may not contain
a collective under its name in the schedule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: A block of the text: for each key its values and nested blocks, in order.
Block = Mapping[str, Sequence[Any]]

_BITS = re.compile(r"[A-Z]+(\d+)")


def is_collective(opcode: str) -> bool:
    """Is an instruction with this opcode a collective?"""
    return opcode.startswith(
        ("all-", "reduce-scatter", "collective-permute", "collective-broadcast", "ragged-all")
    )


def local_bytes(block: Block) -> float:
    """The larger of the operand's and the result's bytes on one device; 0 without a shape.

    The start of an asynchronous collective has the shape (operand, result, ...).
    """
    (shape,) = block.get("shape", ({},))
    tuple_shapes = shape.get("tuple_shapes", ())
    return max(map(_nbytes, tuple_shapes)) if tuple_shapes else _nbytes(shape)


def _nbytes(shape: Block) -> float:
    tuple_shapes = shape.get("tuple_shapes", ())
    if tuple_shapes:
        return math.fsum(map(_nbytes, tuple_shapes))
    (name,) = shape.get("element_type", ("",))
    bits = _BITS.match(name)
    size = int(bits[1]) / 8.0 if bits is not None else float(name == "PRED")
    return size * math.prod(_numbers(shape, "dimensions"))


def device_groups(block: Block, n_devices: int, *, is_permute: bool = False) -> list[list[int]]:
    """Groups of devices that communicate with each other; for a permute its pairs.

    All devices form one group if the text lists none, except for a permute, which then sends
    nothing.
    """
    pairs = block.get("source_target_pairs", ())
    if pairs or is_permute:
        return [[_number(pair, "source"), _number(pair, "target")] for pair in pairs]
    for listed in block.get("collective_device_list", ()):
        groups = device_groups(listed, n_devices)
        if groups:
            return groups
    for list_kind, read_groups in _FORMS.items():
        for listed in block.get(list_kind, ()):
            return read_groups(listed)
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
    cuts: list[list[int]] = [[size] for size in sizes]  # parts of each axis, major first
    chosen: list[tuple[int, int]] = []  # (axis, part)
    for axis in listed.get("axes", ()):
        index = _number(axis, "mesh_axis_index")
        part = 0
        for sub_axis in axis.get("sub_axis_info", ()):
            pre_size, size = _number(sub_axis, "pre_size"), _number(sub_axis, "size")
            cuts[index] = [pre_size, size, sizes[index] // (pre_size * size)]
            part = 1
        chosen.append((index, part))
    shape = [size for parts in cuts for size in parts]
    first_part = np.cumsum([0, *map(len, cuts)])
    group_dims = [int(first_part[axis]) + part for axis, part in chosen]
    other_dims = [dim for dim in range(len(shape)) if dim not in group_dims]
    devices = np.arange(math.prod(shape))
    for assignment in mesh.get("device_assignment", ()):
        device_ids = _numbers(assignment, "replica_device_ids") or _numbers(
            assignment, "device_ids"
        )
        if len(device_ids) == len(devices):
            devices = np.asarray(device_ids)
    group_size = math.prod(shape[dim] for dim in group_dims)
    return (
        devices.reshape(shape)
        .transpose([*other_dims, *group_dims])
        .reshape(-1, group_size)
        .tolist()
    )


_FORMS = {"iota_replica_group_list": _iota_groups, "mesh_axes_replica_group_list": _mesh_groups}


def _numbers(block: Block, key: str) -> list[int]:
    return [int(value) for value in block.get(key, ())]


def _number(block: Block, key: str) -> int:
    """The integer field ``key``; 0 if absent, because the text leaves zeros out."""
    return next(iter(_numbers(block, key)), 0)
