"""The first half of a report: summary, the plan in terms of the model, and its local program."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.explain.board import Board
from toast_lab.explain.plan_by_hand import PlanAfterAction, plans_after_actions
from toast_lab.lowering.listing import ListingLine
from toast_lab.report import prose
from toast_lab.report.page_tables import (
    Section,
    box,
    details,
    frame_table,
    rows_table,
)
from toast_lab.report.plan_panel import Tile, best_of, plan_panel
from toast_lab.report.subject import ReportSubject
from toast_lab.sharding.plan import Spec
from toast_lab.views.by_hand_tables import sent_text
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.folded_lines import FoldedBlock, folded
from toast_lab.views.local_lines import MAX_LINES, local_lines
from toast_lab.views.markup import Safe, h, join
from toast_lab.views.report_tables import sizes_frame, whole_arguments_frame


def summary_section(subject: ReportSubject, board: Board) -> Section:
    """The summary, for a colleague who reads no further."""
    body = plan_panel(
        subject.problem,
        subject.plan,
        subject.cost,
        board=board,
        best=best_of(entry for _, entry in subject.others),
        tiles=_evidence_tiles(subject),
        points=prose.evidence_points(subject),
    )
    return Section("summary", "Summary", "Summary", body)


def _evidence_tiles(subject: ReportSubject) -> list[Tile]:
    entry, tiles = subject.entry, []
    if entry.compiled is not None:
        compiled_for = (f"for {entry.compiled.topology}",)
        memory = bytes_text(entry.compiled_peak_bytes)
        tiles.append(Tile("compiled, memory", memory, compiled_for))
        if entry.compiled.time_s is not None:
            step = seconds_text(entry.compiled.time_s)
            tiles.append(Tile("compiled, step", step, ("by its schedule",)))
    if entry.run is not None:
        step = seconds_text(entry.run.median_s)
        tiles.append(Tile("measured, step", step, (f"on {entry.run.devices}",)))
    return tiles


# -- the plan --------------------------------------------------------------------------------------
class AlikeArguments(NamedTuple):
    """Arguments of one type that are cut alike, such as those of repeated layers."""

    name: str
    places: int
    dtype: str
    dims: tuple[int, ...]
    spec: Spec
    #: shape on one device, the largest part where sizes do not divide
    local_dims: tuple[int, ...]
    #: bytes of all these arguments together on one device
    local_bytes: float


def argument_rows(subject: ReportSubject) -> list[AlikeArguments]:
    """All arguments in program order; those that are cut alike share a row."""
    plan = subject.plan
    program, mesh = plan.program, plan.mesh
    alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for argument, (path, spec) in enumerate(plan.argument_specs().items()):
        dims, dtype = program.dims(argument), str(program.value_dtype[argument])
        alike[prose.family(path), dtype, dims, spec].append(argument)
    rows = []
    for (name, dtype, dims, spec), arguments in alike.items():
        local_shape = tuple(
            math.ceil(size / mesh.ways(axes)) for size, axes in zip(dims, spec, strict=True)
        )
        share = math.prod(local_shape) / (math.prod(dims) or 1)
        rows.append(
            AlikeArguments(
                name=program.value_name[arguments[0]] if len(arguments) == 1 else name,
                places=len(arguments),
                dtype=dtype,
                dims=dims,
                spec=spec,
                local_dims=local_shape,
                local_bytes=share * sum(map(program.nbytes, arguments)),
            )
        )
    return rows


def plan_section(subject: ReportSubject, linked_op: Any) -> Section:
    """The section with the plan's actions, arguments and results.

    Args:
        subject: what the report is about.
        linked_op: gives what a table row about an op selects (``ReportLinks.pick_of_op``).
    """
    problem, plan = subject.problem, subject.plan
    parts = [_actions_part(subject), *_pins_part(subject)]
    rows = argument_rows(subject)
    argument_of = {name: argument for argument, name in enumerate(plan.argument_specs())}
    families = {prose.family(name): argument for name, argument in argument_of.items()}
    picks = [linked_op(argument_of.get(row.name, families.get(row.name, -1))) for row in rows]
    cells = [
        (
            f"{row.name}{f' ×{row.places}' if row.places > 1 else ''}",
            f"{row.dtype}{list(row.dims)}",
            prose.spec_words(row.spec),
            str(list(row.local_dims)) if any(row.spec) else "the same",
            bytes_text(row.local_bytes),
        )
        for row in rows
    ]
    columns = ("~argument", "=shape", "cut", "=on one device", ">bytes held")
    cut_count = sum(row.places for row in rows if any(row.spec))
    parts += [
        h("h3", "Arguments"),
        h(
            "p",
            f"{cut_count:,} of {plan.program.n_arguments:,} arguments are cut; a device holds "
            f"{bytes_text(sum(row.local_bytes for row in rows))} of them. "
            "Those of repeated layers share a row, with * for the layer.",
        ),
        rows_table(columns, cells, "arguments and how they are cut", picks=picks),
    ]
    results = [
        (name, prose.spec_words(spec)) for name, spec in _result_families(plan.result_specs())
    ]
    parts.append(
        details(
            f"Results ({len(plan.program.outputs):,})",
            rows_table(("~result", "cut"), results, "results and how they are cut"),
        )
    )
    report = problem.divisibility(plan)
    undivided, whole_arguments = sizes_frame(report), whole_arguments_frame(report)
    for heading, frame in (
        ("Sizes that an axis of the mesh does not divide", undivided),
        ("Large arguments that every device holds whole", whole_arguments),
    ):
        if len(frame):
            parts.append(details(f"{heading} ({len(frame):,})", frame_table(frame, heading)))
    return Section("plan", "Whole plan", "The whole plan", join(*parts))


def _result_families(specs: dict[str, Spec]) -> list[tuple[str, Spec]]:
    counts: defaultdict[tuple[str, Spec], int] = defaultdict(int)
    for path, spec in specs.items():
        counts[prose.family(path), spec] += 1
    return [
        (f"{name} ×{count}" if count > 1 else name, spec) for (name, spec), count in counts.items()
    ]


def _actions_part(subject: ReportSubject) -> Safe:
    problem = subject.problem.unpinned
    history = prose.plan_actions(problem, subject.plan)
    steps = plans_after_actions(problem, history.texts)
    rows: list[tuple[object, ...]] = [
        ("0", "–", "nothing is cut yet", seconds_text(steps[0].time_s), _memory(steps[0]), "–")
    ]
    pairs = zip(history.actions, itertools.pairwise(steps), strict=True)
    for number, (action, (before, after)) in enumerate(pairs, 1):
        sent = sent_text(_net_change(before, after))
        rows.append(
            (
                str(number),
                history.texts[number - 1],
                prose.action_text(problem, action),
                seconds_text(after.time_s),
                _memory(after),
                sent,
            )
        )
    if not history.exact:
        cost = subject.cost
        rows.append(
            (
                "…",
                "refined",
                prose.refined_text(problem, subject.plan)
                or "some ops and values are sharded differently from what the actions say",
                seconds_text(cost.time_s),
                _memory(cost),
                "see the collectives",
            )
        )
    columns = (
        ">#",
        "=action",
        "what it does",
        ">step after",
        ">memory after",
        "change in collectives",
    )
    return join(
        h(
            "p",
            "A plan is a list of actions. Each cuts a colour, that is all dims that have to be "
            "cut together, along one axis of the mesh. Time and memory are those of the plan "
            "after each action; ✗: does not fit.",
        ),
        rows_table(columns, rows, "actions of the plan, in order"),
    )


def _net_change(
    before: PlanAfterAction, after: PlanAfterAction
) -> list[tuple[tuple[str, tuple[str, ...]], tuple[int, int]]]:
    """How many collectives an action adds or removes, by kind and axes; moved ones do not count."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for sent, sign in ((after.sent, 1), (before.sent, -1)):
        for (kind, axes, _), count in sent.items():
            counts[kind, axes] += sign * count
    return [(key, (max(net, 0), max(-net, 0))) for key, net in sorted(counts.items()) if net]


def _memory(step: Any) -> str:
    return bytes_text(step.peak_bytes) + ("" if step.fits else " ✗")


def _pins_part(subject: ReportSubject) -> list[Safe]:
    pins = subject.problem.pins
    if pins is None or not pins.texts:
        return []
    return [h("p", "Pinned: ", join(*(h("code", text) for text in pins.texts), between=", "), ".")]


# -- the listing -----------------------------------------------------------------------------------
class ReportListing(NamedTuple):
    """The local program of a plan, and which of its lines are shown.

    Attributes:
        lines: all lines.
        blocks: blocks that cover all lines, with repeated lines folded.
        shown: indices of the lines that are shown.
        line_of_op: for each op the position in ``shown`` of its last line that is no collective,
            else of its first line; -1 if it has none.
    """

    lines: Sequence[ListingLine]
    blocks: Sequence[FoldedBlock]
    shown: Sequence[int]
    line_of_op: Sequence[int]


def report_listing(analysis: Analysis, lines: Sequence[ListingLine]) -> ReportListing:
    """Fold the repeated layers of a listing."""
    program = analysis.program

    def key(line: ListingLine) -> tuple[object, ...]:
        if line.right == "argument":
            return prose.family(line.name), line.dims
        verb = line.right.partition("(")[0]
        if "(" not in line.right and line.name:
            verb = line.right.rpartition(" ")[0]
        backward = "transpose(" in program.name_stack[line.op]
        return verb, line.dims, line.depth, int(program.location[line.op]), backward

    blocks = folded([*map(key, lines)])
    shown: list[int] = []
    line_of_op = [-1] * program.n_ops
    for block in blocks:
        first_shown = len(shown)
        for index in range(block.start, block.stop):
            op, shown_line = lines[index].op, first_shown + (index - block.start) % block.length
            # The line of the op itself may come before or after those of its collectives
            if line_of_op[op] < 0 or not lines[index].collective:
                line_of_op[op] = shown_line
        shown += range(block.start, block.start + block.length)
    return ReportListing(lines, blocks, shown, line_of_op)


def listing_section(subject: ReportSubject, listing: ReportListing) -> Section:
    """The section with the program of one device."""
    analysis = subject.problem.analysis
    written = local_lines(analysis, [listing.lines[index] for index in listing.shown]).lines
    rows: list[Safe] = []
    shown_index = 0
    for block in listing.blocks:
        lines = []
        for line in written[shown_index : shown_index + block.length]:
            pieces = [
                h("span", segment.text, cls="sent") if segment.hue else segment.text
                for segment in line.segments
            ]
            lines.append(
                h(
                    "div",
                    h("span", *pieces, cls="code"),
                    h("span", line.where, cls="where"),
                    data_pick=f"line {shown_index}",
                    role="option",
                    tabindex="-1",
                )
            )
            shown_index += 1
        if block.times > 1 and lines:
            heading = f"repeated {block.times} times, shown once ({block.length} lines)"
            lines = [
                h(
                    "div",
                    h("div", heading, cls="fold", aria_hidden="true"),
                    *lines,
                    cls="folded",
                    role="group",
                    aria_label=heading,
                )
            ]
        rows += lines
    count = len(listing.lines)
    collectives = sum(line.collective for line in listing.lines)
    note = f"{count:,} lines, {collectives:,} of them collectives (bold)"
    if len(listing.shown) < count:
        note += f"; repeated layers are folded, which leaves {len(listing.shown):,}"
    if len(listing.shown) > MAX_LINES:
        note += f"; the first {MAX_LINES:,} of these are shown, toast-lab list prints all"
    listing_body = h(
        "div",
        *rows,
        cls="listing pickable",
        role="listbox",
        aria_label="lines of the local program",
    )
    body = join(
        h(
            "p",
            "What one device runs. A size in braces is cut along that axis: ",
            h("code", "[256{data}, 64]"),
            f". {note}.",
        ),
        box(listing_body, "the local program", tall=True),
    )
    return Section("program", "Program", "The program of one device", body)
