"""A map over two choices, as a chart: which pairs of choices make the best plans."""

from __future__ import annotations

from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_style import chart, drawn, hover, renderer_named
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.page_colours import LIGHT

FIGURE = "choices"
SET_UPS = "set-ups"  #: renderer of the cells
#: what columns are called on the axes, where not by their own name
WORDS = {
    "last_axis": "size of the last axis",
    "axes": "number of axes",
    "batch": "examples at once",
    "keeps": "layers keep",
    "time_s": "time of a step",
    "peak_bytes": "peak memory of a device",
    "device_s": "seconds of a device an example",
}
#: colour map from dark (the best) to light
_COLOURS = "cividis"
#: functions that write numbers, by the ending of the column's name
_TEXTS = {"_s": seconds_text, "_bytes": bytes_text}


def map_frame(frame: pd.DataFrame, x: str, y: str, value: str) -> pd.DataFrame:
    """For each pair of choices the row with the least ``value``, of those that fit if any does.

    ``name`` is the row's ``set_up``, if there is such a column.
    """
    fits = frame["fits"].eq(True) if "fits" in frame.columns else pd.Series(True, frame.index)
    rows = pd.DataFrame(
        {
            "x_choice": frame[x].map(str),
            "y_choice": frame[y].map(str),
            "value": pd.to_numeric(frame[value]),
            "fits": fits,
            "name": frame["set_up"] if "set_up" in frame.columns else "",
        }
    ).dropna(subset=["value"])
    pair_columns = ["x_choice", "y_choice"]
    ranked = rows.sort_values(["fits", "value"], ascending=[False, True], kind="stable")
    best = ranked.drop_duplicates(pair_columns).sort_index()
    counts = rows.groupby(pair_columns, sort=False).size()
    texts = [_text(value, number) for number in best["value"]]
    return best.assign(
        fits=["yes" if is_good else "no" for is_good in best["fits"]],
        text=[
            text if is_good else f"{text} ✕"
            for text, is_good in zip(texts, best["fits"], strict=True)
        ],
        rows=[int(counts[pair]) for pair in zip(best["x_choice"], best["y_choice"], strict=True)],
    ).reset_index(drop=True)


def _text(column: str, number: float) -> str:
    for ending, to_text in _TEXTS.items():
        if column.endswith(ending):
            return to_text(number)
    return f"{number:.4g}"


def choice_map(frame: pd.DataFrame, x: str, y: str, value: str) -> Any:
    """An overlay of a heat map and its numbers; a cross marks a number that does not fit.

    Args:
        frame: rows with these columns, with ``fits`` where it is known, and with ``set_up``, a
            row's name, if there is one. Choices stand in the order of their first rows.
        x: the choice along the x axis.
        y: the choice along the y axis.
        value: the column of numbers; a cell shows the least one of its rows.
    """
    cells = map_frame(frame, x, y, value)
    x_words, y_words, value_words = (WORDS.get(column, column) for column in (x, y, value))
    tooltips = [
        (x_words, "@x_choice"),
        (y_words, "@y_choice"),
        (value_words, "@text"),
        ("fits", "@fits"),
        ("rows", "@rows"),
    ]
    if "set_up" in frame.columns:
        tooltips.append(("set-up", "@name"))
    axis_dims = [hv.Dimension("x_choice", label=x_words), hv.Dimension("y_choice", label=y_words)]
    low, high = (float(cells["value"].min()), float(cells["value"].max())) if len(cells) else (0, 1)
    elements = [
        drawn(
            hv.HeatMap(cells, axis_dims, ["value", "text", "fits", "rows", "name"]),
            renderer_named(SET_UPS),
            nonselection_alpha=1.0,
            cmap=_COLOURS,
            clim=(low, high if high > low else low + 1.0),
            line_color="white",
            line_width=2,
            **hover(tooltips),
        )
    ]
    is_dark = cells["value"] <= (low + high) / 2
    for labelled_cells, ink in ((cells[is_dark], "white"), (cells[~is_dark], LIGHT["ink"])):
        # Empty ones too: a map that is drawn anew must have the same elements
        labels = hv.Labels(labelled_cells, axis_dims, "text")
        elements.append(drawn(labels, text_color=ink, text_font_size="12px"))
    return chart(
        elements,
        name=FIGURE,
        title=f"{value_words}, the least of each pair",
        xlabel=x_words,
        ylabel=y_words,
        legend=None,
        zoom=None,
        tappable=(SET_UPS,),
    )
