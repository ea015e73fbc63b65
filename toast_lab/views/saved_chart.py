"""Charts and diagrams as files, SVG or PNG, without a browser.

This module draws every picture in a file or in a page without scripts: the static form of notebook
views, the figures of the evaluation and of the accuracy page, and the files of ``tl.charts.save``.
It takes the HoloViews elements (``chart_style``) and the Bokeh figures that pages show, and draws
the Bokeh figures with matplotlib (``drawn_figure``). So each picture is written once, and what
``.opts`` changes on screen it changes in the file. Bokeh makes SVG only inside a browser, and
HoloViews' matplotlib renderer has options of its own, so every chart would be written twice.

The explorer saves what is on screen, with its size and zoom (``app/figure_export``).

Equal rows give equal bytes: there are no dates and no random names. Texts are escaped, and written
as text. Lines and letters have mid tones, so that they are visible on white and on near-black; an
SVG has no background unless one is given, a PNG is white.
"""

from __future__ import annotations

import html
import io
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import holoviews as hv
from bokeh.models import Plot

from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole
from toast_lab.views.palette import NEUTRAL

#: width and height of a chart, in pixels
SIZE_PX = (680.0, 280.0)
POINTS_PER_INCH = 72.0  #: a point of matplotlib is drawn as one pixel
PNG_SCALE = 2.0  #: pixels of a PNG per point
FORMATS = (".svg", ".png")
#: changes to matplotlib's defaults, used whatever the settings of the process are
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
    # Names are arbitrary text, and some have dollar signs
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "lines.scale_dashes": False,
    "hatch.linewidth": 0.8,
}
#: allows one drawing at a time, since matplotlib's settings belong to the process
_DRAWING = threading.Lock()
#: leaves all metadata out of an SVG
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def chart_svg(
    chart: Any,
    *,
    size_px: tuple[float, float] = SIZE_PX,
    one_legend: bool = False,
    ground: str | None = None,
) -> str:
    """A chart as SVG text, for a page or for a file of its own.

    Args:
        chart: an element, an overlay or a layout; a dynamic map is drawn as it is now. Or a Bokeh
            figure.
        size_px: width and height of each chart of a layout.
        one_legend: one legend below all charts of a layout, in place of one for each.
        ground: colour of the background; None: there is none.

    Raises:
        InvalidProblem: an element cannot be drawn, or matplotlib is not installed.
    """
    content, title = _written(chart, "svg", size_px, one_legend=one_legend, ground=ground)
    return _plain_svg(content.decode(), title)


def chart_png(
    chart: Any,
    *,
    size_px: tuple[float, float] = SIZE_PX,
    one_legend: bool = False,
    ground: str = "white",
) -> bytes:
    """A chart as PNG, with ``PNG_SCALE`` pixels per point; arguments as for ``chart_svg``."""
    return _written(chart, "png", size_px, one_legend=one_legend, ground=ground)[0]


def save_chart(chart: Any, path: Path, **options: Any) -> None:
    """Write a chart to a file; its name ends in .svg or .png.

    Args:
        chart: as for ``chart_svg``.
        path: the file.
        options: options of ``chart_svg``.

    Raises:
        InvalidProblem: as for ``chart_svg``, or the name has another ending.
        NotSaved: the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise InvalidProblem(
            f"a chart is saved as {' or '.join(FORMATS)}, not as {path.suffix or 'a file'!r}: "
            f"{path}"
        )
    content = chart_png(chart, **options) if path.suffix == ".png" else chart_svg(chart, **options)
    write_whole(path, content, "the chart")


def _written(
    chart: Any,
    suffix: str,
    size_px: tuple[float, float],
    *,
    one_legend: bool,
    ground: str | None,
) -> tuple[bytes, str]:
    """The content of a file, and a title for screen readers."""
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidProblem(
            'charts in files need matplotlib: pip install "toast-lab[app]"'
        ) from None
    from toast_lab.views.chart_style import bokeh_figure
    from toast_lab.views.drawn_figure import FigureAxes, write_legend

    parts, columns = _parts(chart)
    row_count = max(1, -(-len(parts) // columns))
    width, height = size_px[0] * columns, size_px[1] * row_count
    inches = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
    options_of: dict[str, dict[str, Any]] = {
        "svg": {"metadata": NO_METADATA},
        "png": {"metadata": {"Software": None}, "dpi": PNG_SCALE * POINTS_PER_INCH},
    }
    stream = io.BytesIO()
    with _DRAWING, warnings.catch_warnings():
        # Warnings are about letters that the measuring font lacks, and names that leave no room
        warnings.simplefilter("ignore", UserWarning)
        with matplotlib.style.context(["default", SETTINGS]):
            figure = Figure(inches, dpi=POINTS_PER_INCH, layout="constrained")
            drawn = []
            for position, part in enumerate(parts, 1):
                axes = figure.add_subplot(row_count, columns, position)
                shown = part if isinstance(part, Plot) else bokeh_figure(part)
                drawn.append(FigureAxes(axes, shown, size_px[0], with_legend=not one_legend))
            if one_legend:
                looks = {label: look for part in drawn[::-1] for label, look in part.keys.items()}
                keys = {label: looks[label] for part in drawn for label in part.keys}
                write_legend(figure, keys, width, loc="outside lower center")
            figure.savefig(
                stream,
                format=suffix,
                facecolor=ground or "none",
                edgecolor="none",
                **options_of[suffix],
            )
    title = "; ".join(dict.fromkeys(filter(None, (part.title for part in drawn))))
    return stream.getvalue(), title


def _parts(chart: Any) -> tuple[list[Any], int]:
    """The charts of a layout, and how many of them are side by side."""
    if isinstance(chart, hv.DynamicMap):
        chart = chart[()]
    if isinstance(chart, hv.HoloMap):
        chart = chart.last
    if not isinstance(chart, hv.Layout | hv.NdLayout):
        return [chart], 1
    parts = [part for nested in chart for part in _parts(nested)[0]]
    return parts, max(1, min(chart.shape[1], len(parts)))


def _plain_svg(text: str, title: str) -> str:
    """The SVG of matplotlib, without the parts that would disturb the page around it.

    Its style sheet would apply to the whole page, and ids that nothing refers to would be repeated
    by every picture.
    """
    match = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', text)
    assert match is not None
    width, height = match.groups()
    opening_tag = (
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
    return opening_tag + "\n" + "\n".join(filter(None, lines)) + "\n"


def _styled_once(group: re.Match[str]) -> str:
    """A group of markers, whose style moves to the group if all have the same."""
    start, end, markers, style = group.groups()
    if set(re.findall(r' style="[^"]*"', markers)) != {style}:
        return group[0]
    return start + style + end + markers.replace(style, "")
