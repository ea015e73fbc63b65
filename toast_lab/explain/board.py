"""The conflict board.

Every ambiguous choice of a program, and what each way to settle it costs on each mesh axis.

A row is one resolution: the compatibility sets that one bit settles, which for repeated layers is
one set in each.  Its options are the two sides on each axis, priced alone: the colour sharded on
that axis with this bit, everything else left whole.  That is what can be known before any search;
in company, costs are others (``tl.search`` looks at those).

Reference: TOAST sections 3.4 to 3.6.  Start reading at ``conflicts``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from toast_lab import text
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Pricer, Problem
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS

SHOWN = 120  #: rows that ``str()`` writes
REST = " rows: print(board.text(None)) shows all"


class Tensor(NamedTuple):
    """A place where two dims of one tensor have one colour."""

    value: str  #: name of the value
    shape: tuple[int, ...]
    dims: tuple[int, int]  #: side 0 shards the first of these dims, side 1 the second
    where: str  #: source line of the op that makes the value, or that reads it so


class Option(NamedTuple):
    """One side of one row on one mesh axis, priced alone."""

    action: str  #: as ``Plan.from_actions`` takes it
    axis: str
    bit: int  #: the side that is sharded
    possible: bool  #: False: sizes do not divide, or the two sides come to the same
    time_s: float  #: of the step
    peak_bytes: float  #: on one device
    fits: bool
    collectives: dict[str, int]  #: by kind
    comm_bytes: float  #: bytes that one device holds of what is sent, summed over collectives


class Dispute(NamedTuple):
    """One resolution."""

    colour: str
    size: int  #: of the largest dim of the colour
    sets: tuple[int, ...]  #: compatibility sets that the bit settles, of repeated layers one each
    tensors: tuple[Tensor, ...]  #: of the first of these sets
    options: tuple[Option, ...]

    @property
    def cheapest(self) -> Option | None:
        """The possible option of least C(s) there is, in the order: fits, time."""
        possible = [o for o in self.options if o.possible]
        return min(possible, key=lambda o: (not o.fits, o.time_s)) if possible else None


@dataclasses.dataclass(frozen=True)
class Board:
    """All resolutions of a program; ``str()`` is a table."""

    disputes: tuple[Dispute, ...]
    unsharded_time_s: float
    unsharded_peak_bytes: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rows = [
            {
                **d._asdict(),
                "tensors": [t._asdict() for t in d.tensors],
                "options": [o._asdict() for o in d.options],
            }
            for d in self.disputes
        ]
        return {
            "unsharded_time_s": self.unsharded_time_s,
            "unsharded_peak_bytes": self.unsharded_peak_bytes,
            "conflicts": rows,
        }

    def __repr__(self) -> str:
        return f"<Board of {len(self.disputes)} conflicts, print() shows them>"

    def _repr_html_(self) -> str:
        return text.as_html(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int | None = SHOWN) -> str:
        """At most ``limit`` rows of a table.

        Conflicts in the order of the program, each with its choices.
        """
        if not self.disputes:
            return (
                "This program has no conflicts: no tensor has two dims that would be sharded alike."
            )
        rows = []
        for d in self.disputes:
            # One with a name, if any
            t = next((t for t in d.tensors if not t.value.startswith("%")), d.tensors[0])
            more = f" and {len(d.tensors) - 1} more" if len(d.tensors) > 1 else ""
            layers = f", {len(d.sets)} alike" if len(d.sets) > 1 else ""
            rows.append(
                (
                    d.colour,
                    f"{t.value} {list(t.shape)}{more}{layers}",
                    text.line_text(t.where),
                    "",
                    "",
                    "",
                    "",
                )
            )
            for o in d.options:
                side = f"dim {t.dims[o.bit]}"
                if not o.possible:
                    rows.append(("", f"  {side} on {o.axis}", "", "not possible", "", "", ""))
                    continue
                sent = ", ".join(f"{n} {kind}" for kind, n in o.collectives.items()) or (
                    "nothing sent"
                )
                size = text.bytes_text(o.peak_bytes) + ("" if o.fits else ", too large")
                rows.append(
                    (
                        "",
                        f"  {side} on {o.axis}",
                        "",
                        f"{o.time_s * 1e3:.3f} ms",
                        size,
                        sent,
                        o.action,
                    )
                )
        before = (
            f"unsharded: {self.unsharded_time_s * 1e3:.3f} ms, "
            f"{text.bytes_text(self.unsharded_peak_bytes)}"
        )
        header = ("colour", "tensor or choice", "line", "time", "memory", "sent", "action")
        return before + "\n" + text.table(header, rows, len(rows) if limit is None else limit, REST)


def conflicts(problem: Problem) -> Board:
    """Every resolution of a problem with predicted time and memory, before any search.

    The predictions are those of its sides, on each axis.

    Axes of size 1 are left out.  Reference: TOAST sections 3.4 to 3.6.
    """
    problem = problem.unpinned  # each action is taken by itself
    analysis, pricer = problem.analysis, problem.pricer()
    base_time_s, base_peak_bytes = problem.baseline
    members: dict[int, list[int]] = {}
    for s in analysis.compatibility_sets:
        members.setdefault(s.resolution, []).append(s.index)
    disputes = []
    for resolution, sets in members.items():
        first = analysis.compatibility_sets[sets[0]]
        group = analysis.groups[int(analysis.group[first.colour])]
        options = tuple(
            _option(problem, pricer, group.index, group.resolutions.index(resolution), axis, bit)
            for axis, size in enumerate(problem.mesh.sizes)
            if size > 1
            for bit in (0, 1)
        )
        tensors = tuple(
            tensor for k in first.conflicts for tensor in _tensors(analysis, k, first.flipped)
        )
        disputes.append(
            Dispute(group.name, group.size, tuple(sets), tuple(dict.fromkeys(tensors)), options)
        )
    return Board(tuple(disputes), base_time_s, base_peak_bytes)


def _tensors(analysis: Analysis, conflict: int, flipped: bool) -> list[Tensor]:
    """Places of a conflict; dims in the order of the sides of its resolution class."""
    program, names = analysis.program, analysis.conflicts[conflict].sides
    if flipped:
        names = (names[1], names[0])
    found = []
    for place in analysis.conflicts[conflict].places:
        mine = program.def_names(place.value) if place.use < 0 else program.use_names(place.use)
        dims = (place.first_dim, place.second_dim)
        if mine[dims[0]] == names[1]:
            dims = (dims[1], dims[0])
        op = int(program.value_op[place.value]) if place.use < 0 else _user(analysis, place.use)
        found.append(
            Tensor(
                program.value_name[place.value], program.dims(place.value), dims, program.where(op)
            )
        )
    return found


def _user(analysis: Analysis, use: int) -> int:
    return int(np.searchsorted(analysis.program.use_ptr, use, side="right")) - 1


def _option(
    problem: Problem, pricer: Pricer, group: int, place: int, axis: int, bit: int
) -> Option:
    """One side of a resolution of a group on an axis.

    That is side ``bit`` of the resolution at ``place``, the group's other bits being 0 if they can.
    """
    space, n = problem.space, len(problem.analysis.groups[group].resolutions)
    offered = [
        int(b) for b in space.bits[space.group == group] if int(b) >> (n - 1 - place) & 1 == bit
    ]
    bits = min(offered, key=lambda b: ((b & ~(1 << (n - 1 - place))).bit_count(), b))
    action = Action(group, bits, axis)
    state = State(space)
    changed = state.apply(action)
    totals = pricer.totals(state.op_factor, state.value_dim)
    kinds, sent = totals.steps.kind[: totals.n_steps], 0.0
    counts: dict[str, int] = {}
    for kind in np.unique(kinds).tolist():
        if kind in (COMPUTE, SLICE):
            continue
        of_kind = kinds == kind
        counts[STEP_KINDS[kind]] = int(of_kind.sum())
        sent += float(totals.each.bytes[: totals.n_steps][of_kind].sum())
    fits = totals.peak_bytes <= problem.memory_limit_bytes
    return Option(
        space.text(action),
        problem.mesh.axes[axis],
        bit,
        bool(changed),
        totals.time_s,
        totals.peak_bytes,
        fits,
        counts,
        sent,
    )
