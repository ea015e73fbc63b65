"""Links between the parts of a page, so that a selection in one of them shows in all.

Nodes and red lines of the graph, conflicts, and lines of the listing refer to each other by number.
The page's script gets these links as JSON and inserts every string as text, never as HTML.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.report import prose
from toast_lab.report.plan_sections import ReportListing
from toast_lab.report.subject import ReportSubject
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.views import selection_facts
from toast_lab.views.graph_layout import GraphLayout, chain_path, graph_layout
from toast_lab.views.graph_rows import start_level, where
from toast_lab.views.overlay import name_axes

#: a graph of source lines with more rows than this shows functions instead
MOST_ROWS = 90
#: most rows of conflicts that get the chain of M between their names
MOST_CHAINS = 60

Facts = list[tuple[str, str]]


class AlikeConflicts(NamedTuple):
    """Conflicts at one place in the code, such as one in each layer; one row of a table."""

    conflicts: tuple[int, ...]
    colour: str
    tensor: str
    dims: tuple[int, int]
    set: int
    #: what the plan does with the two dims
    settled: str
    where: str


class ReportLinks(NamedTuple):
    """Everything that can be selected on the page, and what belongs together."""

    layout: GraphLayout
    rows: tuple[AlikeConflicts, ...]
    listing: ReportListing
    #: plain data for the page's script
    data: dict[str, Any]

    def pick_of_op(self, op: int) -> str:
        """What a table row about an op selects; empty if the op has no line in the listing."""
        if not 0 <= op < len(self.listing.line_of_op) or self.listing.line_of_op[op] < 0:
            return ""
        return f"line {self.listing.line_of_op[op]}"


def report_layout(analysis: Analysis) -> GraphLayout:
    """The graph by names if the program is small, else by source line or by function."""
    level = start_level(analysis)
    if level == "names":
        return graph_layout(analysis, level)
    layout = graph_layout(analysis, "lines")
    return layout if len(layout.rows) <= MOST_ROWS else graph_layout(analysis, "functions")


def alike_conflicts(analysis: Analysis, plan: ShardingPlan) -> tuple[AlikeConflicts, ...]:
    """Conflicts in program order; those of repeated layers share a row."""
    program = analysis.program
    members: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for conflict in analysis.conflicts:
        place = conflict.places[0]
        op = place.op(program)
        key = (
            analysis.compatibility_sets[conflict.set].resolution,
            int(program.location[op]),
            program.kind[op],
            "transpose(" in program.name_stack[op],
            place.use >= 0,
            program.dims(place.value),
            (place.first_dim, place.second_dim),
            prose.cut_dims(plan, place),
        )
        members[key].append(conflict.index)
    return tuple(_row(analysis, conflicts, key[-1]) for key, conflicts in members.items())


def _row(analysis: Analysis, conflicts: Sequence[int], settled: str) -> AlikeConflicts:
    record, program = analysis.conflicts[conflicts[0]], analysis.program
    place = record.places[0]
    op = place.op(program)
    read_by = f" in {program.kind[op]}" if place.use >= 0 else ""
    return AlikeConflicts(
        conflicts=tuple(conflicts),
        colour=analysis.colour_name[record.colour],
        tensor=f"{program.value_name[place.value]} {list(program.dims(place.value))}{read_by}",
        dims=(place.first_dim, place.second_dim),
        set=record.set,
        settled=settled,
        where=where(analysis, op),
    )


def make_links(subject: ReportSubject, listing: ReportListing, board_sets: Any) -> ReportLinks:
    """Lay the graph out and link it with the conflicts and the listing.

    Args:
        subject: what the report is about.
        listing: the listing of the plan.
        board_sets: the compatibility sets of each row of the conflict board.
    """
    analysis, plan = subject.problem.analysis, subject.plan
    layout = report_layout(analysis)
    rows = alike_conflicts(analysis, plan)
    row_of = {conflict: row for row, alike in enumerate(rows) for conflict in alike.conflicts}
    edge_rows, outline_rows = (
        [sorted({row_of[conflict] for conflict in shape.conflicts}) for shape in shapes]
        for shapes in (layout.conflicts, layout.outlines)
    )
    axes = name_axes(analysis, plan)
    data = {
        "nodes": [
            {
                "title": node.title,
                "facts": _node_facts(analysis, node.names, axes),
                "lines": _lines(listing, analysis.names.op[list(node.names)].tolist()),
            }
            for node in layout.nodes
        ],
        "edges": edge_rows,
        "outlines": outline_rows,
        "conflicts": [
            _conflict_data(analysis, layout, listing, alike=alike, row=row)
            for row, alike in enumerate(rows)
        ],
        "board": [
            sorted(row_of[conflict] for conflict in analysis.compatibility_sets[first].conflicts)
            for first, *_ in board_sets
        ],
        "lines": [_line_data(analysis, listing.lines[line_index]) for line_index in listing.shown],
        "lineOfOp": list(listing.line_of_op),
    }
    return ReportLinks(layout, rows, listing, data)


def _lines(listing: ReportListing, ops: Sequence[int]) -> list[int]:
    return sorted({listing.line_of_op[op] for op in ops} - {-1})


def _node_facts(analysis: Analysis, names: Sequence[int], axes: Sequence[tuple[str, ...]]) -> Facts:
    cuts = sorted({" and ".join(axes[name]) or "nothing" for name in names})
    facts = [("this plan cuts it over", "; ".join(cuts))]
    if len(names) > 1:
        sizes = sorted({int(analysis.names.size[name]) for name in names})
        facts += [
            ("names", f"{len(names)}, one of them below"),
            ("sizes", ", ".join(map(str, sizes[:6])) + (" …" if len(sizes) > 6 else "")),
        ]
    # Arguments have no source line
    first_name_facts = selection_facts.name_facts(analysis, names[0])
    return [*facts, *(fact for fact in first_name_facts if fact != ("line", "unknown"))]


def _conflict_data(
    analysis: Analysis,
    layout: GraphLayout,
    listing: ReportListing,
    *,
    alike: AlikeConflicts,
    row: int,
) -> dict[str, Any]:
    first_conflict = alike.conflicts[0]
    names = [name for conflict in alike.conflicts for name in analysis.conflicts[conflict].sides]
    ops = [
        analysis.conflicts[conflict].places[0].op(analysis.program) for conflict in alike.conflicts
    ]
    facts = selection_facts.conflict_facts(analysis, first_conflict)
    # What a reader looks for comes first: where the conflict is, and how the plan settles it
    order = ("meets on", "source", "line")
    facts.sort(key=lambda fact: order.index(fact[0]) if fact[0] in order else len(order))
    facts.insert(0, ("this plan cuts", alike.settled))
    if len(alike.conflicts) > 1:
        facts.insert(1, ("alike", f"{len(alike.conflicts)} conflicts, one of them below"))
    chain = selection_facts.chain(analysis, first_conflict) if row < MOST_CHAINS else []
    members = set(alike.conflicts)
    return {
        "title": f"conflict on {alike.tensor}",
        "facts": facts,
        "nodes": sorted({int(layout.node_of[name]) for name in names} - {-1}),
        "edges": [
            index
            for index, edge in enumerate(layout.conflicts)
            if not members.isdisjoint(edge.conflicts)
        ],
        "lines": _lines(listing, ops),
        "chain": chain_path(layout, chain),
        "chainNames": [
            f"{analysis.name_text[name]} in {analysis.program.kind[int(analysis.names.op[name])]}"
            for name in chain[:40]
        ],
    }


def _line_data(analysis: Analysis, line: Any) -> dict[str, Any]:
    facts = [("line" if line.collective else "device-local", line.text)]
    facts += selection_facts.op_facts(analysis, line.op)
    return {"title": line.name or line.text, "facts": facts, "op": line.op}
