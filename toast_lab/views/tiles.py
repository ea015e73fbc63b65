"""Which part of a tensor each device of a mesh holds: as numbers, as a table and as a picture.

Devices are numbered along the mesh as in JAX, the last axis fastest; of several axes on one dim the
first one makes the coarsest cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec
from toast_lab.views.palette import NEUTRAL, style
from toast_lab.views.plot_style import FONT, new_figure

#: background of the texts in cells: the hues of cells are too close to any text colour that suits
#: both themes
CHIP = "#465163"
MAX_DRAWN = 64
MAX_ROWS = 1024
MAX_COLUMNS = 16
#: most letters of the labels in a row of devices; longer labels would overlap
LABEL_LETTERS = 56


class DevicePart(NamedTuple):
    """The part of a tensor that one device holds."""

    device: int
    #: coordinate along each mesh axis
    place: tuple[int, ...]
    #: (start, stop) of each dim
    ranges: tuple[tuple[int, int], ...]

    def text(self, dims: Sequence[int] | None = None) -> str:
        """``0:64, 32:64``."""
        shown = range(len(self.ranges)) if dims is None else dims
        return ", ".join(f"{self.ranges[dim][0]}:{self.ranges[dim][1]}" for dim in shown)


def parts(mesh: Mesh, shape: tuple[int, ...], spec: Spec) -> list[DevicePart]:
    """The part of a tensor that each device holds.

    Args:
        mesh: the devices.
        shape: sizes of the tensor's dims.
        spec: mesh axes that cut each dim, one entry per dim as in ``ShardingPlan.value_specs``.
    """
    device_parts = []
    for device, coordinate in enumerate(itertools.product(*(range(size) for size in mesh.sizes))):
        ranges = []
        for size, axes in zip(shape, spec, strict=True):
            part_index = 0
            for axis in axes:
                part_index = part_index * mesh.size(axis) + coordinate[mesh.axes.index(axis)]
            length = size // mesh.ways(axes)
            ranges.append((part_index * length, (part_index + 1) * length))
        device_parts.append(DevicePart(device, coordinate, tuple(ranges)))
    return device_parts


def parts_frame(mesh: Mesh, device_parts: Sequence[DevicePart]) -> pd.DataFrame:
    """One row per device: the data of the picture as a table, with every dim."""
    rank = len(device_parts[0].ranges) if device_parts else 0
    return pd.DataFrame(
        {
            "device": [part.device for part in device_parts],
            **{
                axis: [part.place[index] for part in device_parts]
                for index, axis in enumerate(mesh.axes)
            },
            **{f"dim {dim}": [part.text((dim,)) for part in device_parts] for dim in range(rank)},
        }
    )


def dim_texts(mesh: Mesh, shape: tuple[int, ...], spec: Spec) -> list[str]:
    """``dim 0 of 256: 4 parts (data)`` for every dim."""
    return [
        f"dim {dim} of {size}: "
        + (f"{mesh.ways(axes)} parts ({', '.join(axes)})" if axes else "whole")
        for dim, (size, axes) in enumerate(zip(shape, spec, strict=True))
    ]


def grid(mesh: Mesh) -> tuple[int, int]:
    """(rows, columns) in which the devices are drawn.

    The last axis runs across, the others down.
    """
    across = mesh.sizes[-1]
    if len(mesh.sizes) == 1 and across > 4:
        across = next(
            columns for columns in range(int(math.sqrt(across)), 0, -1) if across % columns == 0
        )
        across = mesh.sizes[-1] // across
    across = min(across, MAX_COLUMNS)
    return math.ceil(min(mesh.n_devices, MAX_DRAWN) / across), across


def tile_columns(
    mesh: Mesh, shape: tuple[int, ...], spec: Spec, dims: Sequence[int]
) -> dict[str, list[Any]]:
    """Columns of the picture: for each drawn device its cell and the part of it that is filled.

    Args:
        mesh: the devices, of which at most ``MAX_DRAWN`` are drawn.
        shape: sizes of the tensor's dims.
        spec: mesh axes of each dim.
        dims: the dims to show, down and across; one for a vector, none for a scalar.
    """
    drawn = parts(mesh, shape, spec)[:MAX_DRAWN]
    _, across = grid(mesh)
    hue_of_ranges: dict[tuple[tuple[int, int], ...], str] = {}
    down_dim, across_dim = [None, None, *dims][-2:] if len(dims) < 2 else dims[:2]

    def share(part: DevicePart, dim: int | None) -> tuple[float, float]:
        if dim is None or not shape[dim]:
            return 0.0, 1.0
        start, stop = part.ranges[dim]
        return start / shape[dim], stop / shape[dim]

    labels = [f"{part.device}  {part.text(dims)}".rstrip() for part in drawn]
    if across * max(map(len, labels)) > LABEL_LETTERS:
        labels = [str(part.device) for part in drawn]
    tiles = []
    for part, label in zip(drawn, labels, strict=True):
        grid_row, column = divmod(part.device, across)
        left, top = column + 0.06, grid_row + 0.08
        tile_width, tile_height = 0.88, 0.84
        x0, x1 = share(part, across_dim)
        y0, y1 = share(part, down_dim)
        coordinates = zip(mesh.axes, part.place, strict=True)
        tiles.append(
            {
                "left": left,
                "right": left + tile_width,
                "top": top,
                "bottom": top + tile_height,
                "held_left": left + x0 * tile_width,
                "held_right": left + x1 * tile_width,
                "held_top": top + y0 * tile_height,
                "held_bottom": top + y1 * tile_height,
                "hue": hue_of_ranges.setdefault(part.ranges, style(len(hue_of_ranges)).hue),
                "text": label,
                "part": part.text() or "all of it",
                "at": ", ".join(f"{axis} {index}" for axis, index in coordinates),
            }
        )
    return {name: [tile[name] for tile in tiles] for name in tiles[0]}


class TilesPlot:
    """The picture of a tensor: a cell per device.

    In each cell the outline is the tensor and the filled part is what the device holds.

    Attributes:
        figure: the Bokeh figure.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.source = ColumnDataSource(tile_columns(mesh, (), (), ()))
        self.figure = self._draw()

    def show(self, shape: tuple[int, ...], spec: Spec, dims: Sequence[int]) -> None:
        """Draw another tensor on the same mesh."""
        self.source.data = tile_columns(self.mesh, shape, spec, dims)

    @property
    def size_px(self) -> tuple[float, float]:
        """Width and height at which the texts of all cells can be read."""
        rows, columns = grid(self.mesh)
        return 60.0 + 120.0 * columns, 30.0 + 76.0 * rows

    def _draw(self) -> figure:
        rows, columns = grid(self.mesh)
        picture = new_figure(
            "device tiles",
            x_range=Range1d(start=-0.02, end=columns + 0.02),
            y_range=Range1d(start=rows + 0.02, end=-0.02),
            x_axis_location="above",
            toolbar_location=None,
        )
        picture.ygrid.grid_line_color = None
        axes, sizes = self.mesh.axes, self.mesh.sizes
        # Otherwise the devices of a row have no coordinate in common
        ordered = len(axes) > 1 and columns == sizes[-1]
        name = f"{axes[-1]} " if columns <= 8 else ""
        across = [f"{name}{column}" if ordered else "" for column in range(columns)]
        coordinates = itertools.product(*map(range, sizes[:-1]))
        down = [
            ", ".join(f"{axis} {index}" for axis, index in zip(axes[:-1], place, strict=True))
            if ordered
            else ""
            for place in itertools.islice(coordinates, rows)
        ]
        down += [""] * (rows - len(down))
        for axis, labels in ((picture.xaxis[0], across), (picture.yaxis[0], down)):
            texts = {position + 0.5: label for position, label in enumerate(labels)}
            axis.ticker = FixedTicker(ticks=list(texts))
            axis.major_label_overrides = texts
        held = picture.quad(
            left="held_left",
            right="held_right",
            top="held_top",
            bottom="held_bottom",
            source=self.source,
            fill_color="hue",
            fill_alpha=0.4,
            line_color="hue",
            line_width=1.2,
            name="held",
        )
        picture.quad(
            left="left",
            right="right",
            top="top",
            bottom="bottom",
            source=self.source,
            fill_color=None,
            line_color=NEUTRAL,
            line_alpha=0.6,
        )
        picture.text(
            "left",
            "top",
            text="text",
            source=self.source,
            x_offset=4,
            y_offset=3,
            text_baseline="top",
            text_font_size="10.5px",
            text_color="white",
            text_font=value(FONT),
            padding=1,
            border_radius=3,
            background_fill_color=CHIP,
            background_fill_alpha=0.85,
        )
        picture.add_tools(
            HoverTool(renderers=[held], tooltips=[("device", "@at"), ("holds", "@part")])
        )
        return picture
