"""Lay a mesh onto a machine's links, ``lay_out(machine, mesh)``: where each mesh axis runs.

``docs/machines.md`` has the rules of levels, tori, rings and lines ("Where a mesh axis runs"). Two
cases more: axes also share a dim of a torus if that lets a longer axis have the dims that it needs.
If a dim would still be longer than the machine's, axes fill the dims one after the other, minor
first; if that fails too (a prime larger than any dim), the torus counts as one long path in which
the axes are nested.

Reference: TOAST section 5 has TPU v3 over a torus and GPUs over NVLink; JAX's
``mesh_utils.create_device_mesh`` lays meshes onto tori in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from toast_lab.errors import InvalidProblem
from toast_lab.machines.links import COLLECTIVES, CollectiveTerms, Link
from toast_lab.machines.machine_model import Machine
from toast_lab.sharding.mesh import Mesh

#: Columns of ``AxisLinks.shape``, which has one row for each axis. HOPS: hops to the farthest
#: device, or rounds on a switch, in units of the axis's latency. SPREAD, PERMUTED: bytes over the
#: busiest link in an all_to_all and in a permute to the farthest device, per local byte, at the
#: axis's rate. GROUP: axes with equal numbers share links. WAYS and the following ones are for all
#: axes of the group together: their devices, rate, hops, spread, permuted. SIZE: devices of the
#: axis. RATE: bytes/s at which one of them sends. LATENCY: seconds of a hop. SWITCHED: 1 if all
#: devices are one hop apart, else 0. FITTED: 0 means no fitted terms, ALONE that they replace rate
#: and latency, STRADDLES that they hold for the inner level of an axis that continues outside.
#: TERMS and the following ones: for each of ``links.COLLECTIVES`` its ``CollectiveTerms``, the
#: first below 0 if it has none.
HOPS, SPREAD, PERMUTED, GROUP, WAYS, GROUP_RATE, GROUP_HOPS, GROUP_SPREAD, GROUP_PERMUTED = range(9)
SIZE, RATE, LATENCY, SWITCHED, FITTED, TERMS = range(9, 15)
N_TERMS = len(CollectiveTerms._fields)
N_COLUMNS = TERMS + N_TERMS * len(COLLECTIVES)
ALONE, STRADDLES = 1.0, 2.0


Extents = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class AxisLinks:
    """The links under each of A mesh axes, for the formulas of ``machines/collectives.py``."""

    shape: np.ndarray  #: [A, N_COLUMNS] float64, see the comment above ``HOPS``
    where: tuple[str, ...]  #: as shown to users: "torus dim 0, ring of 16"
    slice: Extents  #: extents of the part of the torus that the mesh takes, () without a torus

    @property
    def bytes_per_s(self) -> np.ndarray:
        """[A] rate of each axis."""
        return self.shape[:, RATE]


class Span(NamedTuple):
    """A part of an axis on one torus dim: every ``stride``-th of the dim's chips."""

    dim: int
    size: int
    stride: int


class _Path(NamedTuple):
    """The links of one axis on one level; the fields are those of ``AxisLinks`` and ``shape``."""

    rate: float
    latency_s: float
    switched: bool
    hops: float
    spread: float
    permuted: float
    where: str
    #: Fitted terms of the innermost level that has any.
    collectives: Mapping[str, CollectiveTerms] = types.MappingProxyType({})


def lay_out(machine: Machine, mesh: Mesh) -> AxisLinks:
    """Lay ``mesh`` onto the links of ``machine``.

    Raises:
        InvalidProblem: the mesh has more devices than the links join; the message has both numbers.
    """
    max_devices = machine.max_devices
    if max_devices is not None and mesh.n_devices > max_devices:
        raise InvalidProblem(
            f"mesh {mesh} has {mesh.n_devices} devices, but {machine.name} joins at most "
            f"{max_devices} ({machine.links[-1].name}). Make the mesh smaller or choose another "
            "machine; a machine file can add a level of links outside"
        )
    sizes_by_level = _sizes_by_level(machine, mesh)
    n_axes = len(mesh.axes)
    paths: list[list[tuple[int, _Path]]] = [[] for _ in range(n_axes)]
    group = np.arange(n_axes)
    slice_: Extents = ()
    group_path: dict[int, _Path] = {}
    for level, link in enumerate(machine.links):
        sizes = sizes_by_level[level]
        if link.topology == "torus":
            spans, slice_ = _torus(link, sizes)
            path_of = partial(_torus_path, link, slice_=slice_, wraps=_wraps(link, slice_))
            for axis in range(n_axes):
                if spans[axis]:
                    paths[axis].append((sizes[axis], path_of(spans[axis])))
            _join_groups(group, group_path, spans, path_of)
        else:
            for axis in range(n_axes):
                if sizes[axis] <= 1:
                    continue
                if link.topology == "ring":
                    path = _own_ring(link, sizes[axis])
                else:
                    group_size = mesh.sizes[axis] // sizes[axis]
                    path = _switch(link, sizes[axis], is_outer=level > 0, group_size=group_size)
                paths[axis].append((sizes[axis], path))
            whole_axes = [axis for axis in range(n_axes) if 1 < sizes[axis] == mesh.sizes[axis]]
            if link.topology == "switch":
                group[whole_axes] = group[whole_axes[:1]]
    combined = [_combine(axis_paths) for axis_paths in paths]
    shape = np.zeros((n_axes, N_COLUMNS))
    for axis, path in enumerate(combined):
        group_axes = [
            other
            for other in range(n_axes)
            if group[other] == group[axis] and mesh.sizes[other] > 1
        ]
        ways = math.prod(mesh.sizes[other] for other in group_axes)
        joint_path = (
            group_path.get(int(group[axis])) if len(group_axes) > 1 and not path.switched else path
        )
        if joint_path is None or any(len(paths[other]) > 1 for other in group_axes):
            # 0 devices: the group never acts as one axis.
            ways, joint_path = 0, path
        form = path.hops, path.spread, path.permuted, group[axis]
        joint_columns = joint_path.rate, joint_path.hops, joint_path.spread, joint_path.permuted
        links = mesh.sizes[axis], path.rate, path.latency_s, path.switched
        fitted_columns = _fitted_columns(path, straddles=len(paths[axis]) > 1)
        shape[axis] = (*form, ways, *joint_columns, *links, *fitted_columns)
    return AxisLinks(shape, tuple(path.where for path in combined), slice_)


def _fitted_columns(path: _Path, *, straddles: bool) -> list[float]:
    """The columns of an axis from FITTED on."""
    columns = [(STRADDLES if straddles else ALONE) if path.collectives else 0.0]
    for kind in COLLECTIVES:
        columns += path.collectives.get(kind, [-1.0] * N_TERMS)
    return columns


def _sizes_by_level(machine: Machine, mesh: Mesh) -> list[list[int]]:
    """The size of the part of each axis that runs on each level, as [level][axis].

    Minor axes fill the inner levels first.
    """
    unplaced = list(mesh.sizes)
    by_level = []
    inner_devices = 1
    for level, link in enumerate(machine.links):
        outermost = level == len(machine.links) - 1
        room = (
            mesh.n_devices if outermost or link.devices is None else link.devices // inner_devices
        )
        inner_devices = link.devices or inner_devices
        sizes = [1] * len(unplaced)
        for axis in reversed(range(len(unplaced))):
            sizes[axis] = _largest_divisor(unplaced[axis], room)
            unplaced[axis] //= sizes[axis]
            # If a part of this axis remains, it is outside, and so are all axes outside it.
            room = room // sizes[axis] if unplaced[axis] == 1 else 1
        by_level.append(sizes)
    return by_level


def _switch(link: Link, devices: int, *, is_outer: bool, group_size: int) -> _Path:
    where = f"{link.name}, {devices} devices"
    if is_outer:
        where = f"{link.name} between {devices} groups"
        where += f" of {group_size}" if group_size > 1 else ""
    return _Path(
        rate=link.bytes_per_s,
        latency_s=link.latency_s,
        switched=True,
        hops=math.ceil(math.log2(devices)),
        spread=1 - 1 / devices,
        permuted=1.0,
        where=where,
        collectives=link.collectives,
    )


def _own_ring(link: Link, devices: int) -> _Path:
    # With 2 devices both links lead to the same neighbour
    one_way = 1.0 if devices == 2 else 2.0
    spread = devices * devices // 4 / devices
    return _Path(
        rate=link.bytes_per_s,
        latency_s=link.latency_s,
        switched=False,
        hops=devices // 2,
        spread=spread,
        permuted=max(one_way, 2 * spread),
        where=f"{link.name}, ring of {devices}",
    )


def _combine(paths: list[tuple[int, _Path]]) -> _Path:
    """An axis that runs on several levels, innermost first, as one path."""
    if not paths:
        return _Path(
            rate=1.0,
            latency_s=0.0,
            switched=True,
            hops=0.0,
            spread=0.0,
            permuted=0.0,
            where="nowhere, size 1",
        )
    if len(paths) == 1:
        return paths[0][1]
    devices = math.prod(size for size, _ in paths)
    latency_s = max(path.latency_s for _, path in paths)
    inner, rate, all_to_all_s, permute_s = 1, math.inf, 0.0, 0.0
    for size, path in paths:
        rate = min(rate, inner * path.rate)
        if path.switched:
            outside_share = inner * (size - 1) / devices
            level_s = path.spread / (1 - 1 / size) * outside_share / path.rate
        else:
            # The share of destinations within this level
            level_s = path.spread * (inner * size / devices) / path.rate
        all_to_all_s = max(all_to_all_s, level_s)
        permute_s = max(permute_s, path.permuted / path.rate)
        inner *= size
    if latency_s:
        hops = sum(path.hops * path.latency_s for _, path in paths) / latency_s
    else:
        hops = sum(path.hops for _, path in paths)
    return _Path(
        rate=rate,
        latency_s=latency_s,
        switched=all(path.switched for _, path in paths),
        hops=hops,
        spread=all_to_all_s * rate,
        permuted=permute_s * rate,
        where=" and ".join(path.where for _, path in paths),
        collectives=next((path.collectives for _, path in paths if path.collectives), {}),
    )


class TorusPlaces(NamedTuple):
    """The positions of a mesh's devices on a torus."""

    place: tuple[tuple[int, ...], ...]  #: coordinates of each device, in the mesh's order
    extents: Extents
    wraps: tuple[bool, ...]  #: for each dim, is it closed into a ring?


def torus_places(machine: Machine, mesh: Mesh) -> TorusPlaces | None:
    """Positions of all devices; None unless the innermost links are a torus that joins them all."""
    link, sizes = machine.links[0], list(mesh.sizes)
    if link.topology != "torus" or _sizes_by_level(machine, mesh)[0] != sizes:
        return None
    spans, extents = _torus(link, sizes)
    if any(span.dim < 0 for axis_spans in spans for span in axis_spans):
        return None  # no torus of the machine holds the mesh
    places = []
    for index in np.ndindex(*sizes):
        place = [0] * len(extents)
        for axis_spans, position in zip(spans, index, strict=True):
            for span in reversed(axis_spans):
                position, offset = divmod(position, span.size)
                place[span.dim] += offset * span.stride
        places.append(tuple(place))
    return TorusPlaces(tuple(places), extents, tuple(_wraps(link, extents)))


# -- torus -----------------------------------------------------------------------------------------


def _torus(link: Link, sizes: list[int]) -> tuple[list[list[Span]], Extents]:
    """The spans of each axis, and the extents of the slice."""
    extents = link.extents
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    bundled = [
        _own_dims(axes, sizes, extents, n_bundles)
        for n_bundles in range(min(len(axes), len(extents)), 0, -1)
    ]
    candidates = [*bundled, _poured(axes, sizes, extents)]
    factors = next((candidate for candidate in candidates if candidate is not None), None)
    spans: list[list[Span]] = [[] for _ in sizes]
    if factors is None:  # one long path with nested axes, minor first
        stride = 1
        for axis in reversed(axes):
            spans[axis] = [Span(-1, sizes[axis], stride)]
            stride *= sizes[axis]
        return spans, (stride,)
    slice_ = []
    for dim, dim_factors in enumerate(factors):
        stride = 1
        for axis, factor in dim_factors:
            spans[axis].append(Span(dim, factor, stride))
            stride *= factor
        slice_.append(stride)
    return spans, tuple(slice_)


_Factors = list[list[tuple[int, int]]]  # for each dim, minor first: (axis, its factor on this dim)


def _own_dims(
    axes: list[int], sizes: list[int], extents: Extents, n_bundles: int
) -> _Factors | None:
    """Axes in ``n_bundles`` bundles, each on dims of its own.

    None if a dim would be longer than that of the torus.
    """
    bundles = [[axis] for axis in axes]
    while len(bundles) > n_bundles:
        products = [math.prod(sizes[axis] for axis in bundle) for bundle in bundles]
        pairs = itertools.combinations(range(len(bundles)), 2)
        i, j = min(pairs, key=lambda pair: products[pair[0]] * products[pair[1]])
        bundles[i] = sorted(bundles[i] + bundles.pop(j))
    n_dims = [1] * len(bundles)
    for _ in range(len(extents) - len(bundles)):
        # Only an axis that is alone on its dims gets another one, and only if it has a factor of at
        # least 2 for each.
        extendable = [
            i
            for i, bundle in enumerate(bundles)
            if len(bundle) == 1 and min(_near_square(sizes[bundle[0]], n_dims[i] + 1)) > 1
        ]
        if not extendable:
            break
        i = max(extendable, key=lambda i: (max(_near_square(sizes[bundles[i][0]], n_dims[i])), -i))
        n_dims[i] += 1
    factors: _Factors = []
    for bundle, count in zip(bundles, n_dims, strict=True):
        if count == 1:
            factors.append([(axis, sizes[axis]) for axis in reversed(bundle)])
        else:
            axis_factors = _near_square(sizes[bundle[0]], count)
            factors += [[(bundle[0], factor)] for factor in axis_factors if factor > 1]
    # The longest dims of the slice take the longest dims of the torus.
    lengths = [math.prod(factor for _, factor in dim) for dim in factors]
    longest_first = zip(sorted(lengths, reverse=True), sorted(extents, reverse=True), strict=False)
    if any(length > extent for length, extent in longest_first):
        return None
    by_dim: _Factors = [[] for _ in extents]
    free_dims = sorted(range(len(extents)), key=lambda dim: extents[dim])
    if extents == tuple(sorted(extents)) and all(length <= extents[0] for length in lengths):
        # Keep the mesh's order if any order fits.
        by_dim[: len(factors)] = factors
        return by_dim
    for i in sorted(range(len(factors)), key=lambda i: -lengths[i]):
        by_dim[free_dims.pop()] = factors[i]
    return by_dim


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> list[int]:
    small_divisors = [
        divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0
    ]
    return sorted({*small_divisors, *(number // divisor for divisor in small_divisors)})


def _largest_divisor(number: int, limit: int) -> int:
    return max(divisor for divisor in _divisors(number) if divisor <= max(limit, 1))


@functools.lru_cache(maxsize=1024)
def _near_square(number: int, count: int) -> Extents:
    """``number`` as ``count`` ascending factors, the largest being as small as possible."""
    if count == 1:
        return (number,)
    options = [divisor for divisor in _divisors(number) if divisor**count <= number]
    return min(
        (
            tuple(sorted((divisor, *_near_square(number // divisor, count - 1))))
            for divisor in options
        ),
        key=lambda sizes: (sizes[-1], -sizes[0]),
    )


def _poured(axes: list[int], sizes: list[int], extents: Extents) -> _Factors | None:
    """Fill the dims with the axes one after the other, minor first; None if one does not fit."""
    by_dim: _Factors = [[] for _ in extents]
    room = list(extents)
    for axis in reversed(axes):
        unplaced = sizes[axis]
        for dim in sorted(range(len(extents)), key=lambda dim: (room[dim] == extents[dim], dim)):
            factor = _largest_divisor(unplaced, room[dim])
            if factor > 1:
                by_dim[dim].append((axis, factor))
                room[dim] //= factor
                unplaced //= factor
        if unplaced > 1:
            return None
    return by_dim


def _wraps(link: Link, slice_: Extents) -> list[bool]:
    is_multiple = [extent % link.wrap_multiple == 0 for extent in slice_]
    one_path = len(slice_) != len(link.extents)
    if one_path or (link.wrap_all and not all(is_multiple)):
        return [False] * len(slice_)
    return [multiple and extent > 2 for multiple, extent in zip(is_multiple, slice_, strict=True)]


def _torus_path(link: Link, spans: list[Span], slice_: Extents, wraps: list[bool]) -> _Path:
    """The path of an axis on one dim, or on several whose links it uses together."""
    devices = math.prod(span.size for span in spans)
    rates, hops, spread_s, permute_s, where = [], 0, 0.0, 0.0, []
    for dim, size, stride in spans:
        # The outermost axis of a dim is a ring if the dim is; inner axes are lines.
        ring = wraps[dim] and size * stride == slice_[dim] and slice_[dim] > 2
        one_way = link.bytes_per_s / 2 / stride
        rate = 2 * one_way if ring else one_way
        rates.append(rate)
        hops += stride * (size // 2 if ring else size - 1)
        spread = size * size // 4 / size / rate
        spread_s = max(spread_s, spread)
        # All messages go the longest way: on a ring half of them in each direction, on a line those
        # of one half across its middle.
        permute_s = max(permute_s, 1 / one_way, 2 * spread if ring else size // 2 / rate)
        sharing = f", stride {stride}" if stride > 1 else ""
        name = f"torus dim {dim}" if dim >= 0 else "a path through the torus"
        where.append(
            f"{name} ({'ring' if ring else 'line'} of {size}{', wraps' if ring else ''}{sharing})"
        )
    # The bound of collectives._simultaneous_s, here over the dims of one axis.
    worst_s = max(
        (math.prod(spans[i].size for i in chosen) - 1) / devices / sum(rates[i] for i in chosen)
        for count in range(1, len(spans) + 1)
        for chosen in itertools.combinations(range(len(spans)), count)
    )
    rate = rates[0] if len(rates) == 1 else (1 - 1 / devices) / worst_s
    return _Path(
        rate=rate,
        latency_s=link.latency_s,
        switched=False,
        hops=hops,
        spread=spread_s * rate,
        permuted=permute_s * rate,
        where=f"{link.name} {' and '.join(where)}",
    )


def _join_groups(
    group: np.ndarray,
    group_path: dict[int, _Path],
    spans: list[list[Span]],
    path_of: Callable[[list[Span]], _Path],
) -> None:
    """Give axes that share a torus dim the same group number.

    If all axes of a group are on that dim alone, their joint path is added to ``group_path``.
    """
    for dim in {span.dim for axis_spans in spans for span in axis_spans}:
        members = [
            axis
            for axis, axis_spans in enumerate(spans)
            if any(span.dim == dim for span in axis_spans)
        ]
        shared_number = group[members[0]]
        group[np.isin(group, group[members])] = shared_number
        if len(members) > 1 and all(len(spans[axis]) == 1 for axis in members):
            size = math.prod(span.size for axis in members for span in spans[axis])
            group_path[int(shared_number)] = path_of([Span(dim, size, stride=1)])
