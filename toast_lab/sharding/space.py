"""The action space: what each action would shard, worked out once, as flat arrays.

A *move* is (colour group, resolution bits): for every op that has a name of the group, the name that the
move would split, and for every value the dim.  Conflicts are settled here, by the bits, so that taking an
action in a search is a loop over two integer lists.  An action is a move on one mesh axis.

Reference: TOAST section 4.2.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, did_you_mean
from toast_lab.sharding.mesh import Mesh

MAX_BITS = 5  # beyond this many independent sets in one group only uniform and one-bit-off resolutions are offered


class Action(NamedTuple):
    """Shard ``group`` along mesh axis ``axis``, settling its conflicts by ``bits``."""

    group: int
    bits: int  #: bit i settles the i-th resolution class that the group meets
    axis: int


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Moves (``M``) and what they touch."""

    analysis: Analysis
    mesh: Mesh
    group: np.ndarray  #: [M]
    bits: np.ndarray  #: [M]
    op_ptr: np.ndarray  #: [M+1] row starts into op / op_name
    op: np.ndarray  #: op that the move would split ...
    op_name: np.ndarray  #: ... along this name
    value_ptr: np.ndarray  #: [M+1]
    value: np.ndarray  #: value that the move would shard ...
    value_dim: np.ndarray  #: ... along this dim
    value_dim_size: np.ndarray  #: size of that dim
    n_names: np.ndarray  #: [M] names of the group with size above 1

    @property
    def n_moves(self) -> int:
        """Number of moves."""
        return len(self.group)

    def move_of(self, action: Action) -> int:
        """Row of the action's (group, bits).  Raises InvalidPlan."""
        rows = np.flatnonzero((self.group == action.group) & (self.bits == action.bits))
        if not len(rows):
            name = self.analysis.group_name[action.group]
            n = len(self.analysis.groups[action.group].resolutions)
            if not self.analysis.groups[action.group].shardable:
                raise InvalidPlan(f"{name} cannot be sharded: none of its names is a pass-through or reduction factor of size above 1")
            raise InvalidPlan(f"{name} has {n} independent resolutions, so its bits run from 0 to {2**n - 1}, got {action.bits}")
        return int(rows[0])

    def text(self, action: Action) -> str:
        """``sequence@1->model``; the resolution is left out where there is nothing to resolve."""
        group = self.analysis.groups[action.group]
        n = len(group.resolutions)
        suffix = f"@{action.bits:0{n}b}" if n else ""
        return f"{group.name}{suffix}->{self.mesh.axes[action.axis]}"


def parse_action(analysis: Analysis, mesh: Mesh, item: object) -> Action:
    """An Action from ``("batch", "data")``, ``("sequence", "model", 1)`` or ``"sequence@1->model"``.

    Raises InvalidPlan or ToastError, naming close matches.
    """
    if isinstance(item, Action):
        return item
    if isinstance(item, str):
        left, sep, axis = item.replace(":", "->").partition("->")
        name, _, bits = left.partition("@")
        if not sep:
            raise InvalidPlan(f'cannot read the action {item!r}; write "colour->axis" or "colour@bits->axis"')
        parts: tuple = (name.strip(), axis.strip(), int(bits, 2) if bits else 0)
    else:
        parts = tuple(item)  # type: ignore[arg-type]
        if len(parts) == 2:
            parts = (*parts, 0)
        if len(parts) != 3:
            raise InvalidPlan(f'cannot read the action {item!r}; give ("colour", "axis") or ("colour", "axis", bits)')
    colour, axis, bits = parts
    if axis not in mesh.axes:
        raise InvalidPlan(f"no mesh axis is called {axis!r}{did_you_mean(str(axis), mesh.axes)}; axes: {', '.join(mesh.axes)}")
    return Action(analysis.group_index(str(colour)), int(bits, 2) if isinstance(bits, str) else int(bits), mesh.axes.index(axis))


def build_space(analysis: Analysis, mesh: Mesh) -> Space:
    """Work out all moves of an analysed program."""
    program, names = analysis.program, analysis.dims
    group_of_name = analysis.group[analysis.colour]
    real = names.size > 1
    sides: dict[tuple[int, int], tuple[int, int]] = {}  # (a, b) a<b -> (class, name that wins at class bit 0)
    for conflict in analysis.conflicts:
        s = analysis.compatibility_sets[conflict.set]
        side0, side1 = conflict.sides
        winner0 = side1 if s.flipped else side0
        sides[min(side0, side1), max(side0, side1)] = (s.resolution, winner0)

    ops_of: list[list[tuple[int, list[int]]]] = [[] for _ in analysis.groups]
    for op in range(program.n_ops):
        rows: dict[int, list[int]] = {}
        for name in program.factors(op):
            if real[name]:
                rows.setdefault(int(group_of_name[name]), []).append(name)
        for g, candidates in rows.items():
            ops_of[g].append((op, candidates))
    values_of: list[list[tuple[int, list[tuple[int, int]]]]] = [[] for _ in analysis.groups]
    for value in range(program.n_values):
        if program.value_is_constant[value]:
            continue
        dims: dict[int, list[tuple[int, int]]] = {}
        for d, name in enumerate(program.def_names(value)):
            if program.shape[program.shape_ptr[value] + d] > 1:
                dims.setdefault(int(group_of_name[name]), []).append((name, d))
        for g, candidates_d in dims.items():
            values_of[g].append((value, candidates_d))

    def pick(candidates: list[int], bit_of: dict[int, int]) -> int:
        """The candidate that loses no conflict; the first one if each loses some."""
        for a in candidates:
            if all(_wins(a, b, sides, bit_of) for b in candidates if b != a):
                return a
        return candidates[0]

    columns: dict[str, list] = {k: [] for k in ("group", "bits", "op_ptr", "op", "op_name", "value_ptr", "value", "value_dim", "size", "n_names")}
    columns["op_ptr"].append(0)
    columns["value_ptr"].append(0)
    for g in analysis.groups:
        if not g.shardable:
            continue
        for bits in _resolutions(len(g.resolutions)):
            bit_of = {cls: bits >> (len(g.resolutions) - 1 - i) & 1 for i, cls in enumerate(g.resolutions)}
            for op, candidates in ops_of[g.index]:
                chosen = pick(candidates, bit_of) if len(candidates) > 1 else candidates[0]
                if names.shardable[chosen]:
                    columns["op"].append(op)
                    columns["op_name"].append(chosen)
            for value, pairs in values_of[g.index]:
                chosen = pick([n for n, _ in pairs], bit_of) if len(pairs) > 1 else pairs[0][0]
                dim = next(d for n, d in pairs if n == chosen)
                columns["value"].append(value)
                columns["value_dim"].append(dim)
                columns["size"].append(int(program.shape[program.shape_ptr[value] + dim]))
            columns["group"].append(g.index)
            columns["bits"].append(bits)
            columns["n_names"].append(g.n_names)
            columns["op_ptr"].append(len(columns["op"]))
            columns["value_ptr"].append(len(columns["value"]))

    def array(key: str, dtype: type = np.int32) -> np.ndarray:
        return np.asarray(columns[key], dtype=dtype)

    return Space(
        analysis, mesh, array("group"), array("bits"), array("op_ptr"), array("op"), array("op_name"),
        array("value_ptr"), array("value"), array("value_dim", np.int8), array("size", np.int64), array("n_names"),
    )  # fmt: skip


def _wins(a: int, b: int, sides: dict[tuple[int, int], tuple[int, int]], bit_of: dict[int, int]) -> bool:
    entry = sides.get((min(a, b), max(a, b)))
    if entry is None:
        return a < b
    cls, winner0 = entry
    return (a == winner0) == (bit_of.get(cls, 0) == 0)


def _resolutions(n: int) -> list[int]:
    if n <= MAX_BITS:
        return list(range(2**n))
    full = 2**n - 1
    return sorted({0, full, *(1 << i for i in range(n)), *(full ^ (1 << i) for i in range(n))})
