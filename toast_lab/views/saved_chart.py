"""Charts as files: a HoloViews element as SVG or PNG, without a browser.

Every chart of data that stands in a file or in a page without scripts comes from here: the static
form of notebook views, the figures of the evaluation and of the accuracy page, and
``tl.charts.save``.  It takes the elements that pages show (``chart_style``), reads their rows and
the options that Bokeh would be given, and draws them with matplotlib (``chart_axes``).  So a chart
is written once, and what ``.opts`` changed on the screen is changed in the file.

Bokeh makes SVG only inside a browser.  HoloViews has a matplotlib renderer, whose options are not
those of Bokeh, so that every chart would have to be written twice; it also draws all rows of an
element with one marker, and resets matplotlib's global settings while it draws, which the code of a
notebook would notice.

Diagrams are no charts of data and stay where they are laid out: dimension graphs, search trees and
device tiles (``views.svg``).  The explorer saves what is on screen, with its size and zoom
(``app/figure_export``); reports show these elements alive.

Equal rows give equal bytes: no dates, no random names.  Texts are escaped, and written as text.
Lines and letters have mid tones, so that they are seen on white and on near-black; an SVG has no
ground unless one is asked for, a PNG is white.
"""

from __future__ import annotations

import html
import io
import re
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holoviews as hv

from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole
from toast_lab.views.palette import NEUTRAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from toast_lab.views.chart_axes import ChartAxes

#: width and height of a chart, in pixels
SIZE_PX = (680.0, 280.0)
POINTS_PER_INCH = 72.0  #: a point of matplotlib is drawn as one pixel
PNG_SCALE = 2.0  #: pixels of a PNG for each
FORMATS = (".svg", ".png")
#: on top of matplotlib's own settings, whatever those of the process are
SETTINGS = {
    "svg.hashsalt": "toast-lab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 10.5,
    "text.color": NEUTRAL,
    "axes.labelcolor": NEUTRAL,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    # Names are anybody's text, and some have dollar signs
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "lines.scale_dashes": False,
    "hatch.linewidth": 0.8,
}
#: one drawing at a time, since settings are those of the process
_DRAWING = threading.Lock()
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def chart_svg(
    chart: Any,
    *,
    size_px: tuple[float, float] = SIZE_PX,
    one_legend: bool = False,
    ground: str | None = None,
) -> str:
    """A chart as SVG text, to stand in a page or in a file of its own.

    Args:
        chart: an element, an overlay or a layout; of a dynamic map what it shows now.
        size_px: width and height of each chart of a layout.
        one_legend: one legend below all charts of a layout, in place of one for each.
        ground: colour behind the picture; None: it has none.

    Raises:
        InvalidProblem: an element that cannot be drawn, or matplotlib is not installed.
    """
    stream = io.StringIO()
    title = _write(chart, stream, size_px=size_px, one_legend=one_legend, ground=ground)
    return _plain_svg(stream.getvalue(), title)


def chart_png(
    chart: Any,
    *,
    size_px: tuple[float, float] = SIZE_PX,
    one_legend: bool = False,
    ground: str = "white",
) -> bytes:
    """A chart as PNG, with twice as many pixels; arguments as for ``chart_svg``."""
    stream = io.BytesIO()
    _write(chart, stream, size_px=size_px, one_legend=one_legend, ground=ground)
    return stream.getvalue()


def save_chart(chart: Any, path: Path, **options: Any) -> None:
    """Write a chart to a file; its name ends in .svg or .png.

    Args:
        chart: as for ``chart_svg``.
        path: the file.
        options: those of ``chart_svg``.

    Raises:
        InvalidProblem: as for ``chart_svg``, or another ending.
        NotSaved: the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise InvalidProblem(
            f"a chart is saved as {' or '.join(FORMATS)}, not as {path.suffix or 'a file'!r}: "
            f"{path}"
        )
    content = chart_png(chart, **options) if path.suffix == ".png" else chart_svg(chart, **options)
    write_whole(path, content, "the chart")


def _write(
    chart: Any,
    stream: io.StringIO | io.BytesIO,
    *,
    size_px: tuple[float, float],
    one_legend: bool,
    ground: str | None,
) -> str:
    """Draw a chart into a stream, PNG if it takes bytes; gives what a screen reader says of it."""
    try:
        import matplotlib
        import matplotlib.style
    except ImportError:
        raise InvalidProblem(
            'charts in files need matplotlib: pip install "toast-lab[app]"'
        ) from None

    parts, columns = _parts(chart)
    with _DRAWING, warnings.catch_warnings():
        # Of letters that the measuring font lacks, and of names that leave no room for a chart
        warnings.simplefilter("ignore", UserWarning)
        with matplotlib.style.context(["default", SETTINGS]):
            figure, drawn = _figure(parts, columns, size_px, one_legend=one_legend)
            kind: dict[str, Any] = {"format": "svg", "metadata": NO_METADATA}
            if isinstance(stream, io.BytesIO):
                kind = {"format": "png", "metadata": {"Software": None}}
                kind["dpi"] = PNG_SCALE * POINTS_PER_INCH
            figure.savefig(stream, facecolor=ground or "none", edgecolor="none", **kind)
    return "; ".join(dict.fromkeys(filter(None, (part.title for part in drawn))))


def _figure(
    parts: Sequence[Any], columns: int, size_px: tuple[float, float], *, one_legend: bool
) -> tuple[Figure, list[ChartAxes]]:
    from matplotlib.figure import Figure

    from toast_lab.views.chart_axes import ChartAxes, merged, write_legend

    row_count = max(1, -(-len(parts) // columns))
    width, height = size_px[0] * columns, size_px[1] * row_count
    inches = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
    figure = Figure(inches, dpi=POINTS_PER_INCH, layout="constrained")
    drawn = []
    for number, part in enumerate(parts, 1):
        axes = figure.add_subplot(row_count, columns, number)
        drawn.append(ChartAxes(axes, part, size_px[0], with_legend=not one_legend))
    if one_legend:
        keys = merged(part.keys for part in drawn)
        place: dict[str, Any] = {"loc": "outside lower center"}
        write_legend(figure, keys, width, **place)
    return figure, drawn


def _parts(chart: Any) -> tuple[list[Any], int]:
    """The charts of a layout, and how many of them stand side by side."""
    if isinstance(chart, hv.DynamicMap):
        chart = chart[()]
    if isinstance(chart, hv.HoloMap):
        chart = chart.last
    if not isinstance(chart, hv.Layout | hv.NdLayout):
        return [chart], 1
    parts = [part for one in chart for part in _parts(one)[0]]
    return parts, max(1, min(chart.shape[1], len(parts)))


def _plain_svg(text: str, title: str) -> str:
    """What matplotlib wrote, without what disturbs the page around it.

    Its style sheet would be that of the whole page, and names that nothing refers to would stand
    there once for each picture.
    """
    match = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', text)
    assert match is not None
    width, height = match.groups()
    root = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" width="{width}" style="max-width: 100%; height: auto" '
        f'stroke-linejoin="round" role="img" aria-label="{html.escape(title, quote=True)}">'
    )
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[match.end() :], flags=re.S)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"<g/>|<g>\s*</g>", "", body)
    body = re.sub(r'(<g [^>]*)(>)((?:\s*<use [^>]*?( style="[^"]*")/>)+)', _styled_once, body)
    # Hundredths of a pixel are enough
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), body)
    lines = (line.strip() for line in body.splitlines())
    return root + "\n" + "\n".join(filter(None, lines)) + "\n"


def _styled_once(group: re.Match[str]) -> str:
    """A group of markers, whose style stands at the group if all have the same."""
    start, end, markers, style = group.groups()
    if set(re.findall(r' style="[^"]*"', markers)) != {style}:
        return group[0]
    return start + style + end + markers.replace(style, "")
