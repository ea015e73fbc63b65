"""Saved charts have their data in place, readable names, and the same bytes every time."""

from __future__ import annotations

import doctest
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

hv = pytest.importorskip("holoviews")
matplotlib = pytest.importorskip("matplotlib")

import toast_lab as tl  # noqa: E402
from tests.helpers import analysed  # noqa: E402
from toast_lab.errors import InvalidInput, InvalidProblem, NotSaved  # noqa: E402
from toast_lab.views import drawn_figure  # noqa: E402
from toast_lab.views.chart_style import (  # noqa: E402
    chart,
    drawn,
    hover,
    level_line,
    names_beside,
    on_glyph,
)
from toast_lab.views.saved_chart import chart_png, chart_svg, save_chart  # noqa: E402

ROOT = Path(__file__).parents[2]
NS, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
EVIL = "<img src=x onerror=alert(1)> $x$ & _y"


def parsed(picture: Any, **options: Any) -> ET.Element:
    return ET.fromstring(picture if isinstance(picture, str) else chart_svg(picture, **options))


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NS}text")]


def paths(root: ET.Element, style: str) -> list[list[tuple[float, float]]]:
    """The corners of all paths with a style, in pixels from the upper left corner."""
    outlines = []
    for element in root.iter(f"{NS}path"):
        if style in (element.get("style") or ""):
            numbers = re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", element.get("d", ""))
            outlines.append([(float(x), float(y)) for x, y in numbers])
    return outlines


def uses(root: ET.Element) -> list[ET.Element]:
    return list(root.iter(f"{NS}use"))


def styled(root: ET.Element, use: ET.Element) -> str:
    """The style of a marker, its own or that of its group."""
    group = next(group for group in root.iter(f"{NS}g") if use in list(group))
    return use.get("style") or group.get("style") or ""


def marks(root: ET.Element, style: str) -> list[tuple[float, float]]:
    return [
        (float(use.get("x", 0)), float(use.get("y", 0)))
        for use in uses(root)
        if style in styled(root, use)
    ]


def overlay(*elements: Any, **options: Any) -> Any:
    labels = {"name": "figure", "xlabel": "seconds", "ylabel": "step time (ms)", **options}
    return chart(elements, **labels)


def steps(label: str = "method") -> Any:
    curve = hv.Curve([(0.0, 4.0), (10.0, 2.0)], "x", "y", label=label)
    return drawn(curve, interpolation="steps-post", color="#123456", line_width=2)


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(drawn_figure)
    assert result.attempted > 0
    assert result.failed == 0


# -- data ------------------------------------------------------------------------------------------
def test_a_line_holds_its_value_until_the_next_point_and_meets_the_level() -> None:
    root = parsed(overlay(steps(), level_line(4.0, "the limit", "#ff0000"), ylim=(0, 8)))
    key, line = sorted(paths(root, "stroke: #123456"), key=lambda corners: corners[-1][0])
    (x0, y0), (x1, y1), (x2, y2) = line
    assert y0 == y1 < y2, "y grows downwards"
    assert x0 < x1 == x2
    assert len({y for _, y in key}) == 1, "the legend's"
    ((_, left), (_, right)) = paths(root, "stroke: #ff0000")[0]
    assert left == right == pytest.approx(y0, abs=0.1)
    assert {"seconds", "step time (ms)", "method", "the limit", "0", "8"} <= set(texts(root))


def test_on_a_log_axis_equal_ratios_are_equal_lengths() -> None:
    points = drawn(hv.Scatter([(1, 1.0), (2, 10.0), (3, 100.0)], "x", "y"), color="#123456")
    root = parsed(overlay(points, logy=True, ylim=(1, 100)))
    heights = [y for _, y in sorted(marks(root, "fill: #123456"))]
    assert len(heights) == 3
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.1)
    assert {"1", "10", "100"} <= set(texts(root)), "plain numbers, no powers of ten"


def test_bars_are_as_long_as_their_numbers_and_keep_their_hatch() -> None:
    corners = ["left", "bottom", "right", "top"]
    bars = hv.Rectangles([(0, 0, 3, 1), (0, 2, 1, 3)], corners, label="compute")
    hatched = drawn(
        bars,
        on_glyph(hatch_pattern="right_diagonal_line", hatch_color="white"),
        fill_color="#123456",
        line_color=None,
    )
    root = parsed(overlay(hatched, yticks=[(0.5, "one"), (2.5, "two")], ylabel="", xlim=(0, 4)))
    boxes = max(paths(root, "fill: #123456"), key=len)
    widths = [boxes[start + 1][0] - boxes[start][0] for start in (0, 4)]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.1)
    assert {"one", "two", "compute"} <= set(texts(root))
    hatches = paths(root, "fill: url(#h")
    assert max(hatches, key=len) == boxes, "the hatch, a second cue"
    assert len(hatches) == 2, "of the bars, and of the key"


def test_rows_have_markers_of_their_own_hollow_or_filled() -> None:
    rows = [(1, 1, "#111111", "circle"), (2, 2, "#222222", "square"), (3, 3, "#222222", "circle")]
    scatter = hv.Scatter(rows, "x", ["y", "hue", "marker"], label="estimated")
    looks = {"line_color": hv.dim("hue"), "marker": hv.dim("marker"), "fill_color": hv.dim("hue")}
    for fill_alpha in (0.0, 1.0):
        root = parsed(overlay(drawn(scatter, fill_alpha=fill_alpha, **looks)))
        style = "stroke: #222222" if fill_alpha == 0 else "fill: #222222"
        assert len(marks(root, style)) == 2
        shapes = [use.get(f"{XLINK}href") for use in uses(root) if style in styled(root, use)]
        assert len(set(shapes)) == 2, "a square and a circle"
        assert texts(root).count("estimated") == 1


def test_cells_of_a_map_stand_at_their_choices() -> None:
    rows = [
        {"mesh": mesh, "machine": machine, "time_s": time_s, "fits": time_s < 3e-3}
        for mesh, machine, time_s in (("a", "x", 1e-3), ("b", "x", 2e-3), ("b", "y", 4e-3))
    ]
    root = parsed(tl.charts.choices(rows, "mesh", "machine"))
    assert {"a", "b", "x", "y", "mesh", "machine", "1 ms", "2 ms", "4 ms ✕"} <= set(texts(root))
    across = {text.text: float(text.get("x", "nan")) for text in root.iter(f"{NS}text")}
    assert across["1 ms"] < across["2 ms"] == pytest.approx(across["4 ms ✕"], abs=6)
    cells = [path for path in paths(root, "stroke: #ffffff") if len(path) == 4]
    assert len(cells) == 4, "one of them has no row"


# -- words -----------------------------------------------------------------------------------------
def test_names_are_text_whatever_they_are() -> None:
    # HoloViews itself accepts no labels with control characters
    names = [EVIL, "_hidden", "two\nlines", "x" * 200]
    curves = [hv.Curve([(0, index)], "x", "y", label=name) for index, name in enumerate(names)]
    rows = [(0, height, name, 11, 5, "left") for height, name in ((0, EVIL), (1, "\x00\x1b\ud800"))]
    beside = hv.Scatter(rows, "x", ["y", "plan", "dx", "dy", "align"])
    beside = drawn(beside, names_beside("x", "y", "plan"), **hover([("plan", "@plan")]))
    parts = [*curves, beside]
    shown = texts(parsed(overlay(*parts, title=EVIL, xlabel=EVIL, yticks=[(0, EVIL)])))
    assert shown.count(EVIL) == 5, "legend, marker, title, axis, tick"
    assert {"_hidden", "���", "two lines", "x" * 59 + "…"} <= set(shown)


def test_what_options_change_in_a_notebook_is_changed_in_the_file() -> None:
    changed = overlay(steps()).opts(hv.opts.Curve(color="#abcdef"), hv.opts.Overlay(xlabel="s"))
    root = parsed(changed)
    assert paths(root, "stroke: #abcdef")
    assert "s" in texts(root)
    assert "seconds" not in texts(root)


def test_an_empty_chart_has_axes() -> None:
    empty = overlay(hv.Curve([], "x", "y", label="none"), xlim=(0, 1), ylim=(0, 1))
    assert {"seconds", "step time (ms)", "0", "1"} <= set(texts(parsed(empty)))


def test_charts_of_a_layout_stand_side_by_side_with_one_legend_if_asked_for() -> None:
    pair = hv.Layout([overlay(steps("a"), title="left"), overlay(steps("a"), title="right")])
    for one_legend, times in ((False, 2), (True, 1)):
        root = parsed(pair, size_px=(300, 200), one_legend=one_legend)
        assert root.get("viewBox") == "0 0 600 200"
        assert texts(root).count("a") == times
        assert {"left", "right"} <= set(texts(root))
    assert parsed(pair.cols(1), size_px=(300, 200)).get("viewBox") == "0 0 300 400"


# -- files -----------------------------------------------------------------------------------------
def test_equal_rows_give_equal_bytes_whatever_the_settings_are() -> None:
    before = chart_svg(overlay(steps()))
    settings = dict(matplotlib.rcParams)
    try:
        matplotlib.rcParams.update({"xtick.major.pad": 9, "svg.fonttype": "path", "font.size": 30})
        changed = dict(matplotlib.rcParams)
        assert chart_svg(overlay(steps())) == before
        assert dict(matplotlib.rcParams) == changed, "those of the process stay"
    finally:
        matplotlib.rcParams.update(settings)
    assert "date" not in before
    assert "<style" not in before, "it would be the style of the page around it"
    assert "id=" not in re.sub(r' id="[mphC][0-9a-f_]+"', "", before), "only what is referred to"


def test_an_svg_has_no_ground_and_a_png_is_white(tmp_path: Path) -> None:
    save_chart(overlay(steps()), tmp_path / "chart.svg")
    root = parsed((tmp_path / "chart.svg").read_text())
    assert not [path for path in paths(root, "fill: #ffffff") if len(path) == 4]
    assert root.get("role") == "img"
    assert root.get("aria-label") == "step time (ms) against seconds"
    asked_for = parsed(overlay(steps()), ground="white")
    assert [path for path in paths(asked_for, "fill: #ffffff") if len(path) == 4]
    tl.charts.save(overlay(steps()), tmp_path / "chart.png", size_px=(300, 200))
    content = (tmp_path / "chart.png").read_bytes()
    assert content == chart_png(overlay(steps()), size_px=(300, 200))
    assert struct.unpack(">II", content[16:24]) == (600, 400)
    assert content[25] in (2, 6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: save_chart(overlay(steps()), p / "x.pdf"), InvalidProblem, "not as '.pdf'"),
        (lambda p: save_chart(overlay(steps()), p / "none" / "x.svg"), NotSaved, "the chart"),
        (lambda p: tl.charts.save("x", p / "x.svg"), InvalidInput, "charts.save takes a chart"),
        (lambda p: chart_svg(hv.Area([(1, 2), (2, 3)])), InvalidProblem, "not Patch"),
    ],
)
def test_what_cannot_be_saved_is_said(call: Any, error: type, words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call(tmp_path)


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidProblem, match=re.escape('pip install "toast-lab[app]"')):
        chart_svg(overlay(steps()))


def test_nobody_loads_matplotlib_before_something_is_saved() -> None:
    code = (
        "import sys, toast_lab as tl; tl.views; import toast_lab.app.explorer; "
        "import toast_lab.views.saved_chart; assert 'matplotlib' not in sys.modules; "
        # HoloViews itself imports matplotlib's colours
        "tl.charts.search; assert 'matplotlib.figure' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_every_chart_of_results_is_drawn_with_its_words() -> None:
    problem = tl.Problem(analysed("attention"), {"data": 4, "model": 2})
    budget = tl.Budget(seconds=None, evaluations=60)
    result = tl.search(problem, budget=budget)
    plans = {"searched": result, EVIL: tl.Plan.from_actions(problem, ["S->data"])}
    race = tl.race(problem, ["random", "beam"], budget=budget)
    for picture, words in (
        (
            tl.charts.search(result),
            {"simulations", "tried", "best so far", "C(s), estimated; unsharded 1"},
        ),
        (tl.charts.race(race), {"random", "beam", "seconds of each method's own search"}),
        (tl.charts.time_memory(plans, problem), {"searched", EVIL, "estimated"}),
        (tl.charts.breakdown(plans, problem), {"compute", "● searched"}),
        (tl.charts.memory(plans, problem), {"searched", EVIL, "program order (op)"}),
        (tl.charts.step(result), {"estimated: compute", "memory, estimated"}),
    ):
        shown = set(texts(parsed(picture)))
        assert words <= shown, words - shown
    labels = " ".join(texts(parsed(tl.charts.time_memory(plans, problem))))
    assert re.search(r"step time \((µs|ms)\)", labels)
    assert re.search(r"peak memory per device \([KMG]iB\)", labels)
