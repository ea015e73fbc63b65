"""The conflicts of a program, as a graph and as tables, and what the plan does about each."""

from __future__ import annotations

import json

from bokeh.models import CustomJS

from toast_lab.explain.board import Board
from toast_lab.report import prose
from toast_lab.report.linked_parts import ReportLinks
from toast_lab.report.page_tables import (
    Section,
    details,
    figure_box,
    frame_table,
    rows_table,
    unbroken,
)
from toast_lab.report.subject import ReportSubject
from toast_lab.views.by_hand_tables import board_frame
from toast_lab.views.graph_legend import graph_legend
from toast_lab.views.graph_plot import GraphPlot, nodes_frame
from toast_lab.views.markup import Safe, h, join
from toast_lab.views.overlay import overlay

#: passes what a tap hit on to the page's script, which knows the other parts
TAPPED = "document.dispatchEvent(new CustomEvent('toast:graph', { detail: cb_obj.tags }))"
#: most characters of a row label in the graph
LABEL_WIDTH = 34
#: height of a row of the graph, and least and greatest height of the whole graph
ROW_PX, LEAST_PX, MOST_PX = 20, 300, 760


def conflicts_section(subject: ReportSubject, links: ReportLinks, board: Board) -> Section:
    """The section with the dimension graph, the table of conflicts and the conflict board."""
    problem, layout = subject.problem, links.layout
    analysis = problem.analysis
    colours, conflict_count = len(layout.lanes), len(analysis.conflicts)
    if not conflict_count:
        lead = (
            "No tensor of this program has two dims of one colour: every dim can be cut "
            "independently of the others."
        )
    else:
        lead = (
            "Dims that are used together have one colour and are cut together. Where two dims of "
            "one tensor have the same colour only one of them can be cut: a conflict. Conflicts "
            "that depend on each other are settled together, by one choice between two sides."
        )
    parts = [
        h("p", lead),
        h("h3", "Dimension graph"),
        _switch(),
        figure_box(
            "graph",
            graph_height(len(layout.rows)),
            f"dimension graph with {colours} colours and {len(layout.conflicts)} red lines for "
            "conflicts; the tables below show the same data",
            f"{layout.note}. Program order runs down, a column is a colour; red dashed lines are "
            "conflicts. Click a marker, a red line or a row of a table to mark it everywhere.",
        ),
        details("What the marks mean", graph_legend(layout.level != "names")),
    ]
    if links.rows:
        parts += [h("h3", "Conflicts"), _conflicts_table(links), *_board_part(subject, board)]
    frame = nodes_frame(layout).drop(columns=["node"])
    frame["side"] = [side or "–" for side in frame["side"]]
    parts.append(
        details(
            "The graph as a table",
            frame_table(
                frame.astype(str).rename(columns={"where": "line", "n_names": "names"}),
                "markers of the graph",
                numbers=("names",),
                picks=[f"node {node}" for node in range(len(frame))],
            ),
        )
    )
    return Section("conflicts", "Conflicts", "Conflicts and how they are settled", join(*parts))


def graph_height(row_count: int) -> int:
    """Height in pixels of a graph with ``row_count`` rows."""
    return min(MOST_PX, max(LEAST_PX, 110 + ROW_PX * row_count))


def _switch() -> Safe:
    choices = (("colour", "colours"), ("axis", "what this plan cuts"))
    buttons = [
        h(
            "button",
            label,
            type="button",
            data_overlay=name,
            aria_pressed="true" if name == "colour" else "false",
        )
        for name, label in choices
    ]
    return h(
        "p",
        h("span", "Markers show ", cls="quiet"),
        *buttons,
        cls="switch",
        role="group",
        aria_label="what the markers of the graph show",
    )


def _conflicts_table(links: ReportLinks) -> Safe:
    rows = [
        (
            alike.colour,
            f"{alike.tensor}{f' ×{len(alike.conflicts)}' if len(alike.conflicts) > 1 else ''}",
            unbroken(f"{alike.dims[0]} × {alike.dims[1]}"),
            unbroken(alike.settled) if len(alike.settled) < 24 else alike.settled,
            str(alike.set),
            alike.where or "–",
        )
        for alike in links.rows
    ]
    columns = ("colour", "~tensor", "dims", "this plan cuts", ">set", "line")
    picks = [f"conflict {row}" for row in range(len(rows))]
    return rows_table(columns, rows, "conflicts; those of repeated layers appear once", picks=picks)


def _board_part(subject: ReportSubject, board: Board) -> list[Safe]:
    problem = subject.problem
    chosen = {
        (row, axis): side
        for row in range(len(board.disputes))
        for axis, side in prose.chosen_sides(problem, subject.plan, board, row).items()
    }
    frame = board_frame(board, chosen)
    frame["side"] = frame["side"].map(unbroken)
    picks = [f"board {row // 2}" for row in range(len(frame))]
    axes = [axis for axis in problem.mesh.axes if axis in frame.columns]
    return [
        h("h3", "Conflict board"),
        h(
            "p",
            "The price of each side of each choice on each mesh axis if only that colour is cut "
            "and everything else stays whole. ● marks what this plan's actions take, ✗ what does "
            "not fit. Combined with other actions, prices differ.",
        ),
        frame_table(frame, "sides of each choice with their prices", numbers=axes, picks=picks),
    ]


def graph_figure(links: ReportLinks) -> GraphPlot:
    """The picture of the graph, which reports taps to the page's script."""
    plot = GraphPlot(links.layout, label_width=LABEL_WIDTH)
    plot.tapped.js_on_change("tags", CustomJS(code=TAPPED))
    return plot


def overlays(
    subject: ReportSubject, links: ReportLinks, plot: GraphPlot
) -> dict[str, dict[str, list[str]]]:
    """Hues and texts of the markers, by overlay, as the page's script reads them."""
    by_colour = {name: list(plot.nodes.data[name]) for name in ("hue", "text")}
    axes = overlay(subject.problem.analysis, links.layout, "axis", subject.plan)
    assert axes is not None
    return {"colour": by_colour, "axis": {"hue": list(axes.hues), "text": list(axes.texts)}}


def json_text(data: object) -> Safe:
    """Data as JSON for a script element, escaped so that no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Safe(text)
