"""Changes to the user's annotations that may remove a finding, tried and priced.

Candidates are made alike for every kind of finding: tensors around it, upstream and downstream,
get other specs over the axes concerned. An argument gets another spec with all of its role, and
with the results that are its new values; or the spec of its counterpart in another tree, such as
the parameter of a moment. A computed tensor gets a constraint; the user's constraints nearby get
another spec, or go. A value that a loop reads gets one before the loop. What an edit leads to,
propagation says, and the price decides. Start reading at ``with_remedies``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from toast_lab import isolate
from toast_lab.audit.code_lines import code_of, text_of
from toast_lab.audit.detecting import Evidence, bytes_on_device, duplicated_s
from toast_lab.audit.findings import (
    KINDS,
    Finding,
    Kind,
    Remedy,
)
from toast_lab.audit.places_alike import without
from toast_lab.audit.trials import Outcome, Trials
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec
from toast_lab.text import line_text
from toast_lab.written.annotated import Edits

#: how far, in ops, tensors around a finding are changed
UPSTREAM, DOWNSTREAM = 6, 3
MOST_CANDIDATES = 32  #: for one finding
MOST_TENSORS = 8  #: computed tensors around a finding that are changed
#: a finding counts as removed if at most this share of its cost is left
LEFT_SHARE = 0.34
#: Findings without a change that saves at least this share of C(s) are no faults but the price of
#: the sharding, unless they are faults by their kind.
LEAST_SAVING = 0.01
#: Share of a step from which a rematerialisation leads the list.
LEADING_SHARE = 0.05
#: A finding that costs a smaller share of what its remedy saves is not the reason for it.
MINOR_SHARE = 0.1
UNEVEN = KINDS.index(Kind.UNEVEN_DIM)
#: Most other changes that a finding lists.
MOST_OTHERS = 3


def with_remedies(
    evidence: Evidence,
    findings: Sequence[Finding],
    trials: Trials,
    *,
    time_limit_s: float,
    on_event: Callable[[Any], None] | None = None,
    cancel: isolate.Cancel | None = None,
) -> list[Finding]:
    """The findings with the changes that remove them, those that save most first.

    Collectives and repeated work that no change avoids at a gain are left out: the sharding needs
    them. Findings with one remedy are joined.
    """
    by_cost = sorted(findings, key=lambda finding: (finding.rank > UNEVEN, -finding.time_s))
    candidates = {id(finding): list(_candidates(evidence, finding)) for finding in by_cost}
    # One of each finding in turn, so that the time is shared
    longest = max(map(len, candidates.values()), default=0)
    in_turn = [
        candidates[id(finding)][turn]
        for turn in range(longest)
        for finding in by_cost
        if turn < len(candidates[id(finding)])
    ]
    trials.run(in_turn, time_limit_s=time_limit_s, on_event=on_event, cancel=cancel)
    outcomes = [
        outcome
        for edits in dict.fromkeys(in_turn)
        if (outcome := trials.outcomes.get(edits)) is not None
    ]
    remedied = []
    for finding in by_cost:
        own = {*candidates[id(finding)]}
        remedies = sorted(
            (
                remedy
                for outcome in outcomes
                if (remedy := _remedy(evidence, finding, outcome)).removes
                and (remedy.saved_share > 0 or outcome.edits in own)
            ),
            key=lambda remedy: (
                not remedy.fits,
                -_rounded(remedy.saved_share),
                _effort(remedy),
                -remedy.saved_bytes,
            ),
        )
        best = remedies[0] if remedies else None
        is_fault = finding.rank < UNEVEN or finding.kind == Kind.ADDED_COLLECTIVE
        # Slices such as tokens[:, 1:] leave uneven dims everywhere, most of which cost nothing
        is_fault |= (
            finding.kind == Kind.UNEVEN_DIM
            and finding.time_s >= LEAST_SAVING * evidence.written.time_s
        )
        if not is_fault and (best is None or best.saved_share < LEAST_SAVING):
            continue
        if finding.kind == Kind.REPLICATED_STATE and (
            best is None or not _is_gain(best, evidence.written)
        ):
            continue
        remedied.append(
            dataclasses.replace(finding, remedy=best, others=tuple(remedies[1 : 1 + MOST_OTHERS]))
        )
    return _joined(remedied, evidence.written.time_s)


def _is_gain(remedy: Remedy, written: Outcome) -> bool:
    """Does a change save time, or much memory at no time?"""
    saves_memory = remedy.saved_bytes > 0.02 * written.cost.peak_bytes
    return remedy.saved_share > LEAST_SAVING or (remedy.saved_share >= -0.002 and saves_memory)


def _rounded(share: float) -> float:
    """Changes that save alike, within two percent, are told apart by what has to be written."""
    return round(50.0 * share) / 50.0


def _effort(remedy: Remedy) -> int:
    """Lines to write; a line for a tensor without a name counts for more."""
    return len(remedy.code) + 2 * sum("(<result of " in line for line in remedy.code)


def _joined(findings: Sequence[Finding], step_s: float) -> list[Finding]:
    """Findings by what their remedies save; those with the same remedy stand for each other.

    A rematerialisation that counts comes before the others: the compiler itself warns of it.
    """

    def order(finding: Finding) -> tuple[object, ...]:
        warned = finding.kind == Kind.REMATERIALISATION
        leads = warned and finding.cost_share(step_s) >= LEADING_SHARE
        saved_s = finding.remedy.saved_s if finding.remedy is not None else 0.0
        # A small fault is not what a change that saves much more is about
        is_minor = finding.rank >= UNEVEN and finding.time_s < MINOR_SHARE * saved_s
        saved = _rounded(finding.saved_share)
        return not leads, -saved, is_minor, finding.rank, -finding.time_s, finding.op

    ordered = sorted(findings, key=order)
    joined: list[Finding] = []
    place_of_edits: dict[Edits, int] = {}
    for finding in ordered:
        edits = None if finding.remedy is None else finding.remedy.edits
        first = place_of_edits.setdefault(edits, len(joined)) if edits else len(joined)
        if first == len(joined):
            joined.append(finding)
            continue
        line = f" at {line_text(finding.where)}" if finding.where else ""
        joined[first] = dataclasses.replace(
            joined[first], also=(*joined[first].also, f"{finding.title}{line}")
        )
    return joined


# -- candidates ------------------------------------------------------------------------------------
class _Near(NamedTuple):
    """Tensors around a finding, nearest first."""

    computed: tuple[int, ...]
    arguments: tuple[int, ...]
    constraints: tuple[int, ...]  #: ops


def _candidates(evidence: Evidence, finding: Finding) -> Iterator[Edits]:
    """Edits that may remove a finding, the likeliest first; each once."""
    seen: set[Edits] = set()
    for edits in _all_candidates(evidence, finding):
        if edits and edits not in seen:
            seen.add(edits)
            yield edits
        if len(seen) >= MOST_CANDIDATES:
            return


def _all_candidates(evidence: Evidence, finding: Finding) -> Iterator[Edits]:
    program, roles, specs = evidence.roles.program, evidence.roles, evidence.written.specs
    mesh = evidence.problem.mesh
    if finding.kind == Kind.REPLICATED_STATE:
        yield _state_edits(evidence, finding.values)
        return
    near, axes = _near(evidence, finding), finding.axes
    yield from (_sibling_edits(evidence, argument) for argument in near.arguments)
    streams = [
        _constraint_edits(evidence, near.constraints, axes),
        *(_hoisted(evidence, value, axes) for value in finding.values),
        *(_argument_edits(evidence, argument, axes) for argument in near.arguments),
        *(
            _value_edits(roles, value, variants(mesh, program.dims(value), specs[value], axes))
            for value in near.computed[:MOST_TENSORS]
        ),
    ]
    # One of each in turn
    yield from filter(None, chain.from_iterable(zip_longest(*streams)))


def variants(mesh: Mesh, dims: Sequence[int], spec: Spec, axes: Sequence[str]) -> Iterator[Spec]:
    """Specs in which one or more of ``axes`` cut another dim, one more dim, or none."""
    for axis in axes:
        others = without(spec, axis)
        for position, size in enumerate(dims):
            moved = tuple(
                tuple(sorted((*dim, axis), key=mesh.axes.index)) if i == position else dim
                for i, dim in enumerate(others)
            )
            if moved != spec and size > 1 and mesh.divides(size, moved[position]):
                yield moved
        if others != spec:
            yield others
    if len(axes) > 1 and (others := without(spec, *axes)) != spec:
        yield others


def _near(evidence: Evidence, finding: Finding) -> _Near:
    """Tensors within a few ops of a finding, by breadth."""
    program, roles = evidence.roles.program, evidence.roles
    start = [finding.op] if finding.op >= 0 else []
    values = [*finding.values]
    if finding.kind == Kind.UNEVEN_DIM:
        start = list(finding.ops[:4])
        values = list(finding.values[:4])
    if finding.kind == Kind.REPLICATED_WORK:
        values = [v for v in finding.values if v >= program.n_arguments]
    distance: dict[int, int] = dict.fromkeys(values, 0)
    frontier = [*values]
    for op in start:
        for value in (*program.results(op), *program.operands(op)):
            if int(value) not in distance:
                distance[int(value)] = 1
                frontier.append(int(value))
    readers = _readers(program)
    constraints: dict[int, None] = {}
    repeated = {*roles.of_argument.values(), *roles.of_result.values()}
    up, down = list(frontier), list(frontier)
    for step in range(max(UPSTREAM, DOWNSTREAM)):
        if step < UPSTREAM:
            up = _step(up, distance, lambda v: _sources(program, v), step)
        if step < DOWNSTREAM:
            down = _step(down, distance, lambda v: readers.get(v, ()), step)
    tensors = sorted(distance, key=lambda value: distance[value])
    for value in tensors:
        for op in (int(program.value_op[value]), *_reading_ops(program, value)):
            if program.kind[op] == CONSTRAINT and op not in repeated:
                constraints[op] = None
    large = [v for v in tensors if program.dims(v) and not program.value_is_constant[v]]
    computed = [
        v
        for v in large
        if v >= program.n_arguments
        and int(program.value_op[v]) not in repeated
        and not program.kind[program.value_op[v]].startswith("while.")
    ]
    arguments = [v for v in large if v < program.n_arguments]
    if finding.kind == Kind.REPLICATED_WORK:
        entering = [v for v in finding.values if v < program.n_arguments]
        arguments = [*sorted(entering, key=lambda v: -program.nbytes(v))[:3], *arguments]
    # One tensor stands for those of its line, and those of a backward pass for its forward pass
    by_site: dict[tuple[int, ...], int] = {}
    for value in computed:
        by_site.setdefault(roles.same_line(value) or (value,), value)
    by_role: dict[tuple[int, ...], int] = {}
    for argument in arguments:
        by_role.setdefault(roles.alike(argument), argument)
    return _Near(tuple(by_site.values()), tuple(by_role.values()), tuple(constraints))


def _step(
    frontier: list[int],
    distance: dict[int, int],
    neighbours: Callable[[int], Sequence[int]],
    step: int,
) -> list[int]:
    reached = []
    for value in frontier:
        for other in neighbours(value):
            if int(other) not in distance:
                distance[int(other)] = step + 2
                reached.append(int(other))
    return reached[:64]


def _sources(program: Program, value: int) -> list[int]:
    """What a value is computed from; what enters a loop, for a value inside it."""
    op = int(program.value_op[value])
    if program.kind[op] == "while.result":
        return [int(v) for v in program.operands(int(program.owner[op]))]
    return [int(v) for v in program.operands(op) if not program.value_is_constant[v]]


def _readers(program: Program) -> dict[int, list[int]]:
    """What is computed from each value."""
    readers: dict[int, list[int]] = {}
    for op in program.ops():
        for value in program.operands(op):
            readers.setdefault(int(value), []).extend(map(int, program.results(op)))
    return readers


def _reading_ops(program: Program, value: int) -> list[int]:
    return [int(op) for op in program.use_op[program.use_value == value]]


def _state_edits(evidence: Evidence, arguments: Sequence[int]) -> Edits:
    """Every argument sharded as its counterpart in another tree."""
    specs = evidence.written.specs
    wanted = {
        argument: max(
            (specs[other] for other in evidence.roles.siblings(argument)),
            key=lambda spec: evidence.problem.mesh.ways(a for dim in spec for a in dim),
        )
        for argument in arguments
    }
    return evidence.roles.argument_edits(wanted)


def _sibling_edits(evidence: Evidence, argument: int) -> Edits:
    """An argument and those of its role, sharded as a counterpart that differs."""
    roles, specs = evidence.roles, evidence.written.specs
    wanted = {}
    for other in roles.alike(argument):
        spec = next((specs[s] for s in roles.siblings(other) if specs[s] != specs[other]), None)
        if spec is not None:
            wanted[other] = spec
    return roles.argument_edits(wanted)


def _argument_edits(evidence: Evidence, argument: int, axes: Sequence[str]) -> Iterator[Edits]:
    """Other specs for an argument, its role, and the counterparts that have its spec now."""
    roles, specs, program = evidence.roles, evidence.written.specs, evidence.roles.program
    spec = specs[argument]
    members = roles.alike(argument)
    together = [*members, *(s for m in members for s in roles.siblings(m) if specs[s] == spec)]
    for other in variants(evidence.problem.mesh, program.dims(argument), spec, axes):
        yield roles.argument_edits(dict.fromkeys(together, other))


def _constraint_edits(
    evidence: Evidence, ops: Sequence[int], axes: Sequence[str]
) -> Iterator[Edits]:
    """The user's constraints near a finding, removed or with another spec."""
    program, specs = evidence.roles.program, evidence.written.specs
    for site in sorted(evidence.roles.constraint_sites, key=lambda site: -len(site.ops)):
        if not set(ops) & set(site.ops):
            continue
        yield Edits(replaced=tuple((op, None) for op in site.ops))
        value = int(program.results(site.ops[0])[0])
        operand = specs[int(program.operands(site.ops[0])[0])]
        own = without(site.spec, "*")
        dims = program.dims(value)
        for spec in dict.fromkeys([operand, *variants(evidence.problem.mesh, dims, own, axes)]):
            if spec != own:
                yield Edits(replaced=tuple((op, spec) for op in site.ops))


def _value_edits(roles: Any, value: int, specs: Iterator[Spec]) -> Iterator[Edits]:
    """A constraint behind the line that makes a tensor; none in a backward pass."""
    values = roles.same_line(value)
    if not values:
        return
    for spec in specs:
        yield Edits(constraints=tuple((v, spec) for v in values))


def _hoisted(evidence: Evidence, value: int, axes: Sequence[str]) -> Iterator[Edits]:
    """A constraint before the loop on what a collective in it moves, without these axes."""
    program, specs = evidence.roles.program, evidence.written.specs
    seen = {value}
    frontier = [value]
    for _ in range(UPSTREAM):
        reached = []
        for current in frontier:
            op = int(program.value_op[current])
            if program.kind[op] == "while.enter":
                outside = int(program.operands(op)[0])
                spec = without(specs[outside], *axes)
                if spec != specs[outside]:
                    yield Edits(constraints=((outside, spec),))
                continue
            for source in _sources(program, current):
                if source not in seen and program.nbytes(source) >= program.nbytes(value):
                    seen.add(source)
                    reached.append(source)
        frontier = reached


# -- judging ---------------------------------------------------------------------------------------
def _remedy(evidence: Evidence, finding: Finding, outcome: Outcome) -> Remedy:
    written = evidence.written
    return Remedy(
        text=text_of(evidence.roles, outcome.edits),
        code=code_of(evidence.roles, outcome.edits),
        edits=outcome.edits,
        time_s=outcome.time_s,
        peak_bytes=outcome.cost.peak_bytes,
        fits=outcome.cost.fits,
        saved_s=written.time_s - outcome.time_s,
        saved_bytes=written.cost.peak_bytes - outcome.cost.peak_bytes,
        saved_share=(written.score - outcome.score) / written.score if written.score else 0.0,
        removes=_is_gone(evidence, finding, outcome),
    )


def _is_gone(evidence: Evidence, finding: Finding, outcome: Outcome) -> bool:
    """Is a finding gone in what some edits lead to?"""
    program, written = evidence.roles.program, evidence.written
    if finding.kind == Kind.REPLICATED_STATE:
        return all(
            bytes_on_device(outcome, value) < bytes_on_device(written, value)
            for value in finding.values
        )
    if finding.kind == Kind.UNEVEN_DIM:
        uneven = {(u.value, u.axes) for u in outcome.meaning.uneven}
        return not any((value, finding.axes) in uneven for value in finding.values)
    if finding.kind == Kind.REMATERIALISATION:
        return all(_is_direct(outcome, op) for op in finding.ops)
    ops = set(finding.ops)
    if finding.kind == Kind.REPLICATED_WORK:
        axis = evidence.problem.mesh.axes.index(finding.axes[0])
        shardable = evidence.problem.analysis.names.shardable
        left = duplicated_s(outcome, program, axis, shardable)
        return sum(left.get(op, 0.0) for op in ops) <= LEFT_SHARE * finding.time_s
    if finding.kind == Kind.ADDED_COLLECTIVE:
        return all(
            outcome.specs[value] != written.specs[value]
            for op in finding.ops
            for value in program.results(op)
        )
    left_s = sum(
        row.time_s
        for row in outcome.cost.collectives
        if row.op in ops and set(row.axes) & set(finding.axes)
    )
    return left_s <= LEFT_SHARE * finding.time_s


def _is_direct(outcome: Outcome, op: int) -> bool:
    """Are an op's tensors read such that a gather, a slice or one axis' move suffices?"""
    plan = outcome.meaning.plan
    program, kept, used = plan.program, plan.lowered.kept, plan.lowered.used
    pairs = [(kept[program.use_value[use]], used[use]) for use in program.uses(op)]
    for value in program.results(op):
        pairs.append((plan.lowered.natural[value], kept[value]))
        pairs += [(kept[value], used[use]) for use in np.flatnonzero(program.use_value == value)]
    return all(_is_one_step(before, after) for before, after in pairs)


def _is_one_step(before: Spec, after: Spec) -> bool:
    old = {axis: dim for dim, axes in enumerate(before) for axis in axes}
    new = {axis: dim for dim, axes in enumerate(after) for axis in axes}
    moved = [axis for axis in old if axis in new and new[axis] != old[axis]]
    changed = {*old.items()} ^ {*new.items()}
    return (
        not changed
        or (len(moved) == 1 and len(changed) == 2)
        or (not moved and (not old.keys() - new.keys() or not new.keys() - old.keys()))
    )
