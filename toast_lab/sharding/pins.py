"""What every plan of a problem is to keep to: pinned actions and shardings, and forbidden ones.

    problem.pin(("batch", "data")).pin("params['w']", (None, "model")).forbid(("sequence", "model"))

Whatever is asked for comes down to two things, which say the same of every plan, made of actions or
not:

* *fixed* entries of the plan's arrays: this op is split along this name on this axis, this value is
  cut in this dim;
* *closed* names and dims: no op is split along this name on this axis, no value is cut in this dim
  on it.

A pinned action fixes the entries that it makes, taken after the actions pinned before it, with
nothing else sharded.  A pinned sharding fixes the axes that it names and closes the dims for all
others, open dims (``"*"``) apart.  A forbidden action closes every name and dim of its colour on
its axis; if it gives a resolution, those only that are split in this resolution and not in every
other.  A value that may not be cut over an axis has all its dims closed.

Searches over actions start from the fixed entries and leave out what is closed (``Space``); every
other method reads the same.  Start reading at ``make_pins``.
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
    """What plans of one program keep to on ``A`` axes.

    The program has ``O`` ops, ``V`` values, ``N`` names and ``D`` dims of values.
    """

    program: Program
    mesh: Mesh
    wishes: tuple[Wish, ...]
    #: [O, A] int32 name along which the op is split on the axis, -1: not fixed
    op_fixed: np.ndarray
    value_fixed: np.ndarray  #: [V, A] int8 dim of the value on the axis, -1: not fixed
    name_closed: np.ndarray  #: [N, A] bool: no op is split along the name on the axis
    #: [D, A] bool: the dim is not on the axis; row starts are ``program.shape_ptr``
    dim_closed: np.ndarray
    notes: tuple[str, ...] = ()  #: what could not be kept, and why

    @property
    def texts(self) -> list[str]:
        """Every wish in words, in the order given."""
        return [w.text for w in self.wishes]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The pinned actions."""
        return tuple(w.action for w in self.wishes if isinstance(w, ActionWish) and w.pinned)

    def sharded_values(self) -> list[tuple[int, int]]:
        """(value, mesh axis) of every sharding that was pinned by itself, and not by an action."""
        return [(w.value, a) for w in self.wishes if isinstance(w, ValueWish) for a, _ in w.dims]

    def action_texts(self, space: Space) -> tuple[str, ...]:
        """The pinned actions as a plan names its actions."""
        return tuple(space.text(a) for a in self.actions)

    def broken(self, op_factor: np.ndarray, value_dim: np.ndarray) -> list[str]:
        """Every place where a plan, given by its arrays, does not keep to the pins.

        It is empty if the plan does.
        """
        program, axes, found = self.program, self.mesh.axes, []
        for op, a in np.argwhere((self.op_fixed >= 0) & (self.op_fixed != op_factor)).tolist():
            wanted, there = int(self.op_fixed[op, a]), int(op_factor[op, a])
            found.append(
                f"{program.kind[op]} ({program.where(op)}): split along "
                f"{_name(program, op, there)} over {axes[a]}, "
                f"pinned to {_name(program, op, wanted)}"
            )
        for v, a in np.argwhere((self.value_fixed >= 0) & (self.value_fixed != value_dim)).tolist():
            there = int(value_dim[v, a])
            found.append(
                f"{program.value_name[v]}: {axes[a]} cuts "
                f"{f'dim {there}' if there >= 0 else 'nothing'}, pinned to dim "
                f"{int(self.value_fixed[v, a])}"
            )
        ops, cut = np.nonzero(op_factor >= 0)
        for i in np.flatnonzero(self.name_closed[op_factor[ops, cut], cut]).tolist():
            op, a = int(ops[i]), int(cut[i])
            name = _name(program, op, int(op_factor[op, a]))
            found.append(
                f"{program.kind[op]} ({program.where(op)}): split along {name} over "
                f"{axes[a]}, not allowed"
            )
        values, cut = np.nonzero(value_dim >= 0)
        rows = program.shape_ptr[values] + value_dim[values, cut]
        for i in np.flatnonzero(self.dim_closed[rows, cut]).tolist():
            v, a = int(values[i]), int(cut[i])
            found.append(
                f"{program.value_name[v]}: {axes[a]} cuts dim {int(value_dim[v, a])}, not allowed"
            )
        return found

    def check(self, op_factor: np.ndarray, value_dim: np.ndarray) -> None:
        """Raise InvalidPlan listing every place where a plan does not keep to the pins."""
        found = self.broken(op_factor, value_dim)
        if found:
            raise InvalidPlan(
                f"this plan does not keep to {', '.join(self.texts)}:\n{join_offenders(found)}"
            )

    def narrowed(self, space: Space) -> Space:
        """A space of the same program and mesh in which every state keeps to the pins."""
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
    """uint8 with bit a set where [n, A] ``closed`` is False."""
    return (~closed << np.arange(closed.shape[1])).sum(axis=1).astype(np.uint8)


def _name(program: Program, op: int, name: int) -> str:
    return f"its name {name - int(program.factor_ptr[op])}" if name >= 0 else "nothing"


# -- working out what is fixed and closed ----------------------------------------------------------


def make_pins(space: Space, wishes: Sequence[Wish], notes: Sequence[str] = ()) -> Pins:
    """What wishes come down to.

    Args:
        space: of the program and mesh, without pins.
        wishes: in the order given.  Of two pinned actions the first has what both would take, as in
            a plan.
        notes: for ``Pins.notes``.

    Raises:
        InvalidProblem: wishes contradict each other, name a thing twice, change nothing or do not
            divide; all are listed, with sizes.
    """
    program, mesh = space.analysis.program, space.mesh
    made = _Made(space)
    said: dict[str, int] = {}
    for wish in wishes:
        said[wish.text] = said.get(wish.text, 0) + 1
    made.wrong += [f"{text}: asked for {count} times" for text, count in said.items() if count > 1]
    for wish in dict.fromkeys(wishes):
        if isinstance(wish, ValueWish):
            made.value(wish)
        elif not wish.pinned:
            made.forbid(wish)
    made.take(list(dict.fromkeys(w for w in wishes if isinstance(w, ActionWish) and w.pinned)))
    made.divide()
    if made.wrong:
        raise InvalidProblem(
            "these pins contradict each other or cannot be carried out:\n"
            + join_offenders(dict.fromkeys(made.wrong))
        )
    arrays = made.op_fixed, made.value_fixed, made.name_closed, made.dim_closed
    for array in arrays:
        array.flags.writeable = False
    return Pins(program, mesh, tuple(wishes), *arrays, tuple(notes))


class _Made:
    """The arrays of ``Pins`` as they come about, who asked for what, and what is wrong."""

    def __init__(self, space: Space) -> None:
        self.space, self.mesh, self.program = space, space.mesh, space.analysis.program
        program, n_axes = self.program, len(space.mesh.axes)
        self.op_fixed = np.full((program.n_ops, n_axes), -1, np.int32)
        self.value_fixed = np.full((program.n_values, n_axes), -1, np.int8)
        self.name_closed = np.zeros((program.n_factors, n_axes), bool)
        self.dim_closed = np.zeros((len(program.shape), n_axes), bool)
        # ("fixed", value, axis) and ("dim" or "name", row, axis)
        self.why: dict[tuple[str, int, int], str] = {}
        self.wrong: list[str] = []

    def value(self, wish: ValueWish) -> None:
        """Fix and close what the wish for a value says."""
        program, v = self.program, wish.value
        first, op = int(program.shape_ptr[v]), int(program.value_op[v])
        names = program.def_names(v)
        shardable = self.space.analysis.names.shardable
        for a, d in wish.dims:
            before = self.why.get(("fixed", v, a))
            if before is not None and self.value_fixed[v, a] != d:
                self._clash(wish.text, f"puts {self._dim(v, d)} over {self._axis(a)}", before)
                continue
            self.value_fixed[v, a] = d
            self.why["fixed", v, a] = wish.text
            if wish.op_too and shardable[names[d]]:
                self.op_fixed[op, a] = names[d]
        for a, d in wish.closed:
            self._close("dim", first + d, a, wish.text)
            if wish.op_too:
                self._close("name", names[d], a, wish.text)
        for a, d in [*wish.dims, *wish.closed]:
            fixed, closed = int(self.value_fixed[v, a]), self.why.get(("dim", first + d, a))
            if fixed == d and closed is not None and closed != self.why["fixed", v, a]:
                self._clash(
                    self.why["fixed", v, a], f"puts {self._dim(v, d)} over {self._axis(a)}", closed
                )

    def _close(self, what: str, row: int, a: int, text: str) -> None:
        (self.dim_closed if what == "dim" else self.name_closed)[row, a] = True
        self.why.setdefault((what, row, a), text)

    def forbid(self, wish: ActionWish) -> None:
        """Close the names and dims of a forbidden action."""
        analysis, program, action = self.space.analysis, self.program, wish.action
        a = action.axis
        if wish.every_side:
            own = analysis.group[analysis.colour] == action.group
            names, rows = np.flatnonzero(own), np.flatnonzero(own[program.def_dim_factor])
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
            self._close("name", row, a, wish.text)
        for row in rows.tolist():
            self._close("dim", row, a, wish.text)
            v = int(program.dim_value[row])
            d = row - int(program.shape_ptr[v])
            if self.value_fixed[v, a] == d:
                self._clash(
                    self.why["fixed", v, a],
                    f"puts {self._dim(v, d)} over {self._axis(a)}",
                    wish.text,
                )

    def _sides(self, move: int, effects: Effects) -> np.ndarray:
        """What a move splits where another move of its group splits something else."""
        others = np.flatnonzero(self.space.group == self.space.group[move])
        entries = gather(effects.ptr, others)
        pairs = np.unique(np.stack([effects.target[entries], effects.cut[entries]]), axis=1)
        disputed = np.bincount(pairs[0], minlength=int(effects.target.max(initial=0)) + 1) > 1
        own = effects.rows(move)
        return np.asarray(effects.cut[own][disputed[effects.target[own]]])

    def take(self, wishes: Sequence[ActionWish]) -> None:
        """Fix what the pinned actions make, in order, by themselves."""
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
            new_ops, new_values, a = state.op_factor, state.value_dim, wish.action.axis
            clashes: dict[str, list[str]] = {}
            for v in np.flatnonzero(new_values[:, a] != values[:, a]).tolist():
                d = int(new_values[v, a])
                fixed = int(self.value_fixed[v, a])
                against = self.why.get(("dim", int(program.shape_ptr[v]) + d, a))
                against = against or (self.why["fixed", v, a] if fixed not in (-1, d) else None)
                if against is not None:
                    clashes.setdefault(against, []).append(self._dim(v, d))
                else:
                    self.value_fixed[v, a] = d
                    self.why["fixed", v, a] = wish.text
            for o in np.flatnonzero(new_ops[:, a] != ops[:, a]).tolist():
                name, fixed = int(new_ops[o, a]), int(self.op_fixed[o, a])
                against = self.why.get(("name", name, a))
                if against is None and fixed in (-1, name):
                    self.op_fixed[o, a] = name
                else:
                    size = int(program.factor_size[name])
                    called = f"{program.kind[o]} ({program.where(o)}, size {size})"
                    clashes.setdefault(against or "another pin", []).append(called)
            for against, places in clashes.items():
                some = ", ".join(places[:3]) + (
                    f" and {len(places) - 3} more" if len(places) > 3 else ""
                )
                self._clash(wish.text, f"puts {some} over {self._axis(a)}", against)

    def divide(self) -> None:
        """Find what all wishes together cut badly, or both fix and close.

        Cut badly are things whose pieces do not divide.
        """
        program, sizes = self.program, self.mesh.array()
        for o, a in np.argwhere(self.op_fixed >= 0).tolist():
            against = self.why.get(("name", int(self.op_fixed[o, a]), a))
            if against is not None:
                self._clash(
                    "a pin",
                    f"splits {program.kind[o]} ({program.where(o)}) over {self._axis(a)}",
                    against,
                )
        for fixed, what in ((self.value_fixed, "value"), (self.op_fixed, "op")):
            for i in np.flatnonzero((fixed >= 0).sum(axis=1) > 1).tolist():
                for d in {int(x) for x in fixed[i] if x >= 0}:
                    axes = np.flatnonzero(fixed[i] == d)
                    size = program.dims(i)[d] if what == "value" else int(program.factor_size[d])
                    if size % int(sizes[axes].prod()):
                        where = (
                            self._dim(i, d)
                            if what == "value"
                            else (f"{program.kind[i]} ({program.where(i)})")
                        )
                        ways = cuts(self.mesh, [self.mesh.axes[a] for a in axes.tolist()])
                        self.wrong.append(
                            f"{where}: size {size} is not divisible by {ways}, which are all "
                            "pinned to it"
                        )

    def _clash(self, one: str, does: str, other: str) -> None:
        self.wrong.append(f"{one} {does}, against {other}")

    def _dim(self, v: int, d: int) -> str:
        return f"dim {d} of {self.program.value_name[v]} (size {self.program.dims(v)[d]})"

    def _axis(self, a: int) -> str:
        return f"{self.mesh.axes[a]}={self.mesh.sizes[a]}"
