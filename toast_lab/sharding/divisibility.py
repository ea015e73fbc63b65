"""The divisibility report: the sizes in a program that the axes of a mesh do not divide.

It also says which arguments stay whole for that reason.

An action splits a dim on an axis only if the axis divides the dim's size. A colour usually has one
size, but slices and paddings of a dim keep its colour, so the report lists each size by itself.
Axes are considered one by one too; two axes on one dim would have to divide it by the product of
their sizes. Dims of size 1 and axes of size 1 do not count.

Reference: TOAST section 4.2 (which actions are legal). Start reading at ``divisibility``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab import text
from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.colouring import ColourGroup
from toast_lab.conflicts.coverage import value_bytes
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan

LARGE_BYTES_SHARE = 0.02  # arguments below this share of all argument bytes are only counted


class Miss(NamedTuple):
    """An axis that does not divide a size."""

    axis: str
    axis_size: int
    common: int  #: greatest common divisor: an axis of this size would divide the size
    padded: int  #: next larger size that the axis divides

    def __str__(self) -> str:
        alternative = f", or an axis of {self.common}" if self.common > 1 else ""
        return f"{self.axis}={self.axis_size}: pad to {self.padded}{alternative}"


class DimRow(NamedTuple):
    """The dims of one colour group that have one size."""

    group: int
    colour: str  #: the group's name
    size: int
    names: int  #: shardable names of this size
    arguments: tuple[str, ...]  #: arguments that have such a dim
    bytes: float  #: bytes of the values that have such a dim, without constants
    bytes_share: float  #: of the bytes of all values
    divided_by: tuple[str, ...]  #: axes that divide the size
    misses: tuple[Miss, ...]  #: axes that do not


class ArgumentRow(NamedTuple):
    """An argument that every device holds whole."""

    argument: str
    type: str  #: ``f32[64, 12]``
    bytes: float
    bytes_share: float  #: of the bytes of all arguments
    why: str


@dataclasses.dataclass(frozen=True)
class Divisibility:
    """The sizes of a program that a mesh does not divide, and the arguments that stay whole."""

    mesh: Mesh
    #: True: ``arguments`` are those that a plan keeps whole; False: those that no action on this
    #: mesh can cut
    planned: bool
    dims: tuple[DimRow, ...]  #: sizes that no axis divides, most bytes first
    partly: tuple[DimRow, ...]  #: sizes that some axes divide and others do not
    #: whole arguments with more than the share LARGE of the bytes, largest first
    arguments: tuple[ArgumentRow, ...]
    whole_arguments: int  #: number of whole arguments with more than one element, of any size
    whole_bytes: float  #: of these arguments
    argument_bytes: float  #: of all arguments

    def headline(self) -> str:
        """The report in one sentence."""
        if self.dims:
            dims = f"no axis of {self.mesh} divides {len(self.dims)} of the sizes"
        else:
            dims = f"{'some' if self.partly else 'every'} axis of {self.mesh} divides every size"
        share = text.share_text(
            self.whole_bytes / self.argument_bytes if self.argument_bytes else 0.0
        )
        if not self.whole_arguments:
            return f"{dims}; every argument {'is' if self.planned else 'can be'} cut"
        if self.planned:
            return f"{dims}; arguments with {share} of their bytes stay whole under this plan"
        return f"{dims}; arguments with {share} of their bytes cannot be cut"

    def __repr__(self) -> str:
        return f"<Divisibility: {self.headline()}>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        """The headline, then tables of sizes and of arguments; empty tables are left out."""
        sections = [f"Divisibility: {self.headline()}.", *map(str, self.tables())]
        smaller = self.whole_arguments - len(self.arguments)
        if self.arguments and smaller:
            sections[-1] += f"\nand {smaller} smaller arguments"
        return "\n\n".join(sections)

    def tables(self) -> list[text.Table]:
        """A table for each kind of problem that occurs."""
        columns = ("colour", ">size", ">names", ">bytes", "~on arguments", "~remedy")
        dims = (
            (f"Sizes that no axis of {self.mesh} divides", self.dims),
            (f"Sizes that only some axes of {self.mesh} divide", self.partly),
        )
        tables = [
            text.Table(title, columns, [*map(dim_cells, rows)]) for title, rows in dims if rows
        ]
        if self.arguments:
            title = f"Large arguments that {'stay whole' if self.planned else 'cannot be cut'}"
            cells = [*map(argument_cells, self.arguments)]
            headings = ("~argument", "type", ">bytes", ">of all", "~why")
            tables.append(text.Table(title, headings, cells))
        return tables


def argument_cells(row: ArgumentRow) -> tuple[object, ...]:
    """The cells of a row: argument, type, size, share of all arguments, and why it stays whole."""
    share = text.share_text(row.bytes_share)
    return row.argument, row.type, text.bytes_text(row.bytes), share, row.why


def dim_cells(row: DimRow) -> tuple[object, ...]:
    """The cells of a row: colour, size, names, share of the bytes, arguments, alternatives."""
    return (
        row.colour,
        row.size,
        row.names,
        text.share_text(row.bytes_share),
        text.first_items_text(row.arguments) or "-",
        "; ".join(map(str, row.misses)),
    )


def divisibility(analysis: Analysis, mesh: Mesh, plan: ShardingPlan | None = None) -> Divisibility:
    """Report the sizes that ``mesh`` does not divide, and the arguments that stay whole.

    With ``plan`` these are the arguments that it keeps whole, without it those that no action cuts.

    Raises InvalidPlan if the plan is for another mesh or program.
    """
    if plan is not None:
        plan.check_is_of(analysis.program, mesh)
    rows = _dim_rows(analysis, mesh)
    program = analysis.program
    bytes_of = value_bytes(program)[: program.n_arguments]
    total_bytes = float(bytes_of.sum())
    if plan is None:
        whole_arguments = [
            argument
            for argument in range(program.n_arguments)
            if not _cuts(analysis, mesh, argument)
        ]
    else:
        specs = plan.value_specs()
        whole_arguments = [
            argument for argument in range(program.n_arguments) if not any(specs[argument])
        ]
    whole_arguments = [
        argument for argument in whole_arguments if math.prod(program.dims(argument)) > 1
    ]
    large_arguments = sorted(
        (
            argument
            for argument in whole_arguments
            if bytes_of[argument] > LARGE_BYTES_SHARE * total_bytes
        ),
        key=lambda argument: -bytes_of[argument],
    )
    return Divisibility(
        mesh=mesh,
        planned=plan is not None,
        dims=tuple(row for row in rows if not row.divided_by),
        partly=tuple(row for row in rows if row.divided_by),
        arguments=tuple(
            ArgumentRow(
                argument=program.value_name[argument],
                type=f"{program.value_dtype[argument]}{list(program.dims(argument))}",
                bytes=float(bytes_of[argument]),
                bytes_share=float(bytes_of[argument]) / total_bytes,
                why=_why_whole(analysis, mesh, argument, plan is not None),
            )
            for argument in large_arguments
        ),
        whole_arguments=len(whole_arguments),
        whole_bytes=float(bytes_of[whole_arguments].sum()),
        argument_bytes=total_bytes,
    )


def _axes(mesh: Mesh) -> list[tuple[str, int]]:
    return [(axis, size) for axis, size in zip(mesh.axes, mesh.sizes, strict=True) if size > 1]


def misses(size: int, mesh: Mesh) -> tuple[Miss, ...]:
    """The axes of ``mesh`` that do not divide ``size``, with sizes that would work."""
    return tuple(
        Miss(axis, axis_size, math.gcd(size, axis_size), -(-size // axis_size) * axis_size)
        for axis, axis_size in _axes(mesh)
        if size % axis_size
    )


def _dim_rows(analysis: Analysis, mesh: Mesh) -> list[DimRow]:
    """Rows of the (colour group, size) pairs that some axis does not divide, most bytes first."""
    program, names = analysis.program, analysis.names
    if not names.n or not _axes(mesh):
        return []
    group_of = analysis.group[analysis.colour].astype(np.int64)
    shardable = names.shardable
    pairs, counts = np.unique(
        np.stack([group_of[shardable], names.size[shardable]], axis=1), axis=0, return_counts=True
    )
    rank = np.diff(program.shape_ptr)
    value_of_dim = np.repeat(np.arange(program.n_values), rank)
    group_size_value = np.stack(
        [group_of[program.def_dim_factor], program.shape, value_of_dim], axis=1
    )
    group_size_value = np.unique(group_size_value[~program.value_is_constant[value_of_dim]], axis=0)
    values_with_dim: dict[tuple[int, int], list[int]] = {}
    for group, size, value in group_size_value.tolist():
        values_with_dim.setdefault((group, size), []).append(value)
    nbytes = value_bytes(program)
    total_bytes = float(nbytes[~program.value_is_constant].sum())
    rows = []
    for (group, size), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        size_misses = misses(size, mesh)
        values = values_with_dim.get((group, size), [])
        if not size_misses:
            continue
        bytes_with_dim = float(nbytes[values].sum())
        rows.append(
            DimRow(
                group=group,
                colour=analysis.group_name[group],
                size=size,
                names=count,
                arguments=tuple(
                    program.value_name[value] for value in values if value < program.n_arguments
                ),
                bytes=bytes_with_dim,
                bytes_share=bytes_with_dim / total_bytes if total_bytes else 0.0,
                divided_by=tuple(axis for axis, axis_size in _axes(mesh) if size % axis_size == 0),
                misses=size_misses,
            )
        )
    return sorted(rows, key=lambda row: (-row.bytes, row.group, -row.size))


def _cuts(analysis: Analysis, mesh: Mesh, argument: int) -> list[str]:
    """The actions that would cut an argument, as ``colour->axis``."""
    return [
        f"{group.name}->{axis}"
        for _, size, group in _dims(analysis, argument)
        for axis, axis_size in _axes(mesh)
        if group.shardable and size % axis_size == 0
    ]


def _dims(analysis: Analysis, argument: int) -> Iterator[tuple[int, int, ColourGroup]]:
    """(dim, size, colour group) of the dims of an argument that have more than one element."""
    program = analysis.program
    pairs = zip(program.dims(argument), program.def_names(argument), strict=True)
    for dim, (size, name) in enumerate(pairs):
        if size > 1:
            yield dim, size, analysis.groups[analysis.group[analysis.colour[name]]]


def _why_whole(analysis: Analysis, mesh: Mesh, argument: int, planned: bool) -> str:
    cuts = _cuts(analysis, mesh, argument)
    if planned and cuts:
        return f"no action of the plan cuts it; {text.first_items_text(cuts, 4)} could"
    if not _axes(mesh):
        return "every axis of the mesh has size 1"
    reasons = []
    for dim, size, group in _dims(analysis, argument):
        if not group.shardable:
            reasons.append(f"dim {dim} ({group.name}) has a colour with nothing to split")
        else:
            reasons.append(
                f"dim {dim} ({group.name}) = {size}, {'; '.join(map(str, misses(size, mesh)))}"
            )
    return ". ".join(reasons)
