"""The action space: what each action would shard, computed once, as flat arrays.

A *move* is a colour group with resolution bits. It chooses, for every op that has a name of the
group, the name to split, and for every value the dim. The bits settle all conflicts here, so that
taking an action in a search is a loop over two integer lists. An action is a move on one mesh axis.

Reference: TOAST section 4.2.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, did_you_mean
from toast_lab.ir import random_keys
from toast_lab.ragged import row_starts
from toast_lab.sharding.alike import Alike, Effects, find_alike
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.moves import Moves, by_axis
from toast_lab.sharding.sharding import Sharding

# A group that meets more resolution classes than this offers only uniform resolutions and those
# that differ from them in one bit
MAX_BITS = 5


#: For each conflict (smaller name first), its resolution class and the name that wins with bit 0.
Sides = dict[tuple[int, int], tuple[int, int]]


class Action(NamedTuple):
    """Shard ``group`` along mesh axis ``axis``, settling its conflicts by ``bits``."""

    group: int
    bits: int  #: bit i settles the i-th resolution class that the group meets
    axis: int


class Fixed(NamedTuple):
    """What pins fix in every state of a space, and the pins themselves (see ``pins``)."""

    op_factor: np.ndarray  #: [O, A] int32 name along which the op is split on the axis, -1: open
    value_dim: np.ndarray  #: [V, A] int8 dim of the value that the axis cuts, -1: open
    actions: tuple[Action, ...]  #: the pinned actions
    texts: tuple[str, ...]  #: all pins and prohibitions, in words


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """The ``M`` moves of a program on a mesh, and the ops and values that each changes."""

    analysis: Analysis
    mesh: Mesh
    group: np.ndarray  #: [M] colour group
    bits: np.ndarray  #: [M] resolution bits of the group's conflicts
    n_names: np.ndarray  #: [M] names of the group with size above 1
    op_effects: Effects  #: effects of moves on ops, where pins allow them
    value_effects: Effects  #: effects of moves on values, where pins allow them
    fixed: Fixed | None = None  #: None: nothing was pinned or forbidden

    def __repr__(self) -> str:
        return f"<Space of {self.analysis.program.name} on {self.mesh}: {self.n_moves} moves>"

    @property
    def n_moves(self) -> int:
        """Number of moves."""
        return len(self.group)

    @functools.cached_property
    def alike(self) -> Alike:
        """Classes of ops and values with equal states, and the moves on one member of each."""
        return find_alike(
            self.analysis.program, self.op_effects, self.value_effects, *self._start_sharding
        )

    @property
    def pinned_actions(self) -> tuple[Action, ...]:
        """The actions that were pinned."""
        return () if self.fixed is None else self.fixed.actions

    @property
    def _start_sharding(self) -> Sharding:
        """The sharding that every state starts from."""
        if self.fixed is None:
            return Sharding.whole(self.analysis.program, len(self.mesh.axes))
        return Sharding(self.fixed.op_factor, self.fixed.value_dim)

    @functools.cached_property
    def first_name(self) -> np.ndarray:
        """[O+1] first name of each op, in a writeable array for kernels."""
        return np.array(self.analysis.program.factor_ptr, np.int32)

    @functools.cached_property
    def moves(self) -> Moves:
        """The moves on one member of each class, axis by axis, as kernels read them."""
        ops, values = self.alike.op_effects, self.alike.value_effects
        op_span, op_entry = by_axis(ops, len(self.mesh.axes))
        value_span, value_entry = by_axis(values, len(self.mesh.axes))
        start_ops, start_values = self.start
        return Moves(
            axis_size=self.mesh.array(),
            op_span=op_span,
            op=ops.target[op_entry],
            move_factor=ops.cut[op_entry],
            factor_size=self.analysis.names.size,
            value_span=value_span,
            value=values.target[value_entry],
            move_dim=values.cut[value_entry],
            move_dim_size=values.size[value_entry],
            n_names=self.n_names,
            start_ops=start_ops,
            start_values=start_values,
        )

    @functools.cached_property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """The state that every search starts from, as one row for each class.

        Gives ([K, A] names of the classes' first ops, [L, A] dims of the values).
        """
        alike, (op_factor, value_dim) = self.alike, self._start_sharding
        return op_factor[alike.ops.first], value_dim[alike.values.first]

    def action(self, move: int, axis: int) -> Action:
        """The action that takes a move on a mesh axis, both given by number."""
        return Action(int(self.group[move]), int(self.bits[move]), axis)

    def move_of(self, action: Action) -> int:
        """The move with the action's group and bits. Raises InvalidPlan if there is none."""
        rows = np.flatnonzero((self.group == action.group) & (self.bits == action.bits))
        if not len(rows):
            name = self.analysis.group_name[action.group]
            bit_count = len(self.analysis.groups[action.group].resolutions)
            if not self.analysis.groups[action.group].shardable:
                raise InvalidPlan(
                    f"{name} cannot be sharded: none of its names is a pass-through or reduction "
                    "factor of size above 1" + self._of_keys(action.group)
                )
            raise InvalidPlan(
                f"{name} has {bit_count} independent resolutions, so its bits run from 0 to "
                f"{2**bit_count - 1}, got {action.bits}"
            )
        return int(rows[0])

    def _of_keys(self, group: int) -> str:
        """The addition to a message if dims of the group hold the words of random keys."""
        program = self.analysis.program
        in_group = self.analysis.group[self.analysis.colour[program.def_dim_factor]] == group
        rows = np.flatnonzero(in_group & program.hidden)
        if not len(rows):
            return ""
        value = int(np.searchsorted(program.shape_ptr, rows[0], side="right")) - 1
        dim = int(rows[0] - program.shape_ptr[value])
        return f". {program.value_name[value]}: {random_keys.offence(program, value, dim)}"

    def text(self, action: Action) -> str:
        """An action as ``sequence@1->model``, without bits if there is nothing to resolve."""
        return action_text(self.analysis, self.mesh, action)


def action_text(analysis: Analysis, mesh: Mesh, action: Action, *, every_side: bool = False) -> str:
    """An action as ``sequence@1->model``, without bits if it stands for every side or has none."""
    group = analysis.groups[action.group]
    bit_count = len(group.resolutions)
    side = f"@{action.bits:0{bit_count}b}" if bit_count and not every_side else ""
    return f"{group.name}{side}->{mesh.axes[action.axis]}"


def renaming(earlier: Analysis, analysis: Analysis) -> Callable[[str], str]:
    """A function that brings texts up to date after colours of a program were renamed.

    Args:
        earlier: the analysis whose names of colours the actions in the texts have.
        analysis: one of the same program, whose names they shall have.
    """
    names = dict(zip(earlier.group_name, analysis.group_name, strict=True))
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return lambda text: text
    pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?=(@[01]+)?->)")
    return lambda text: pattern.sub(lambda match: names[match[1]], text)


def parse_action(analysis: Analysis, mesh: Mesh, request: object) -> Action:
    """Read an Action from a tuple or from text.

    Accepts ``("batch", "data")``, ``("sequence", "model", 1)`` and ``"sequence@1->model"``.

    Raises InvalidPlan or ToastError, with close matches of the names in question.
    """
    if isinstance(request, Action):
        return request
    if isinstance(request, str):
        colour_text, arrow, axis = request.replace(":", "->").partition("->")
        name, _, bits = colour_text.partition("@")
        if not arrow:
            raise InvalidPlan(
                f'cannot read the action {request!r}; write "colour->axis" or "colour@bits->axis"'
            )
        parts: tuple = (name.strip(), axis.strip(), bits.strip() or 0)
    else:
        parts = tuple(request)  # type: ignore[arg-type]
        if len(parts) == 2:
            parts = (*parts, 0)
        if len(parts) != 3:
            raise InvalidPlan(
                f'cannot read the action {request!r}; give ("colour", "axis") or '
                '("colour", "axis", bits)'
            )
    colour, axis, bits = parts
    if isinstance(bits, str) and not re.fullmatch("[01]+", bits):
        raise InvalidPlan(
            f"resolution bits of {request!r} must be 0s and 1s, one for each resolution, not "
            f"{bits!r}"
        )
    if axis not in mesh.axes:
        raise InvalidPlan(
            f"no mesh axis is called {axis!r}{did_you_mean(str(axis), mesh.axes)}; axes: "
            f"{', '.join(mesh.axes)}"
        )
    return Action(
        analysis.group_index(str(colour)),
        int(bits, 2) if isinstance(bits, str) else int(bits),
        mesh.axes.index(axis),
    )


class GroupChoices(NamedTuple):
    """The ops, or the values, of each colour group, with the names that a move can choose.

    They are ordered by group, then as in the program. An op or value that has names of several
    groups is listed in each of them.
    """

    group_ptr: np.ndarray  #: [groups+1] row starts into item
    item: np.ndarray  #: op or value
    first: np.ndarray  #: its first candidate, as a row of ``name`` and ``dim``
    options: np.ndarray  #: its number of candidates, which are consecutive rows
    name: np.ndarray  #: name of each candidate
    dim: np.ndarray  #: dim of each candidate, if it is of a value


def build_space(analysis: Analysis, mesh: Mesh) -> Space:
    """Compute all moves of an analysed program on a mesh."""
    program, names = analysis.program, analysis.names
    sides = _sides(analysis)
    ops_of, values_of = _op_choices(analysis), _value_choices(analysis)
    group_row: list[int] = []
    bits_row: list[int] = []
    ops_of_move: list[np.ndarray] = []
    names_of_move: list[np.ndarray] = []
    values_of_move: list[np.ndarray] = []
    dims_of_move: list[np.ndarray] = []
    for group in analysis.groups:
        if not group.shardable:
            continue
        n_bits = len(group.resolutions)
        for bits in _resolutions(n_bits):
            bit_of = {
                resolution: bits >> (n_bits - 1 - position) & 1
                for position, resolution in enumerate(group.resolutions)
            }
            op, picked = _choose(ops_of, group.index, sides, bit_of)
            chosen = ops_of.name[picked]
            may_split = names.shardable[chosen]
            ops_of_move.append(op[may_split])
            names_of_move.append(chosen[may_split])
            value, picked = _choose(values_of, group.index, sides, bit_of)
            values_of_move.append(value)
            dims_of_move.append(values_of.dim[picked])
            group_row.append(group.index)
            bits_row.append(bits)
    op, name = _joined(ops_of_move), _joined(names_of_move)
    value, dim = _joined(values_of_move), _joined(dims_of_move)
    every_axis = np.uint8(2 ** len(mesh.axes) - 1)
    return Space(
        analysis=analysis,
        mesh=mesh,
        group=np.asarray(group_row, dtype=np.int32),
        bits=np.asarray(bits_row, dtype=np.int32),
        n_names=np.asarray([analysis.groups[group].n_names for group in group_row], np.int32),
        op_effects=Effects(
            ptr=row_starts([len(row) for row in ops_of_move]).astype(np.int32),
            target=op.astype(np.int32),
            cut=name.astype(np.int32),
            size=program.factor_size[name],
            axes=np.full(len(op), every_axis),
        ),
        value_effects=Effects(
            ptr=row_starts([len(row) for row in values_of_move]).astype(np.int32),
            target=value.astype(np.int32),
            cut=dim.astype(np.int8),
            size=program.shape[program.shape_ptr[value] + dim],
            axes=np.full(len(value), every_axis),
        ),
    )


def _joined(rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)


def _sides(analysis: Analysis) -> Sides:
    sides = {}
    for conflict in analysis.conflicts:
        compatibility_set = analysis.compatibility_sets[conflict.set]
        side0, side1 = conflict.sides
        sides[min(side0, side1), max(side0, side1)] = (
            compatibility_set.resolution,
            side1 if compatibility_set.flipped else side0,
        )
    return sides


def _op_choices(analysis: Analysis) -> GroupChoices:
    name = np.flatnonzero(analysis.names.size > 1)
    return _choices(analysis, analysis.names.op[name], name, np.zeros_like(name))


def _value_choices(analysis: Analysis) -> GroupChoices:
    program = analysis.program
    value = program.dim_value
    dim = np.arange(len(value)) - program.shape_ptr[value]
    kept = ~program.value_is_constant[value] & (program.shape > 1) & ~program.hidden
    return _choices(analysis, value[kept], program.def_dim_factor[kept], dim[kept])


def _choices(
    analysis: Analysis, item: np.ndarray, name: np.ndarray, dim: np.ndarray
) -> GroupChoices:
    """Sort (item, name, dim) rows in program order by the group of the name."""
    group = analysis.group[analysis.colour[name]].astype(np.int64)
    order = np.argsort(group, kind="stable")
    group = group[order]
    item = item[order].astype(np.int64)
    name = name[order].astype(np.int64)
    dim = dim[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (group[1:] != group[:-1]) | (item[1:] != item[:-1])
    first = np.flatnonzero(is_first)
    group_ptr = np.searchsorted(group[first], np.arange(len(analysis.groups) + 1))
    return GroupChoices(
        group_ptr=group_ptr,
        item=item[first],
        first=first,
        options=np.diff([*first, len(order)]),
        name=name,
        dim=dim,
    )


def _choose(
    choices: GroupChoices,
    group: int,
    sides: Sides,
    bit_of: dict[int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """The ops or values of a group and, for each, the row of the candidate that the bits choose."""
    rows = slice(choices.group_ptr[group], choices.group_ptr[group + 1])
    picked = choices.first[rows].copy()
    options = choices.options[rows]
    for row in np.flatnonzero(options > 1).tolist():
        candidates = choices.name[picked[row] : picked[row] + options[row]].tolist()
        picked[row] += candidates.index(_pick(candidates, sides, bit_of))
    return choices.item[rows], picked


def _pick(candidates: list[int], sides: Sides, bit_of: dict[int, int]) -> int:
    """The candidate that loses no conflict; the first one if all of them lose one."""
    for name in candidates:
        if all(_wins(name, other, sides, bit_of) for other in candidates if other != name):
            return name
    return candidates[0]


def _wins(name: int, other: int, sides: Sides, bit_of: dict[int, int]) -> bool:
    class_and_winner = sides.get((min(name, other), max(name, other)))
    if class_and_winner is None:
        return name < other
    resolution, winner0 = class_and_winner
    return (name == winner0) == (bit_of.get(resolution, 0) == 0)


def _resolutions(bit_count: int) -> list[int]:
    if bit_count <= MAX_BITS:
        return list(range(2**bit_count))
    all_ones = 2**bit_count - 1
    return sorted(
        {
            0,
            all_ones,
            *(1 << bit for bit in range(bit_count)),
            *(all_ones ^ (1 << bit) for bit in range(bit_count)),
        }
    )
