"""Sentences that say what a plan does and why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.dimension_graph import ConflictPlace
from toast_lab.cost.price_list import RULE
from toast_lab.cost.problem import CollectiveRow, Cost, Problem
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.explain.board import Board, Dispute, named_tensor
from toast_lab.explain.plan_by_hand import side_on
from toast_lab.report.page_tables import enumeration
from toast_lab.report.subject import ReportSubject
from toast_lab.search.action_path import refinements_of
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State
from toast_lab.text import line_text
from toast_lab.views.compare_table import PlanEntry, bytes_text, seconds_text
from toast_lab.views.markup import Safe, h, join
from toast_lab.views.overlay import name_axes
from toast_lab.written.choices import choices, saves


class PlanActions(NamedTuple):
    """The actions of a plan, and whether they alone produce it."""

    actions: tuple[Action, ...]
    texts: tuple[str, ...]
    #: False if the plan was refined afterwards, or did not come from actions
    exact: bool


def plan_actions(problem: Problem, plan: ShardingPlan) -> PlanActions:
    """The actions at the start of a plan's history, without those that change nothing."""
    problem = problem.unpinned
    state, actions = State(problem.space), []
    for request in plan.actions:
        try:
            action = parse_action(problem.analysis, problem.mesh, request)
        except ToastError:
            break
        if state.apply(action):
            actions.append(action)
    exact = bool(
        (state.op_factor == plan.op_factor).all() and (state.value_dim == plan.value_dim).all()
    )
    return PlanActions(tuple(actions), tuple(map(problem.space.text, actions)), exact)


def speed_text(baseline_s: float, time_s: float) -> str:
    """``8.3 times as fast as``, ``1.2 times as slow as``."""
    if not time_s or not baseline_s:
        return "compared with"
    factor = baseline_s / time_s
    if 0.995 < factor < 1.005:
        return "as fast as"
    return f"{factor:.3g} times as fast as" if factor > 1 else f"{1 / factor:.3g} times as slow as"


# -- collectives -----------------------------------------------------------------------------------
class AlikeCollectives(NamedTuple):
    """Collectives of one kind over the same axes at one source line."""

    kind: str
    axes: tuple[str, ...]
    where: str
    rows: tuple[CollectiveRow, ...]
    #: index of the longest of them among all collectives of the plan
    longest: int

    @property
    def time_s(self) -> float:
        """Total time of these collectives."""
        return sum(row.time_s for row in self.rows)


def alike_collectives(rows: tuple[CollectiveRow, ...]) -> list[AlikeCollectives]:
    """Collectives by kind, axes and source line, the groups that take longest first."""
    members: defaultdict[tuple[str, tuple[str, ...], str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        members[row.kind, row.axes, row.where].append(index)
    groups = [
        AlikeCollectives(
            kind=kind,
            axes=axes,
            where=where,
            rows=tuple(rows[index] for index in indices),
            longest=max(indices, key=lambda index: rows[index].time_s),
        )
        for (kind, axes, where), indices in members.items()
    ]
    return sorted(groups, key=lambda group: -group.time_s)


# -- summary ---------------------------------------------------------------------------------------
def headline(problem: Problem, cost: Cost) -> Safe:
    """A plan with this price in two sentences."""
    base_s, base_bytes = problem.baseline
    devices = problem.mesh.n_devices
    limit = cost.memory_limit_bytes
    fit = (
        f"A device holds at most {bytes_text(cost.peak_bytes)} of its {bytes_text(limit)}"
        if cost.fits
        else f"It does not fit: a device would need {bytes_text(cost.peak_bytes)} and has "
        f"{bytes_text(limit)}"
    )
    one_device = f"one device alone would need {bytes_text(base_bytes)}" + (
        ", which does not fit" if cost.fits and base_bytes > limit else ""
    )
    return h(
        "p",
        "With this plan one step of ",
        h("b", problem.analysis.model.name),
        f" takes an estimated {seconds_text(cost.time_s)} on {devices} "
        f"{'device' if devices == 1 else 'devices'} of {problem.machine.name} "
        f"({mesh_text(problem)}), {speed_text(base_s, cost.time_s)} one device "
        f"({seconds_text(base_s)}). {fit}; {one_device}.",
        cls="lead",
    )


def mesh_text(problem: Problem) -> str:
    """``data 4 × model 2``."""
    mesh = problem.mesh
    return " × ".join(f"{axis} {size}" for axis, size in zip(mesh.axes, mesh.sizes, strict=True))


def plan_points(
    problem: Problem, plan: ShardingPlan, cost: Cost, board: Board
) -> list[tuple[str, object]]:
    """(topic, sentences) pairs for what a reader of a plan wants to know first."""
    points: list[tuple[str, object]] = [
        ("Cuts", cuts_text(problem, plan)),
        ("Time", time_text(cost)),
    ]
    if costly := costliest_text(cost):
        points.append(("Costliest", costly))
    points.append(("Choices", choices_text(problem, plan, board)))
    if matters := matters_text(problem, plan):
        points.append(("What matters", matters))
    return points


def evidence_points(subject: ReportSubject) -> list[tuple[str, object]]:
    """(topic, sentences) pairs: other plans, how this one was found, and where numbers are from."""
    points: list[tuple[str, object]] = [
        (f"Against {entry.name}", against_text(subject.entry, entry)) for _, entry in subject.others
    ]
    if (result := subject.results.get(subject.entry.name)) is not None:
        points.append(("Search", search_text(result)))
    return [*points, ("Evidence", evidence_text(subject))]


def cuts_text(problem: Problem, plan: ShardingPlan) -> Safe:
    """Which colours the plan cuts along which axis."""
    history = plan_actions(problem, plan)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for action in history.actions:
        axis = problem.mesh.axes[action.axis]
        groups[axis].append(problem.analysis.groups[action.group].name)
    phrases = [
        join(
            enumeration([h("code", name) for name in dict.fromkeys(names)], 6),
            " over ",
            h("b", axis),
        )
        for axis, names in groups.items()
    ]
    if history.exact:
        no_cuts = Safe("Nothing: every device holds and computes everything.")
        return join(join(*phrases, between="; "), ".") if phrases else no_cuts
    refined = refined_text(problem, plan) or "refined op by op"
    opening = join(join(*phrases, between="; "), "; then ", refined) if phrases else "Op by op"
    return join(opening, ". Shares of each colour that are cut ", cut_shares(problem, plan), ".")


def refined_text(problem: Problem, plan: ShardingPlan) -> str:
    """What changed a plan after its actions, with its gain; empty if that is not known."""
    changed = refinements_of(problem.unpinned, plan)
    if changed is None:
        return ""
    gain = "less" if changed.gain >= 0 else "more"
    return (
        f"{changed.changes} changed by {changed.method}, for {abs(changed.gain):.2%} {gain} C(s): "
        f"{seconds_text(changed.before.time_s)} before, {seconds_text(changed.after.time_s)} after"
    )


def cut_shares(problem: Problem, plan: ShardingPlan) -> Safe:
    """``over data: sequence 91%; over model: heads 100%``: cut shares of the names of colours."""
    analysis = problem.analysis
    axes_of_name = name_axes(analysis, plan)
    group_of_name = analysis.group[analysis.colour]
    cuts: Counter[tuple[str, int]] = Counter()
    for name in np.flatnonzero(analysis.names.size > 1).tolist():
        for axis in axes_of_name[name]:
            cuts[axis, int(group_of_name[name])] += 1
    phrases = []
    for axis in problem.mesh.axes:
        shares = {
            group.name: cuts[axis, group.index] / group.n_names
            for group in analysis.groups
            if group.n_names > 1 and cuts[axis, group.index]
        }
        largest = sorted(shares.items(), key=lambda share: -share[1])
        texts = [join(h("code", name), f" {share:.0%}") for name, share in largest]
        if texts:
            phrases.append(join("over ", h("b", axis), ": ", enumeration(texts, 5)))
    return join(*phrases, between="; ") if phrases else Safe("none")


def time_text(cost: Cost) -> str:
    """Time of compute and of communication, one after the other and overlapped."""
    if not cost.collectives:
        return f"All {seconds_text(cost.compute_s)} are compute; there is no communication."
    count = len(cost.collectives)
    share = cost.comm_s / cost.time_s if cost.time_s else 0.0
    summary = (
        f"{seconds_text(cost.compute_s)} of compute and {seconds_text(cost.comm_s)} ({share:.0%}) "
        f"of communication, in {count:,} collective{'s' if count > 1 else ''}"
    )
    hidden_s = cost.time_s - cost.overlapped_s
    if hidden_s > 1e-3 * cost.time_s:
        return (
            f"{summary}. If communication overlaps with compute as far as the machine allows, a "
            f"step takes {seconds_text(cost.overlapped_s)}."
        )
    return f"{summary}."


def costliest_text(cost: Cost) -> Safe | None:
    """The collectives of one kind, axes and source line whose total time is the longest."""
    groups = alike_collectives(cost.collectives)
    if not groups:
        return None
    costliest = groups[0]
    repeats = f"{len(costliest.rows)} × " if len(costliest.rows) > 1 else ""
    share = costliest.time_s / cost.time_s if cost.time_s else 0.0
    return join(
        f"{repeats}{costliest.kind} over {' and '.join(costliest.axes)} at ",
        h("code", line_text(costliest.where) or "an unknown line"),
        f": {seconds_text(costliest.time_s)}, {share:.0%} of the step.",
    )


def choices_text(problem: Problem, plan: ShardingPlan, board: Board) -> Safe:
    """How many conflicts the program has, and which side the plan takes."""
    analysis = problem.analysis
    if not board.disputes:
        return Safe("None: no tensor of this program has two dims of one colour.")
    count, choices = len(analysis.conflicts), len(board.disputes)
    places = "1 conflict" if count == 1 else f"{count:,} conflicts"
    opening = f"{places}, settled by {choices} choice{'s' if choices > 1 else ''}. "
    sentences = [
        side_text(problem, plan, dispute, chosen_sides(problem, plan, board, row))
        for row, dispute in enumerate(board.disputes)
    ]
    remark = f" {len(sentences) - 3} more are in the table." if len(sentences) > 3 else ""
    return join(opening, join(*sentences[:3], between=" "), remark)


def matters_text(problem: Problem, plan: ShardingPlan) -> Safe | None:
    """The actions and sides that save most; None for a plan without actions."""
    try:
        rows = choices(plan, problem)
    except InvalidPlan:
        return None
    most = [join(h("code", row.text), f" {saves(row)}") for row in rows[:3]]
    return join("Compared with the plan without it, ", join(*most, between="; "), ".")


def chosen_sides(
    problem: Problem, plan: ShardingPlan, board: Board, row: int
) -> dict[str, int | None]:
    """By mesh axis, the side that the plan's actions take in a row of the board; None: neither."""
    first_set = problem.analysis.compatibility_sets[board.disputes[row].sets[0]]
    actions = plan_actions(problem, plan).actions
    return {
        axis: side_on(problem, actions, first_set.resolution, axis)
        for axis, size in zip(problem.mesh.axes, problem.mesh.sizes, strict=True)
        if size > 1
    }


def side_text(
    problem: Problem, plan: ShardingPlan, dispute: Dispute, sides: dict[str, int | None]
) -> Safe:
    """Which side of a choice a plan takes, and at how many conflicts that has an effect."""
    tensor = named_tensor(dispute.tensors)
    question = join(
        "Between ",
        f"dims {min(tensor.dims)} and {max(tensor.dims)} of ",
        h("code", f"{tensor.value} {list(tensor.shape)}"),
        f" ({line_text(tensor.where)})",
    )
    places = [
        place
        for set_index in dispute.sets
        for conflict in problem.analysis.compatibility_sets[set_index].conflicts
        for place in problem.analysis.conflicts[conflict].places[:1]
    ]
    cuts = Counter(cut_dims(plan, place) for place in places)
    cut_count = len(places) - cuts.pop(NEITHER_DIM, 0)
    chosen = [
        f"dim {tensor.dims[side]} over {axis}" for axis, side in sides.items() if side is not None
    ]
    if chosen:
        choice = f" the plan takes {' and '.join(chosen)}."
        if not cut_count:
            choice += " This has no effect: at every conflict these axes already cut other dims."
        elif cut_count < len(places):
            choice += (
                f" That settles {cut_count} of the {len(places)} conflicts; at the others the axis "
                "already cuts another dim."
            )
    elif cut_count:
        (cut, count), *others = cuts.most_common()
        elsewhere = ", and differently at others" if others else ""
        choice = (
            f" no action takes a side; op by op, the plan cuts {cut} at {count} of {len(places)} "
            f"conflicts{elsewhere}."
        )
    else:
        choice = " the plan cuts neither."
    return join(question, choice)


NEITHER_DIM = "neither dim"


def cut_dims(plan: ShardingPlan, place: ConflictPlace) -> str:
    """``dim 0 over data``: which of the two dims in conflict a plan cuts."""
    specs = plan.lowered.kept if place.use < 0 else plan.lowered.used
    spec = specs[place.value if place.use < 0 else place.use]
    both = [
        axes if dim in (place.first_dim, place.second_dim) else () for dim, axes in enumerate(spec)
    ]
    return spec_words(both) if any(both) else NEITHER_DIM


def against_text(ours: PlanEntry, other: PlanEntry) -> str:
    """Time and memory of one plan against those of another."""
    memory = ours.cost.peak_bytes - other.cost.peak_bytes
    amount = (
        "with as much memory"
        if abs(memory) < 0.005 * other.cost.peak_bytes
        else f"with {bytes_text(abs(memory))} {'less' if memory < 0 else 'more'} on a device"
    )
    fit = "" if other.cost.fits else "; that plan does not fit"
    return (
        f"{speed_text(other.cost.time_s, ours.cost.time_s)} that plan "
        f"({seconds_text(other.cost.time_s)}, {bytes_text(other.cost.peak_bytes)}), {amount}{fit}."
    )


def search_text(result: Any) -> str:
    """How the search found the plan, and what it proved about it."""
    outcome = f"{result.method}, seed {result.seed}: {result.message}"
    return f"{outcome} {result.proof}".rstrip()


def evidence_text(subject: ReportSubject) -> str:
    """Where the numbers come from."""
    entry, from_lists = subject.entry, listed_text(subject.cost)
    sources = []
    if entry.compiled is not None:
        sources.append(f"compiled for {entry.compiled.topology}")
    if entry.run is not None:
        sources.append(f"measured on {entry.run.devices}")
    if not sources:
        return (
            "All numbers are estimates of the cost model; this plan was neither compiled nor "
            f"measured.{from_lists}"
        )
    shown = " and ".join(sources)
    return f"Estimates of the cost model; this plan was also {shown}, see below.{from_lists}"


def listed_text(cost: Cost) -> str:
    """Share of the estimated time that price lists give; empty if all of it is priced by rule."""
    return "" if cost.priced_by == RULE else f" Of the estimated time: {cost.priced_by}."


# -- actions ---------------------------------------------------------------------------------------
def action_text(problem: Problem, action: Action) -> Safe:
    """What an action cuts, by the dims of the arguments."""
    analysis = problem.analysis
    group = analysis.groups[action.group]
    axis, parts = problem.mesh.axes[action.axis], problem.mesh.sizes[action.axis]
    carriers = argument_dims(analysis, action.group)
    carriers_text = (
        join(
            "This colour is ",
            enumeration([join(f"dim {dim} of ", h("code", name)) for dim, name in carriers], 2),
            ".",
        )
        if carriers
        else "No argument has this colour: it first appears inside the program."
    )
    side_note = (
        f" Where two of its dims meet, it takes side {action.bits:0{len(group.resolutions)}b}."
        if group.resolutions
        else ""
    )
    mirrored = f" in each of {len(group.colours)} layers" if len(group.colours) > 1 else ""
    return join(
        "cuts ",
        h("code", group.name),
        f" ({group.size:,}{mirrored}) into {parts} parts over {axis}. ",
        carriers_text,
        side_note,
    )


def argument_dims(analysis: Analysis, group: int) -> list[tuple[int, str]]:
    """(dim, argument) pairs that carry a colour group; repeated layers appear once, as ``[*]``."""
    program = analysis.program
    places: dict[tuple[int, str], None] = {}
    for argument in analysis.groups[group].arguments:
        for dim, name in enumerate(program.def_names(argument)):
            if analysis.group[analysis.colour[name]] == group:
                places[dim, family(program.value_name[argument])] = None
    return list(places)


def family(path: str) -> str:
    """A path with the numbers of layers replaced by ``*``.

    >>> family("params['layers'][3]['w_up']")
    "params['layers'][*]['w_up']"
    """
    return re.sub(r"(?<=\[)\d+(?=\])|(?<=_)\d+(?=\W|$)", "*", path)


def spec_words(spec: Sequence[Sequence[str]]) -> str:
    """``dim 0 over data, dim 2 over model and data``; ``whole`` if nothing is cut."""
    parts = [f"dim {dim} over {' and '.join(axes)}" for dim, axes in enumerate(spec) if axes]
    return ", ".join(parts) or "whole"
