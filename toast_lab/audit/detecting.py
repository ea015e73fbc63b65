"""Finds faults in a sharded program: from its propagated shardings, their price and the compiler.

Start reading at ``detect``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.audit.findings import Finding, Kind
from toast_lab.audit.places_alike import PlacesAlike
from toast_lab.audit.trials import Outcome
from toast_lab.cost.problem import CollectiveRow, Problem
from toast_lab.ir.locations import place_text
from toast_lab.ir.program import ARGUMENT, CONTROL, Program
from toast_lab.machines.collectives import named_time_s
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.diff import CompiledDiff
from toast_lab.runtime.diff_rows import EXTRA, MISSING, DiffRow
from toast_lab.sharding.plan import Spec, spec_text
from toast_lab.text import bytes_text, first_items_text, line_text
from toast_lab.written.meaning import Uneven

#: Faults that cost a smaller share of a step are not looked into.
LEAST_SHARE = 0.002
#: State that is held too much counts from this share of the peak.
LEAST_STATE_SHARE = 0.02
_MOVES = ("all_gather", "all_to_all", "permute")


class Evidence(NamedTuple):
    """All that is known about a program as it is sharded."""

    problem: Problem
    roles: PlacesAlike
    written: Outcome
    compiled: Compiled | None
    diff: CompiledDiff | None


def detect(evidence: Evidence) -> list[Finding]:
    """All faults that cost a share of the step worth looking into, each without a remedy."""
    return [
        *_rematerialised(evidence),
        *_state(evidence),
        *_padded(evidence),
        *_work(evidence),
        *_collectives(evidence),
        *_added(evidence),
    ]


def tensor_text(program: Program, value: int) -> str:
    """``q f32[64, 512, 1024]``, or the op that makes the tensor if it has no name."""
    name = program.value_name[value]
    if name.startswith("%"):
        name = f"result of {program.kind[program.value_op[value]].removeprefix('sdy.')}"
    dims = ", ".join(map(str, program.dims(value)))
    return f"{name} {program.value_dtype[value]}[{dims}]"


def _finding_at(program: Program, op: int, **fields: Any) -> Finding:
    """A finding at an op."""
    place = place_text(program.locations[int(program.location[op])])
    return Finding(op=op, where=program.where(op), place=place, **fields)


def _cut_by(*specs: Spec) -> set[str]:
    """The axes that cut any dim of tensors."""
    return {axis for spec in specs for dim in spec for axis in dim}


# -- involuntary rematerialisation -----------------------------------------------------------------
def _rematerialised(evidence: Evidence) -> Iterator[Finding]:
    compiled, program = evidence.compiled, evidence.problem.analysis.program
    if compiled is None:
        return
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for remat in compiled.rematerialised:
        if 0 <= remat.op < program.n_ops:
            key = program.where(remat.op), program.kind[remat.op]
            grouped[key].append(remat.op)
    for ops in grouped.values():
        values = [
            int(value) for op in ops for value in (*program.operands(op), *program.results(op))
        ]
        moved = max(
            (int(value) for value in program.results(ops[0])), key=program.nbytes, default=-1
        )
        if moved < 0:
            continue
        sent = float(program.nbytes(moved))
        whole_s = named_time_s(
            "all_gather",
            evidence.problem.mesh.axes,
            sent,
            mesh=evidence.problem.mesh,
            links=evidence.problem.links,
        )
        yield _finding_at(
            program,
            ops[0],
            kind=Kind.REMATERIALISATION,
            subject=tensor_text(program, moved),
            axes=_axes_of(evidence, values),
            time_s=(whole_s or 0.0) * float(program.trips[ops[0]]) * len(ops),
            bytes=sent,
            count=len(ops),
            why=_reader(evidence, moved)
            + "; the partitioner knows no direct way between the two, so it makes the "
            "whole tensor on every device and slices it again",
            ops=tuple(ops),
            values=tuple(dict.fromkeys(values)),
        )


def _reader(evidence: Evidence, value: int) -> str:
    """In which shardings a tensor is kept and read, as a sentence."""
    program, plan = evidence.problem.analysis.program, evidence.written.meaning.plan
    kept = plan.lowered.kept[value]
    pairs = [
        (plan.lowered.used[use], int(program.use_op[use]))
        for use in np.flatnonzero(program.use_value == value)
    ]
    maker = int(program.value_op[value])
    pairs += [
        (plan.lowered.used[use], maker)
        for use in program.uses(maker)
        if program.dims(int(program.use_value[use])) == program.dims(value)
    ]
    spec, op = next((pair for pair in pairs if pair[0] != kept), (kept, maker))
    kind = program.kind[op].removeprefix("sdy.")
    return (
        f"it is kept as {spec_text(kept)} and {kind} ({line_text(program.where(op))}) "
        f"reads it as {spec_text(spec)}"
        if spec != kept
        else f"it is {spec_text(kept)} here, and its neighbours are sharded in another way"
    )


def _axes_of(evidence: Evidence, values: Sequence[int]) -> tuple[str, ...]:
    used = _cut_by(*(evidence.written.specs[value] for value in values))
    return tuple(axis for axis in evidence.problem.mesh.axes if axis in used)


def _side_s(problem: Problem, row: DiffRow) -> float:
    """Seconds per step of the compiled side of a row, by the machine's rule."""
    side = row.compiled
    if side is None:
        return 0.0
    axes = problem.mesh.axes if side.axes is None else side.axes
    time_s = named_time_s(side.kind, axes, side.bytes, mesh=problem.mesh, links=problem.links)
    return side.times * (time_s or 0.0)


# -- replicated state ------------------------------------------------------------------------------
def _state(evidence: Evidence) -> Iterator[Finding]:
    program, roles = evidence.problem.analysis.program, evidence.roles
    specs, mesh = evidence.written.specs, evidence.problem.mesh
    lacking: dict[int, tuple[str, ...]] = {}
    extra_bytes: dict[int, float] = {}
    for argument in range(program.n_arguments):
        for other in roles.siblings(argument):
            own, others = _cut_by(specs[argument]), _cut_by(specs[other])
            ways, axes = [mesh.ways(own), mesh.ways(others)], others - own
            if axes and ways[1] > ways[0]:
                lacking[argument] = tuple(axis for axis in mesh.axes if axis in axes)
                extra_bytes[argument] = program.nbytes(argument) * (1 / ways[0] - 1 / ways[1])
    total = sum(extra_bytes.values())
    if total < LEAST_STATE_SHARE * evidence.written.cost.peak_bytes:
        return
    by_root: dict[str, list[int]] = defaultdict(list)
    for argument in lacking:
        by_root[roles.root(argument)].append(argument)
    largest = max(lacking, key=lambda argument: extra_bytes[argument])
    other = next(
        sibling
        for sibling in roles.siblings(largest)
        if _cut_by(specs[sibling]) >= set(lacking[largest])
    )
    all_axes = tuple(a for a in mesh.axes if any(a in own for own in lacking.values()))
    whole = "whole" if not any(specs[largest]) else spec_text(specs[largest])
    yield Finding(
        kind=Kind.REPLICATED_STATE,
        subject=f"{first_items_text(by_root)}: {len(lacking)} tensors, {bytes_text(total)} too "
        "much on every device",
        axes=all_axes,
        bytes=total,
        why=(
            f"{program.value_name[largest]} is {whole} on {', '.join(all_axes)}, and "
            f"{program.value_name[other]} is {spec_text(specs[other])}: what is computed from both "
            "has to be gathered or computed on every device"
        ),
        values=tuple(lacking),
    )


# -- uneven dims -----------------------------------------------------------------------------------
def _padded(evidence: Evidence) -> Iterator[Finding]:
    program, written = evidence.problem.analysis.program, evidence.written
    grouped: dict[tuple[int, tuple[str, ...]], list[Uneven]] = defaultdict(list)
    for uneven in written.meaning.uneven:
        grouped[uneven.size, uneven.axes].append(uneven)
    for (size, axes), (uneven, *alike) in grouped.items():
        values = [uneven.value, *(other.value for other in alike)]
        op = int(program.value_op[uneven.value])
        waste = uneven.padded / size - 1.0
        busy_s = sum(
            row.time_s
            for row in written.cost.ops
            if any(int(v) in set(values) for v in program.results(row.op))
        )
        yield _finding_at(
            program,
            op,
            kind=Kind.UNEVEN_DIM,
            subject=tensor_text(program, uneven.value),
            axes=axes,
            time_s=waste * busy_s,
            bytes=waste * bytes_on_device(written, uneven.value),
            why=(
                f"dim {uneven.dim} has size {size}, which {'+'.join(axes)} = {uneven.ways} does "
                f"not divide: XLA pads it to {uneven.padded}, so that {waste:.0%} more is "
                "computed, and reshards where shapes change"
            ),
            ops=tuple(dict.fromkeys(int(program.value_op[value]) for value in values)),
            values=tuple(values),
        )


# -- replicated work -------------------------------------------------------------------------------
def duplicated_s(
    outcome: Outcome, program: Program, axis: int, shardable: np.ndarray
) -> dict[int, float]:
    """Seconds of each op that every device of an axis repeats, and could share."""
    size, plan = outcome.meaning.plan.mesh.sizes[axis], outcome.meaning.plan
    by_hand = _split_by_hand(program, plan.mesh.axes[axis])
    repeated: dict[int, float] = {}
    for row in outcome.cost.ops:
        op = row.op
        is_split = plan.op_factor[op, axis] >= 0 or op in by_hand
        if is_split or program.op_class[op] in (ARGUMENT, CONTROL):
            continue
        if any(shardable[f] and program.factor_size[f] % size == 0 for f in program.factors(op)):
            repeated[op] = repeated.get(op, 0.0) + row.time_s * (1.0 - 1.0 / size)
    return repeated


def _split_by_hand(program: Program, axis: str) -> set[int]:
    """The shard_maps whose devices along an axis work on parts, though no factor is cut."""
    return {row.op for row in program.shard_maps if axis in row.manual_axes}


def _work(evidence: Evidence) -> Iterator[Finding]:
    """Connected regions of repeated ops, each at the place where its sharding is lost."""
    problem, written = evidence.problem, evidence.written
    program, mesh = problem.analysis.program, problem.mesh
    shardable = problem.analysis.names.shardable
    for axis, (name, size) in enumerate(zip(mesh.axes, mesh.sizes, strict=True)):
        if size == 1:
            continue
        repeated = duplicated_s(written, program, axis, shardable)
        factor = written.meaning.plan.op_factor[:, axis].copy()
        factor[list(_split_by_hand(program, name))] = 0
        for region in _regions(program, set(repeated), factor):
            time_s = sum(repeated.get(op, 0.0) for op in region)
            if time_s < LEAST_SHARE * written.time_s:
                continue
            yield _region_finding(evidence, axis, name, region=region, time_s=time_s)


def _regions(program: Program, repeated: set[int], factor: np.ndarray) -> list[list[int]]:
    """Connected components of ops that are whole on an axis, over the values between them."""
    import networkx

    whole = {
        op
        for op in program.ops()
        if factor[program.owner[op]] < 0
        and not all(program.value_is_constant[value] for value in program.results(op))
    }
    graph = networkx.Graph()
    graph.add_nodes_from(sorted(whole))
    for op in whole:
        makers = [
            int(program.value_op[value])
            for value in program.operands(op)
            if not program.value_is_constant[value]
        ]
        joined = whole.intersection([*makers, int(program.owner[op])])
        graph.add_edges_from((op, other) for other in joined)
    regions = networkx.connected_components(graph)
    return [sorted(ops) for ops in regions if not repeated.isdisjoint(ops)]


def _region_finding(
    evidence: Evidence, axis: int, name: str, *, region: Sequence[int], time_s: float
) -> Finding:
    program, written = evidence.problem.analysis.program, evidence.written
    dim_of = written.meaning.plan.value_dim[:, axis]
    inside = set(region)
    losing = [op for op in region if any(dim_of[value] >= 0 for value in program.operands(op))]
    forward = [op for op in losing if not evidence.roles.is_backward(op)]
    entering = [
        int(value)
        for op in region
        for value in program.operands(op)
        if value < program.n_arguments and dim_of[value] < 0
    ]
    repeated = {*evidence.roles.of_argument.values(), *evidence.roles.of_result.values()}
    own = [op for op in (*forward, *losing, *sorted(inside)) if op not in repeated]
    op = (own or sorted(inside))[0]
    lost = [int(v) for v in program.operands(op) if dim_of[v] >= 0]
    results = [int(value) for value in program.results(op)]
    subject_value = results[0] if results else lost[0]
    if not lost and entering:
        subject_value = max(entering, key=program.nbytes)
    if lost:
        kept = spec_text(written.specs[lost[0]])
        why = (
            f"{program.kind[op].removeprefix('sdy.')} reads {tensor_text(program, lost[0])}, which "
            f"is {kept}, and its result is {spec_text(written.specs[subject_value])}: {name} is "
            f"lost here, and {len(region)} ops after it are computed alike by all "
            f"{evidence.problem.mesh.size(name)} devices of {name}"
        )
    else:
        why = (
            f"nothing that these {len(region)} ops read is cut over {name}, so all "
            f"{evidence.problem.mesh.size(name)} devices of {name} compute the same"
        )
    return _finding_at(
        program,
        op,
        kind=Kind.REPLICATED_WORK,
        subject=tensor_text(program, subject_value),
        axes=(name,),
        time_s=time_s,
        bytes=float(program.nbytes(subject_value)),
        why=why,
        ops=tuple(region),
        values=tuple(dict.fromkeys([*results, *lost, *entering])),
    )


# -- collectives -----------------------------------------------------------------------------------
def _collectives(evidence: Evidence) -> Iterator[Finding]:
    problem, written = evidence.problem, evidence.written
    program = problem.analysis.program
    absent = _absent(evidence)
    number = {name: value for value, name in enumerate(program.value_name)}
    grouped: dict[tuple[object, ...], list[CollectiveRow]] = defaultdict(list)
    for row in written.cost.collectives:
        # Those inside a shard_map are written by hand: no annotation avoids them
        if row.value not in number or (row.op, row.value, row.kind) in absent:
            continue
        line = program.locations[int(program.location[row.op])].split(" < ")[0]
        key = (row.kind, row.axes, program.kind[row.op], row.local_bytes, line)
        grouped[key].append(row)
    for rows in grouped.values():
        time_s = sum(row.time_s for row in rows)
        if time_s < LEAST_SHARE * written.time_s:
            continue
        row = rows[0]
        value = number[row.value]
        in_loop = row.times > 1 and row.kind in _MOVES
        repeated = f", {row.times:g} times a step" if row.times > 1 else ""
        yield _finding_at(
            program,
            row.op,
            kind=Kind.REPEATED_COLLECTIVE if in_loop else Kind.AVOIDABLE_COLLECTIVE,
            subject=f"{row.kind} over {', '.join(row.axes)} of {tensor_text(program, value)}"
            f"{repeated}",
            axes=row.axes,
            time_s=time_s,
            bytes=sum(row.local_bytes * row.times for row in rows),
            count=len(rows),
            why=_because(evidence, row, value),
            ops=tuple(dict.fromkeys(row.op for row in rows)),
            values=tuple(dict.fromkeys(number[row.value] for row in rows)),
        )


def _absent(evidence: Evidence) -> set[tuple[int, str, str]]:
    """Priced collectives that the compiled program does not have: (op, value, kind)."""
    rows = evidence.diff.rows if evidence.diff is not None else ()
    return {
        (side.op, side.value, side.kind.replace("collective_permute", "permute"))
        for row in rows
        if row.status == MISSING and (side := row.predicted) is not None
    }


def _because(evidence: Evidence, row: CollectiveRow, value: int) -> str:
    program, plan = evidence.problem.analysis.program, evidence.written.meaning.plan
    kind, kept = program.kind[row.op].removeprefix("sdy."), plan.lowered.kept[value]
    if int(program.value_op[value]) != row.op:
        use = next((u for u in program.uses(row.op) if program.use_value[u] == value), None)
        read = plan.lowered.used[use] if use is not None else kept
        return f"it is kept as {spec_text(kept)} and {kind} reads it as {spec_text(read)}"
    axes = [plan.mesh.axes.index(axis) for axis in row.axes]
    summed = [
        f"a dim of size {program.factor_size[factor]} over {plan.mesh.axes[axis]}"
        for axis in axes
        if (factor := int(plan.op_factor[row.op, axis])) >= 0
        and factor not in program.def_names(value)
    ]
    if summed:
        return f"{kind} sums over {' and '.join(summed)}, so the devices' parts must be added"
    return f"{kind} leaves it in another sharding than {spec_text(kept)}, in which it is kept"


def _added(evidence: Evidence) -> Iterator[Finding]:
    """Collectives that only the compiler has."""
    problem, program = evidence.problem, evidence.problem.analysis.program
    rematerialised = (
        {remat.op for remat in evidence.compiled.rematerialised} if evidence.compiled else set()
    )
    priced_s = {
        (row.op, row.value, row.kind): row.time_s for row in evidence.written.cost.collectives
    }
    absent = _absent(evidence)

    def saved_s(ops: set[int]) -> float:
        return sum(priced_s.get(key, 0.0) for key in absent if key[0] in ops)

    grouped: dict[tuple[object, ...], list[DiffRow]] = defaultdict(list)
    for row in evidence.diff.rows if evidence.diff is not None else ():
        if row.status == EXTRA and row.compiled is not None and row.op not in rematerialised:
            grouped[row.compiled.kind, row.compiled.axes, row.where].append(row)
    for rows in grouped.values():
        ops = {row.op for row in rows}
        # What the compiler does in another way at the same op is not added
        time_s = sum(_side_s(problem, row) for row in rows) - saved_s(ops)
        row = rows[0]
        if time_s < LEAST_SHARE * evidence.written.time_s or not 0 <= row.op < program.n_ops:
            continue
        assert row.compiled is not None
        axes = problem.mesh.axes if row.compiled.axes is None else row.compiled.axes
        results = [int(value) for value in program.results(row.op)]
        yield _finding_at(
            program,
            row.op,
            kind=Kind.ADDED_COLLECTIVE,
            subject=f"{row.compiled.kind} over {', '.join(axes)} at {row.op_kind}",
            axes=tuple(axes),
            time_s=time_s,
            bytes=sum(row.compiled.total_bytes for row in rows if row.compiled),
            count=len(rows),
            why=row.reason or "the shardings do not need it; the compiler does not say why",
            ops=tuple(dict.fromkeys(row.op for row in rows)),
            values=tuple(results),
        )


def bytes_on_device(outcome: Outcome, value: int) -> float:
    """Bytes of a value on one device."""
    mesh = outcome.meaning.plan.mesh
    ways = math.prod(mesh.ways(dim) for dim in outcome.specs[value])
    return outcome.meaning.plan.program.nbytes(value) / ways
