"""Turn the subject of a report into one self-contained HTML file.

The page's content security policy forbids all use of the network, Bokeh is embedded to draw the
pictures, and every name from the user's code reaches the page as text.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Sequence
from importlib.resources import files

from bokeh.embed import json_item
from bokeh.resources import Resources

from toast_lab._version import __version__
from toast_lab.explain.board import conflicts
from toast_lab.lowering.listing import listing_lines
from toast_lab.report import conflict_sections, cost_sections, evidence_sections, plan_sections
from toast_lab.report.linked_parts import ReportLinks, make_links
from toast_lab.report.page_tables import Section
from toast_lab.report.plan_panel import CSS
from toast_lab.report.subject import ReportSubject
from toast_lab.report.written_section import written_section
from toast_lab.sharding import plan_file, portable
from toast_lab.views.markup import Safe, h, join
from toast_lab.views.page_colours import DARK, LIGHT, properties

#: nothing may be loaded; 'unsafe-eval' lets the page compile Bokeh's callbacks
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def page(subject: ReportSubject) -> str:
    """The whole report as HTML."""
    board = conflicts(subject.problem)
    listing = plan_sections.report_listing(
        subject.problem.analysis, listing_lines(subject.problem, subject.plan)
    )
    links = make_links(subject, listing, [dispute.sets for dispute in board.disputes])
    sections = [
        plan_sections.summary_section(subject, board),
        written_section(subject),
        plan_sections.plan_section(subject, links.pick_of_op),
        conflict_sections.conflicts_section(subject, links, board),
        cost_sections.collectives_section(subject, links),
        cost_sections.price_section(subject, links),
        cost_sections.timeline_section(subject),
        cost_sections.memory_section(subject, links),
        evidence_sections.evidence_section(subject),
        evidence_sections.comparison_section(subject),
        plan_sections.listing_section(subject, listing),
        evidence_sections.origin_section(subject, links),
    ]
    return document(
        title=f"{subject.problem.analysis.model.name}: {subject.title_name}",
        subtitle=subject.problem.describe(),
        sections=[section for section in sections if section is not None],
        data=page_data(subject, links),
    )


def page_data(subject: ReportSubject, links: ReportLinks) -> dict[str, str]:
    """JSON for the page's script, by the id of the element that holds it."""
    graph = conflict_sections.graph_figure(links)
    figures = {
        "graph": graph.figure,
        "price": cost_sections.price_figure(subject),
        "timeline": cost_sections.timeline_figure(subject),
        "memory": cost_sections.memory_figure(subject),
    }
    plots = {name: json_item(figure) for name, figure in figures.items()}
    plan = portable.file_text(plan_file.to_json(subject.plan))
    return {
        "links": conflict_sections.json_text(links.data),
        "overlays": conflict_sections.json_text(conflict_sections.overlays(subject, links, graph)),
        "figures": conflict_sections.json_text(plots),
        "plan-file": conflict_sections.json_text(plan),
    }


def document(
    *, title: str, subtitle: str, sections: Sequence[Section], data: dict[str, str]
) -> str:
    """Assemble sections into a page.

    Args:
        title: title of the page.
        subtitle: a line below the title.
        sections: sections from top to bottom.
        data: JSON for the page's script, by the id of its element; it must not contain ``<``.
    """
    chapters = [
        h(
            "section",
            h("h2", section.title),
            section.body,
            id=section.anchor,
            aria_label=section.title,
        )
        for section in sections
    ]
    contents = [h("a", section.name, href=f"#{section.anchor}") for section in sections]
    body = join(
        h("a", "Skip to the report", href="#summary", cls="skip"),
        h(
            "header",
            h("p", f"TOAST Lab {__version__}, sharding report", cls="quiet"),
            h("h1", title),
            h("p", subtitle, cls="quiet"),
        ),
        h("nav", *contents, aria_label="Contents"),
        h("div", h("main", *chapters), _inspector(), cls="columns"),
    )
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="TOAST Lab {__version__}">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{html.escape(title)}</title>",
            f"<style>\n:root {{ {properties(LIGHT)} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {properties(DARK)} }} }}",
            f"{_file('report.css')}{CSS}</style>\n</head>\n<body>",
            body,
            *[
                f'<script type="application/json" id="{name}">{content}</script>'
                for name, content in data.items()
            ],
            f"<script>{_bokeh()}</script>",
            f"<script>{_file('report.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _inspector() -> Safe:
    hint = (
        "Select a marker of the graph, a conflict, a collective or a line of the program: its "
        "description appears here, and everything that belongs to it is marked in all parts of the "
        "report."
    )
    keys = "Keys: Tab goes from table to table, arrows from row to row, Enter selects, Esc clears."
    return h(
        "aside",
        h(
            "div",
            h("h2", "Selected"),
            h("button", "Clear", type="button", id="clear", hidden="hidden"),
            cls="head",
        ),
        h("div", h("p", hint), h("p", keys), cls="quiet", id="hint"),
        h("div", id="facts", aria_live="polite"),
        id="inspector",
        aria_label="Selection",
    )


@functools.cache
def _file(name: str) -> str:
    return (files("toast_lab.report") / "static" / name).read_text(encoding="utf-8")


@functools.cache
def _bokeh() -> str:
    """Bokeh's script, without widgets, tables and formulas."""
    resources = Resources(mode="inline", components=["bokeh"])
    return "\n".join(resources.js_raw).replace("</script", "<\\/script")
