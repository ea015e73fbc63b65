"""Rules that every plan of a problem obeys: pinned and forbidden actions and shardings.

    problem.pin(("batch", "data")).pin("params['w']", (None, "model")).forbid(("sequence", "model"))

All of them become two kinds of rules, which hold for every plan, whether it is made of actions or
not:

* *fixed* entries of the plan's arrays: an op is split along this name on this axis, a value is cut
  in this dim;
* *closed* names and dims: no op is split along this name on this axis, no value is cut in this dim.

A pinned action fixes the entries that it sets when it is taken after the actions pinned before it,
with nothing else sharded. A pinned sharding fixes the axes that it names and closes the dims for
all other axes, except for open dims (``"*"``). A forbidden action closes every name and dim of its
colour on its axis; if it gives a resolution, it closes only those that this resolution splits and
some other does not. A value that must not be cut over an axis has all its dims closed for it.

Searches over actions start from the fixed entries and leave out closed ones (``Space``); all other
methods read the same arrays. Start reading at ``make_pins``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from toast_lab.errors import InvalidPlan, InvalidProblem, join_offenders
from toast_lab.ir.program import Program
from toast_lab.ragged import gather
from toast_lab.sharding.alike import Effects
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import no_effect
from toast_lab.sharding.space import Action, Fixed, Space
from toast_lab.sharding.state import State
from toast_lab.sharding.wishes import ActionWish, ValueWish, Wish, cuts


@dataclasses.dataclass(frozen=True, eq=False)
class Pins:
    """The fixed and closed entries for the plans of one program on ``A`` axes.

    The program has ``O`` ops, ``V`` values, ``N`` names and ``D`` dims of values.
    """

    program: Program
    mesh: Mesh
    wishes: tuple[Wish, ...]
    #: [O, A] int32 name along which the op is split on the axis, -1: not fixed
    op_fixed: np.ndarray
    value_fixed: np.ndarray  #: [V, A] int8 dim of the value that the axis cuts, -1: not fixed
    name_closed: np.ndarray  #: [N, A] bool: no op is split along the name on the axis
    #: [D, A] bool: the axis does not cut the dim; row starts are ``program.shape_ptr``
    dim_closed: np.ndarray
    notes: tuple[str, ...] = ()  #: annotations that could not be kept, and why

    @property
    def texts(self) -> list[str]:
        """Every wish in words, in the order given."""
        return [wish.text for wish in self.wishes]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The pinned actions."""
        return tuple(
            wish.action for wish in self.wishes if isinstance(wish, ActionWish) and wish.pinned
        )

    def sharded_values(self) -> list[tuple[int, int]]:
        """(value, mesh axis) of every cut pinned by a sharding rather than by an action."""
        return [
            (wish.value, axis)
            for wish in self.wishes
            if isinstance(wish, ValueWish)
            for axis, _ in wish.dims
        ]

    def broken(self, op_factor: np.ndarray, value_dim: np.ndarray) -> list[str]:
        """A sentence for every place where a plan, given by its arrays, breaks the pins."""
        program, axes, offences = self.program, self.mesh.axes, []
        for op, axis in np.argwhere((self.op_fixed >= 0) & (self.op_fixed != op_factor)).tolist():
            pinned_name, actual = int(self.op_fixed[op, axis]), int(op_factor[op, axis])
            offences.append(
                f"{program.kind[op]} ({program.where(op)}): split along "
                f"{_name(program, op, actual)} over {axes[axis]}, "
                f"pinned to {_name(program, op, pinned_name)}"
            )
        for value, axis in np.argwhere(
            (self.value_fixed >= 0) & (self.value_fixed != value_dim)
        ).tolist():
            actual = int(value_dim[value, axis])
            offences.append(
                f"{program.value_name[value]}: {axes[axis]} cuts "
                f"{f'dim {actual}' if actual >= 0 else 'nothing'}, pinned to dim "
                f"{int(self.value_fixed[value, axis])}"
            )
        ops, entry_axes = np.nonzero(op_factor >= 0)
        for position in np.flatnonzero(
            self.name_closed[op_factor[ops, entry_axes], entry_axes]
        ).tolist():
            op, axis = int(ops[position]), int(entry_axes[position])
            name = _name(program, op, int(op_factor[op, axis]))
            offences.append(
                f"{program.kind[op]} ({program.where(op)}): split along {name} over "
                f"{axes[axis]}, not allowed"
            )
        values, entry_axes = np.nonzero(value_dim >= 0)
        rows = program.shape_ptr[values] + value_dim[values, entry_axes]
        for position in np.flatnonzero(self.dim_closed[rows, entry_axes]).tolist():
            value, axis = int(values[position]), int(entry_axes[position])
            offences.append(
                f"{program.value_name[value]}: {axes[axis]} cuts dim "
                f"{int(value_dim[value, axis])}, not allowed"
            )
        return offences

    def check(self, op_factor: np.ndarray, value_dim: np.ndarray) -> None:
        """Raise InvalidPlan with every place where a plan breaks the pins."""
        offences = self.broken(op_factor, value_dim)
        if offences:
            raise InvalidPlan(
                f"this plan does not keep to {', '.join(self.texts)}:\n{join_offenders(offences)}"
            )

    def narrowed(self, space: Space) -> Space:
        """The space with these pins added, so that every state obeys them."""
        ops, values = space.op_effects, space.value_effects
        row_of_dim = self.program.shape_ptr[values.target] + values.cut
        return dataclasses.replace(
            space,
            op_effects=ops._replace(axes=_allowed(self.name_closed[ops.cut])),
            value_effects=values._replace(axes=_allowed(self.dim_closed[row_of_dim])),
            fixed=Fixed(
                op_factor=self.op_fixed,
                value_dim=self.value_fixed,
                actions=self.actions,
                texts=tuple(self.texts),
            ),
        )


def _allowed(closed: np.ndarray) -> np.ndarray:
    """[n] uint8 bit mask of the axes for which [n, A] ``closed`` is False."""
    return (~closed << np.arange(closed.shape[1])).sum(axis=1).astype(np.uint8)


def _name(program: Program, op: int, name: int) -> str:
    return f"its name {name - int(program.factor_ptr[op])}" if name >= 0 else "nothing"


# -- working out what is fixed and closed ----------------------------------------------------------


def make_pins(space: Space, wishes: Sequence[Wish], notes: Sequence[str] = ()) -> Pins:
    """The pins that carry out ``wishes``.

    Args:
        space: of the program and mesh, without pins.
        wishes: in the order given. An entry that two pinned actions would set goes to the first, as
            in a plan.
        notes: for ``Pins.notes``.

    Raises:
        InvalidProblem: wishes contradict each other, are repeated, change nothing or do not divide
            a size; all such wishes are listed, with sizes.
    """
    program, mesh = space.analysis.program, space.mesh
    draft = _PinDraft(space)
    times_asked: dict[str, int] = {}
    for wish in wishes:
        times_asked[wish.text] = times_asked.get(wish.text, 0) + 1
    draft.wrong += [
        f"{text}: asked for {count} times" for text, count in times_asked.items() if count > 1
    ]
    for wish in dict.fromkeys(wishes):
        if isinstance(wish, ValueWish):
            draft.value(wish)
        elif not wish.pinned:
            draft.forbid(wish)
    draft.take(
        list(dict.fromkeys(wish for wish in wishes if isinstance(wish, ActionWish) and wish.pinned))
    )
    draft.divide()
    if draft.wrong:
        raise InvalidProblem(
            "these pins contradict each other or cannot be carried out:\n"
            + join_offenders(dict.fromkeys(draft.wrong))
        )
    for array in (draft.op_fixed, draft.value_fixed, draft.name_closed, draft.dim_closed):
        array.flags.writeable = False
    return Pins(
        program=program,
        mesh=mesh,
        wishes=tuple(wishes),
        op_fixed=draft.op_fixed,
        value_fixed=draft.value_fixed,
        name_closed=draft.name_closed,
        dim_closed=draft.dim_closed,
        notes=tuple(notes),
    )


class _PinDraft:
    """The arrays of ``Pins`` under construction, the wish behind each entry, and all offences."""

    def __init__(self, space: Space) -> None:
        self.space, self.mesh, self.program = space, space.mesh, space.analysis.program
        program, n_axes = self.program, len(space.mesh.axes)
        self.op_fixed = np.full((program.n_ops, n_axes), -1, np.int32)
        self.value_fixed = np.full((program.n_values, n_axes), -1, np.int8)
        self.name_closed = np.zeros((program.n_factors, n_axes), bool)
        self.dim_closed = np.zeros((len(program.shape), n_axes), bool)
        # Text of the wish by ("fixed", value, axis) or ("dim" or "name", row, axis)
        self.why: dict[tuple[str, int, int], str] = {}
        self.wrong: list[str] = []

    def value(self, wish: ValueWish) -> None:
        """Fix and close the entries of a wish for a value."""
        program, value = self.program, wish.value
        first_row, op = int(program.shape_ptr[value]), int(program.value_op[value])
        names = program.def_names(value)
        shardable = self.space.analysis.names.shardable
        for axis, dim in wish.dims:
            before = self.why.get(("fixed", value, axis))
            if before is not None and self.value_fixed[value, axis] != dim:
                self._clash(
                    wish.text, f"puts {self._dim(value, dim)} over {self._axis(axis)}", before
                )
                continue
            self.value_fixed[value, axis] = dim
            self.why["fixed", value, axis] = wish.text
            if wish.split_op_alike and shardable[names[dim]]:
                self.op_fixed[op, axis] = names[dim]
        for axis, dim in wish.closed:
            self._close("dim", first_row + dim, axis, wish.text)
            if wish.split_op_alike:
                self._close("name", names[dim], axis, wish.text)
        for axis, dim in [*wish.dims, *wish.closed]:
            fixed = int(self.value_fixed[value, axis])
            closed = self.why.get(("dim", first_row + dim, axis))
            if fixed == dim and closed is not None and closed != self.why["fixed", value, axis]:
                self._clash(
                    self.why["fixed", value, axis],
                    f"puts {self._dim(value, dim)} over {self._axis(axis)}",
                    closed,
                )

    def _close(self, kind: str, row: int, axis: int, text: str) -> None:
        (self.dim_closed if kind == "dim" else self.name_closed)[row, axis] = True
        self.why.setdefault((kind, row, axis), text)

    def forbid(self, wish: ActionWish) -> None:
        """Close the names and dims of a forbidden action."""
        analysis, program, action = self.space.analysis, self.program, wish.action
        axis = action.axis
        if wish.every_side:
            in_group = analysis.group[analysis.colour] == action.group
            names, rows = np.flatnonzero(in_group), np.flatnonzero(in_group[program.def_dim_factor])
        else:
            try:
                move = self.space.move_of(action)
            except InvalidPlan as error:
                self.wrong.append(f"{wish.text}: {error}")
                return
            names = self._sides(move, self.space.op_effects)
            dims = self.space.value_effects
            rows = self._sides(move, dims._replace(cut=program.shape_ptr[dims.target] + dims.cut))
        for row in names.tolist():
            self._close("name", row, axis, wish.text)
        for row in rows.tolist():
            self._close("dim", row, axis, wish.text)
            value = int(program.dim_value[row])
            dim = row - int(program.shape_ptr[value])
            if self.value_fixed[value, axis] == dim:
                self._clash(
                    self.why["fixed", value, axis],
                    f"puts {self._dim(value, dim)} over {self._axis(axis)}",
                    wish.text,
                )

    def _sides(self, move: int, effects: Effects) -> np.ndarray:
        """The names or dims that a move splits where another move of its group differs."""
        others = np.flatnonzero(self.space.group == self.space.group[move])
        entries = gather(effects.ptr, others)
        pairs = np.unique(np.stack([effects.target[entries], effects.cut[entries]]), axis=1)
        disputed = np.bincount(pairs[0], minlength=int(effects.target.max(initial=0)) + 1) > 1
        own_entries = effects.rows(move)
        return np.asarray(effects.cut[own_entries][disputed[effects.target[own_entries]]])

    def take(self, wishes: Sequence[ActionWish]) -> None:
        """Fix the entries that the pinned actions set, in order, with nothing else sharded."""
        state, program = State(self.space), self.program
        for wish in wishes:
            ops, values = state.op_factor, state.value_dim
            try:
                changed = state.apply(wish.action)
            except InvalidPlan as error:
                self.wrong.append(f"{wish.text}: {error}")
                continue
            if not changed:
                self.wrong.append(no_effect(self.space, wish.action).replace("action ", "pin ", 1))
                continue
            new_ops, new_values, axis = state.op_factor, state.value_dim, wish.action.axis
            clashes: dict[str, list[str]] = {}
            for value in np.flatnonzero(new_values[:, axis] != values[:, axis]).tolist():
                dim = int(new_values[value, axis])
                fixed = int(self.value_fixed[value, axis])
                against = self.why.get(("dim", int(program.shape_ptr[value]) + dim, axis))
                against = against or (
                    self.why["fixed", value, axis] if fixed not in (-1, dim) else None
                )
                if against is not None:
                    clashes.setdefault(against, []).append(self._dim(value, dim))
                else:
                    self.value_fixed[value, axis] = dim
                    self.why["fixed", value, axis] = wish.text
            for op in np.flatnonzero(new_ops[:, axis] != ops[:, axis]).tolist():
                name, fixed = int(new_ops[op, axis]), int(self.op_fixed[op, axis])
                against = self.why.get(("name", name, axis))
                if against is None and fixed in (-1, name):
                    self.op_fixed[op, axis] = name
                else:
                    size = int(program.factor_size[name])
                    op_text = f"{program.kind[op]} ({program.where(op)}, size {size})"
                    clashes.setdefault(against or "another pin", []).append(op_text)
            for against, places in clashes.items():
                shown_places = ", ".join(places[:3]) + (
                    f" and {len(places) - 3} more" if len(places) > 3 else ""
                )
                self._clash(wish.text, f"puts {shown_places} over {self._axis(axis)}", against)

    def divide(self) -> None:
        """Report entries that wishes both fix and close, and sizes that the pins do not divide."""
        program = self.program
        for op, axis in np.argwhere(self.op_fixed >= 0).tolist():
            against = self.why.get(("name", int(self.op_fixed[op, axis]), axis))
            if against is not None:
                self._clash(
                    "a pin",
                    f"splits {program.kind[op]} ({program.where(op)}) over {self._axis(axis)}",
                    against,
                )
        for fixed, kind in ((self.value_fixed, "value"), (self.op_fixed, "op")):
            for row in np.flatnonzero((fixed >= 0).sum(axis=1) > 1).tolist():
                for cut in {int(entry) for entry in fixed[row] if entry >= 0}:
                    axes = [self.mesh.axes[axis] for axis in np.flatnonzero(fixed[row] == cut)]
                    size = (
                        program.dims(row)[cut] if kind == "value" else int(program.factor_size[cut])
                    )
                    if not self.mesh.divides(size, axes):
                        subject = (
                            self._dim(row, cut)
                            if kind == "value"
                            else f"{program.kind[row]} ({program.where(row)})"
                        )
                        ways = cuts(self.mesh, axes)
                        self.wrong.append(
                            f"{subject}: size {size} is not divisible by {ways}, the axes that "
                            "are pinned to it"
                        )

    def _clash(self, pinned_text: str, effect: str, conflicting_text: str) -> None:
        self.wrong.append(f"{pinned_text} {effect}, which contradicts {conflicting_text}")

    def _dim(self, value: int, dim: int) -> str:
        return (
            f"dim {dim} of {self.program.value_name[value]} (size {self.program.dims(value)[dim]})"
        )

    def _axis(self, axis: int) -> str:
        return f"{self.mesh.axes[axis]}={self.mesh.sizes[axis]}"
