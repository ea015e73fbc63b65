"""Which part of a tensor each device of a mesh holds: as numbers, as a table and as a picture.

Devices count along the mesh as in JAX, the last axis fastest; of several axes on one dim the first
cuts it coarsest.
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
from toast_lab.views.graph_plot import FONT, _style
from toast_lab.views.palette import NEUTRAL, style

#: behind the numbers of a cell, whose own hues are too near to any colour that both themes allow
CHIP = "#465163"
MAX_DRAWN = 64
MAX_ROWS = 1024
MAX_COLUMNS = 16
#: of the labels of devices beside each other; longer ones would run into each other
LABEL_LETTERS = 56


class Part(NamedTuple):
    """What one device holds."""

    device: int
    place: tuple[int, ...]  #: coordinate along each mesh axis
    ranges: tuple[tuple[int, int], ...]  #: (start, stop) of each dim

    def text(self, dims: Sequence[int] | None = None) -> str:
        """``0:64, 32:64``."""
        shown = range(len(self.ranges)) if dims is None else dims
        return ", ".join(f"{self.ranges[d][0]}:{self.ranges[d][1]}" for d in shown)


def parts(mesh: Mesh, shape: tuple[int, ...], spec: Spec) -> list[Part]:
    """The part of a tensor that each device holds.

    Args:
        mesh: the devices.
        shape: sizes of the tensor's dims.
        spec: mesh axes that cut each dim, one entry a dim, as in ``ShardingPlan.value_specs``.
    """
    found = []
    for device, place in enumerate(itertools.product(*(range(size) for size in mesh.sizes))):
        ranges = []
        for size, axes in zip(shape, spec, strict=True):
            index = 0
            for axis in axes:
                index = index * mesh.size(axis) + place[mesh.axes.index(axis)]
            length = size // mesh.ways(axes)
            ranges.append((index * length, (index + 1) * length))
        found.append(Part(device, place, tuple(ranges)))
    return found


def parts_frame(mesh: Mesh, found: Sequence[Part]) -> pd.DataFrame:
    """One row a device: the table twin of the picture, with every dim."""
    rank = len(found[0].ranges) if found else 0
    return pd.DataFrame(
        {
            "device": [p.device for p in found],
            **{a: [p.place[i] for p in found] for i, a in enumerate(mesh.axes)},
            **{f"dim {d}": [p.text((d,)) for p in found] for d in range(rank)},
        }
    )


def dim_texts(mesh: Mesh, shape: tuple[int, ...], spec: Spec) -> list[str]:
    """``dim 0 of 256: 4 parts (data)`` for every dim."""
    return [
        f"dim {d} of {size}: "
        + (f"{mesh.ways(axes)} parts ({', '.join(axes)})" if axes else "whole")
        for d, (size, axes) in enumerate(zip(shape, spec, strict=True))
    ]


def grid(mesh: Mesh) -> tuple[int, int]:
    """(rows, columns) in which the devices are drawn.

    The last axis runs across, the others down.
    """
    across = mesh.sizes[-1]
    if len(mesh.sizes) == 1 and across > 4:
        across = next(c for c in range(int(math.sqrt(across)), 0, -1) if across % c == 0)
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
        dims: the dims shown, down and across; one for a vector, none for a scalar.
    """
    found = parts(mesh, shape, spec)[:MAX_DRAWN]
    _, across = grid(mesh)
    hue: dict[tuple[tuple[int, int], ...], str] = {}
    out: dict[str, list[Any]] = {
        k: [] for k in ("left", "right", "top", "bottom", *_HELD, "hue", "text", "part", "at")
    }
    down_dim, across_dim = (
        (dims[0], dims[1]) if len(dims) > 1 else (None, dims[0] if dims else None)
    )

    def share(part: Part, dim: int | None) -> tuple[float, float]:
        if dim is None or not shape[dim]:
            return 0.0, 1.0
        start, stop = part.ranges[dim]
        return start / shape[dim], stop / shape[dim]

    for part in found:
        row, column = divmod(part.device, across)
        left, top = column + 0.06, row + 0.08
        wide, high = 0.88, 0.84
        x0, x1 = share(part, across_dim)
        y0, y1 = share(part, down_dim)
        cell = {"left": left, "right": left + wide, "top": top, "bottom": top + high}
        held = {
            "held_left": left + x0 * wide,
            "held_right": left + x1 * wide,
            "held_top": top + y0 * high,
            "held_bottom": top + y1 * high,
        }
        for key, number in (cell | held).items():
            out[key].append(number)
        out["hue"].append(hue.setdefault(part.ranges, style(len(hue)).hue))
        out["label"] = [*out.get("label", []), f"{part.device}  {part.text(dims)}".rstrip()]
        out["part"].append(part.text() or "all of it")
        out["at"].append(", ".join(f"{a} {i}" for a, i in zip(mesh.axes, part.place, strict=True)))
    labels = out.pop("label", [])
    room = across * max(map(len, labels), default=0) <= LABEL_LETTERS
    out["text"] = labels if room else [str(part.device) for part in found]
    return out


_HELD = ("held_left", "held_right", "held_top", "held_bottom")


class TilesPlot:
    """The picture: a cell a device.

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

    def _draw(self) -> figure:
        rows, columns = grid(self.mesh)
        plot: Any = figure(
            x_range=Range1d(start=-0.02, end=columns + 0.02),
            y_range=Range1d(start=rows + 0.02, end=-0.02),
            x_axis_location="above",
            sizing_mode="stretch_both",
            tools=[],
            toolbar_location=None,
            output_backend="canvas",
            name="device tiles",
        )
        _style(plot)
        plot.ygrid.grid_line_color = None
        axes, sizes = self.mesh.axes, self.mesh.sizes
        ordered = len(axes) > 1 and columns == sizes[-1]  # else a row is no one coordinate
        plot.xaxis.ticker = FixedTicker(ticks=[c + 0.5 for c in range(columns)])
        plot.yaxis.ticker = FixedTicker(ticks=[r + 0.5 for r in range(rows)])
        across = {
            c + 0.5: f"{axes[-1]} {c}" if ordered and columns <= 8 else str(c) if ordered else ""
            for c in range(columns)
        }
        places = (
            list(itertools.islice(itertools.product(*(range(s) for s in sizes[:-1])), rows))
            if ordered
            else []
        )
        down = {
            r + 0.5: ", ".join(f"{a} {i}" for a, i in zip(axes, p, strict=False))
            for r, p in enumerate(places)
        }
        plot.xaxis.major_label_overrides = across
        plot.yaxis.major_label_overrides = down or {r + 0.5: "" for r in range(rows)}
        held = plot.quad(
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
        plot.quad(
            left="left",
            right="right",
            top="top",
            bottom="bottom",
            source=self.source,
            fill_color=None,
            line_color=NEUTRAL,
            line_alpha=0.6,
        )
        plot.text(
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
        plot.add_tools(
            HoverTool(renderers=[held], tooltips=[("device", "@at"), ("holds", "@part")])
        )
        return plot
