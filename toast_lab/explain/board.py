"""The conflict board: every ambiguous choice of a program, and its costs on each mesh axis.

A row is one resolution: the compatibility sets that one bit settles, one in each of the repeated
layers. Its options are the two sides on each axis, priced alone: the colour sharded on that axis
with this bit, everything else left whole. That much is known before any search; in combination with
other actions the costs differ (``tl.search`` prices those).

Reference: TOAST sections 3.4 to 3.6. Start reading at ``conflicts``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.colouring import CompatibilitySet
from toast_lab.cost.problem import Pricer, Problem
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS
from toast_lab.text import as_html, bytes_text, line_text, table

SHOWN_ROWS = 120  #: maximum number of rows that ``str()`` writes
SHOW_ALL_HINT = " rows: print(board.text(None)) shows all"


class ConflictTensor(NamedTuple):
    """A place where two dims of one tensor have one colour."""

    value: str  #: name of the value
    shape: tuple[int, ...]
    dims: tuple[int, int]  #: side 0 shards the first of these dims, side 1 the second
    where: str  #: source line of the op that defines the value, or of the use in conflict


class PricedSide(NamedTuple):
    """One side of one row on one mesh axis, priced alone."""

    action: str  #: as ``Plan.from_actions`` takes it
    axis: str
    bit: int  #: the side that is sharded
    possible: bool  #: False: sizes do not divide, or it changes nothing
    time_s: float  #: of the step
    peak_bytes: float  #: on one device
    fits: bool
    collectives: dict[str, int]  #: by kind
    comm_bytes: float  #: local bytes of the collectives, summed


class Dispute(NamedTuple):
    """One resolution, with its tensors and its options."""

    colour: str
    size: int  #: of the largest dim of the colour
    sets: tuple[int, ...]  #: compatibility sets that the bit settles, one per repeated layer
    tensors: tuple[ConflictTensor, ...]  #: of the first of these sets
    options: tuple[PricedSide, ...]

    @property
    def cheapest(self) -> PricedSide | None:
        """The possible option of least time, those that fit first; None if none is possible."""
        possible = (option for option in self.options if option.possible)
        return min(possible, key=lambda option: (not option.fits, option.time_s), default=None)


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
                **dispute._asdict(),
                "tensors": [tensor._asdict() for tensor in dispute.tensors],
                "options": [option._asdict() for option in dispute.options],
            }
            for dispute in self.disputes
        ]
        return {
            "unsharded_time_s": self.unsharded_time_s,
            "unsharded_peak_bytes": self.unsharded_peak_bytes,
            "conflicts": rows,
        }

    def __repr__(self) -> str:
        return f"<Board of {len(self.disputes)} conflicts, print() shows them>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int | None = SHOWN_ROWS) -> str:
        """A table of at most ``limit`` rows: conflicts in program order, each with its choices."""
        baseline = (
            f"unsharded: {self.unsharded_time_s * 1e3:.3f} ms, "
            f"{bytes_text(self.unsharded_peak_bytes)}"
        )
        if not self.disputes:
            return (
                f"{baseline}\nThis program has no conflicts: no tensor has two dims that would be "
                "sharded alike."
            )
        rows = []
        for dispute in self.disputes:
            tensor = named_tensor(dispute.tensors)
            others_text = (
                f" and {len(dispute.tensors) - 1} more" if len(dispute.tensors) > 1 else ""
            )
            layers = f", {len(dispute.sets)} alike" if len(dispute.sets) > 1 else ""
            label = f"{tensor.value} {list(tensor.shape)}{others_text}{layers}"
            blank = ("",) * 4
            rows.append((dispute.colour, label, line_text(tensor.where), *blank))
            for option in dispute.options:
                row = ("", f"  dim {tensor.dims[option.bit]} on {option.axis}", "")
                if not option.possible:
                    rows.append((*row, "not possible", *blank[1:]))
                    continue
                sent = ", ".join(f"{count} {kind}" for kind, count in option.collectives.items())
                time = f"{option.time_s * 1e3:.3f} ms"
                size = bytes_text(option.peak_bytes) + ("" if option.fits else ", too large")
                rows.append((*row, time, size, sent or "nothing sent", option.action))
        header = ("colour", "tensor or choice", "line", "time", "memory", "sent", "action")
        return (
            baseline
            + "\n"
            + table(header, rows, len(rows) if limit is None else limit, SHOW_ALL_HINT)
        )


def conflicts(problem: Problem) -> Board:
    """List every resolution of a problem, with the predicted cost of its sides on each axis.

    Axes of size 1 are left out. Reference: TOAST sections 3.4 to 3.6.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> board = tl.conflicts(problem)
        >>> len(board.disputes), board.disputes[0].colour
        (1, 'S')
        >>> [option.action for option in board.disputes[0].options]
        ['S@0->data', 'S@1->data']
        >>> board.disputes[0].cheapest.axis
        'data'
    """
    problem = problem.unpinned  # each action is priced by itself
    analysis, pricer = problem.analysis, problem.pricer()
    base_time_s, base_peak_bytes = problem.baseline
    members: dict[int, list[int]] = defaultdict(list)
    for compatibility_set in analysis.compatibility_sets:
        members[compatibility_set.resolution].append(compatibility_set.index)
    disputes = []
    for resolution, sets in members.items():
        first_set = analysis.compatibility_sets[sets[0]]
        group = analysis.groups[analysis.group[first_set.colour]]
        options = tuple(
            _option(pricer, group.index, group.resolutions.index(resolution), axis=axis, bit=bit)
            for axis, size in enumerate(problem.mesh.sizes)
            if size > 1
            for bit in (0, 1)
        )
        tensors = conflict_tensors(analysis, first_set)
        disputes.append(Dispute(group.name, group.size, tuple(sets), tensors, options=options))
    return Board(tuple(disputes), base_time_s, base_peak_bytes)


def conflict_tensors(analysis: Analysis, settled: CompatibilitySet) -> tuple[ConflictTensor, ...]:
    """The tensors of a compatibility set, each once."""
    tensors = dict.fromkeys(
        tensor
        for conflict in settled.conflicts
        for tensor in _tensors(analysis, conflict, settled.flipped)
    )
    return tuple(tensors)


def named_tensor(tensors: Sequence[ConflictTensor]) -> ConflictTensor:
    """One to call the others by: the first with a name of its own, if any has one."""
    named = (tensor for tensor in tensors if not tensor.value.startswith("%"))
    return next(named, tensors[0])


def _tensors(analysis: Analysis, conflict: int, flipped: bool) -> list[ConflictTensor]:
    """The tensors of a conflict; dims are in the order of the sides of its resolution class."""
    program, sides = analysis.program, analysis.conflicts[conflict].sides
    tensors = []
    for place in analysis.conflicts[conflict].places:
        names = program.def_names(place.value) if place.use < 0 else program.use_names(place.use)
        dims = (place.first_dim, place.second_dim)
        if names[place.first_dim] != sides[flipped]:
            dims = (place.second_dim, place.first_dim)
        where = program.where(place.op(program))
        tensors.append(
            ConflictTensor(program.value_name[place.value], program.dims(place.value), dims, where)
        )
    return tensors


def _option(pricer: Pricer, group: int, position: int, *, axis: int, bit: int) -> PricedSide:
    """Price side ``bit`` of a group's resolution at ``position``, with other bits 0 if possible."""
    problem = pricer.problem
    space = problem.space
    mask = 1 << (len(problem.analysis.groups[group].resolutions) - 1 - position)
    allowed_bits = [
        bits for bits in space.bits[space.group == group].tolist() if bits & mask == mask * bit
    ]
    action = Action(group, min(allowed_bits, key=lambda bits: (bits.bit_count(), bits)), axis)
    state = State(space)
    changed = state.apply(action)
    totals = pricer.totals(state.op_factor, state.value_dim)
    kinds = totals.steps.kind[: totals.n_steps]
    sends = (kinds != COMPUTE) & (kinds != SLICE)
    counts = Counter(STEP_KINDS[kind] for kind in np.sort(kinds[sends]).tolist())
    return PricedSide(
        action=space.text(action),
        axis=problem.mesh.axes[axis],
        bit=bit,
        possible=bool(changed),
        time_s=totals.time_s,
        peak_bytes=totals.peak_bytes,
        fits=totals.peak_bytes <= problem.memory_limit_bytes,
        collectives=dict(counts),
        comm_bytes=float(totals.each.bytes[: totals.n_steps][sends].sum()),
    )
