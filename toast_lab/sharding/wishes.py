"""What is asked of every plan: actions and shardings to have, and not to have.

``pins`` says what they come down to.

Start reading at ``read_pin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, InvalidProblem, ToastError, did_you_mean, join_offenders
from toast_lab.ir import random_keys
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.space import Action, action_text, parse_action

OPEN = ("*", "?", ...)  #: of a dim on which axes may be added


class ActionWish(NamedTuple):
    """An action to be taken, or never to be."""

    text: str  #: for people, and for telling one problem from another
    pinned: bool
    action: Action
    every_side: bool  #: forbidden however the conflicts of its colour are settled


class ValueWish(NamedTuple):
    """How one value is to be cut."""

    text: str
    value: int
    dims: tuple[tuple[int, int], ...]  #: (mesh axis, dim) that are to be
    closed: tuple[tuple[int, int], ...]  #: (mesh axis, dim) that are not
    #: the op that makes it is split just so: it does nothing but hand the value on
    op_too: bool = False


Wish = ActionWish | ValueWish


def read_pin(analysis: Analysis, mesh: Mesh, target: object, spec: object = None) -> Wish:
    """A pin from an action, or from the path of an argument or result and a spec.

    Texts: ``"batch->data"``, ``"params['w']=data,-"`` (``-``: whole, ``*``: open, ``data+model``:
    both).

    Raises:
        ToastError: it names no colour, axis, argument or result, or the spec does not go with the
            shape.
    """
    if spec is None and isinstance(target, str) and "->" not in target and "=" in target:
        path, _, text = target.rpartition("=")
        target, spec = path.strip(), _spec_of(text)
    if spec is not None:
        path = str(target)
        return pin_value(analysis.program, mesh, _value(analysis, path), spec, called=path)
    action = parse_action(analysis, mesh, target)
    return ActionWish(f"pin {action_text(analysis, mesh, action)}", True, action, False)


def read_forbid(analysis: Analysis, mesh: Mesh, target: object, axis: str | None = None) -> Wish:
    """Read what is forbidden: an action, or an axis for a value.

    A value is an argument or result by its path; it may then not be cut over the axis.

    Texts: ``"sequence@1->model"``, ``"sequence->model"`` (however its conflicts are settled),
    ``"params['w']->data"``.

    Raises:
        ToastError: it names no colour, axis, argument or result.
    """
    program = analysis.program
    if axis is None and isinstance(target, str) and "->" in target:
        left, _, right = (part.strip() for part in target.rpartition("->"))
        if left.partition("@")[0] not in (
            *analysis.group_name,
            *analysis.colour_name,
        ) and left in _paths(program):
            target, axis = left, right
    if axis is not None:
        value, path = _value(analysis, str(target)), str(target)
        if axis not in mesh.axes:
            raise _no_axis(axis, mesh)
        axis_number = mesh.axes.index(axis)
        closed = tuple((axis_number, dim) for dim in range(len(program.dims(value))))
        return ValueWish(f"forbid {path}->{axis}", value, (), closed)
    action = parse_action(analysis, mesh, target)
    if isinstance(target, Action):
        every = False
    elif isinstance(target, str):
        every = "@" not in target
    else:
        every = len(tuple(target)) < 3  # type: ignore[arg-type]
    every = every or not analysis.groups[action.group].resolutions
    return ActionWish(
        f"forbid {action_text(analysis, mesh, action, every_side=every)}", False, action, every
    )


def pin_value(
    program: Program,
    mesh: Mesh,
    value: int,
    spec: object,
    called: str,
    *,
    never: Sequence[str] = (),
    op_too: bool = False,
) -> ValueWish:
    """The pin of one value.

    Args:
        program: the program.
        mesh: the mesh.
        value: number of the value.
        spec: one entry a dim: None (whole), an axis, several axes, ``"*"`` (open), or axes and
            ``"*"``: at least these.
        called: its name for people.
        never: axes that are on no dim, the open ones included.
        op_too: the op that makes the value does nothing but hand it on, and is to be split just so.

    Raises:
        InvalidPlan: the spec does not go with the shape or the mesh; all that is wrong is listed.
    """
    shape = program.dims(value)
    if isinstance(spec, str) or not isinstance(spec, Iterable):
        raise InvalidPlan(f'{called}: give one entry a dim, such as ("data", None), not {spec!r}')
    entries = [_entry(entry) for entry in spec]
    unseen = random_keys.hidden_dims(program, value)
    if unseen and len(entries) == len(shape) - unseen:
        entries += [([], False)] * unseen  # users of typed random keys know of the other dims only
    if len(entries) != len(shape):
        raise InvalidPlan(
            f"{called}: {len(entries)} entries for shape {_shape(shape)}, give one for each dim"
        )
    on: dict[str, int] = {}
    wrong, words = [], []
    for dim, (axes, is_open) in enumerate(entries):
        words.append("+".join([*axes, *(["*"] if is_open else [])]) or "-")
        known = [axis for axis in axes if axis in mesh.axes]
        wrong += [str(_no_axis(axis, mesh)) for axis in axes if axis not in mesh.axes]
        wrong += [f"axis {axis} is on dims {on[axis]} and {dim}" for axis in known if axis in on]
        on.update(dict.fromkeys(known, dim))
        if known != sorted(known, key=mesh.axes.index):
            wrong.append(
                f"dim {dim} has the axes in the order {', '.join(known)}; plans cut by the order "
                f"of the mesh, {mesh}"
            )
        if known and (why := random_keys.offence(program, value, dim)):
            wrong.append(why)
        if not mesh.divides(shape[dim], known):
            wrong.append(f"dim {dim} has size {shape[dim]}, not divisible by {cuts(mesh, known)}")
    if program.value_is_constant[value] and any(mesh.size(a) > 1 for a in on if a in mesh.axes):
        wrong.append("it is made of constants, which are never cut")
    if wrong:
        raise InvalidPlan(f"{called}: {'; '.join(wrong)}")
    dims = tuple(
        (a, on[axis]) for a, axis in enumerate(mesh.axes) if axis in on and mesh.sizes[a] > 1
    )
    closed = tuple(
        (number, dim)
        for number, axis in enumerate(mesh.axes)
        if axis not in on
        for dim, (_, is_open) in enumerate(entries)
        if not is_open or axis in never
    )
    return ValueWish(
        text=f"pin {called}=({', '.join(words)})",
        value=value,
        dims=dims,
        closed=closed,
        op_too=op_too,
    )


def _entry(entry: object) -> tuple[list[str], bool]:
    """(axes, are more allowed?) of one dim of a spec."""
    if entry is None:
        return [], False
    if isinstance(entry, str) or entry is ...:
        entry = [entry]
    parts = list(entry)  # type: ignore[call-overload]
    return [str(part) for part in parts if part not in OPEN], any(part in OPEN for part in parts)


def _spec_of(text: str) -> list[list[str]]:
    parts = [part.strip() for part in text.strip().strip("()[]").split(",")]
    return [
        [axis.strip() for axis in p.split("+")] if p not in ("", "-", "None") else []
        for p in parts
        if p or len(parts) == 1
    ]


def _paths(program: Program) -> dict[str, int]:
    """Values by the paths of arguments and results.

    An argument comes before a result of its name.
    """
    results = zip(program.output_paths, program.outputs.tolist(), strict=True)
    return {
        **dict(results),
        **{program.value_name[argument]: argument for argument in range(program.n_arguments)},
    }


def _value(analysis: Analysis, path: str) -> int:
    paths = _paths(analysis.program)
    if path not in paths:
        known = ", ".join(list(paths)[:20]) + (", ..." if len(paths) > 20 else "")
        raise InvalidPlan(
            f"no argument or result is called {path!r}{did_you_mean(path, paths)}; there are: "
            f"{known}. Of a colour, "
            'give an action: "colour->axis"'
        )
    return paths[path]


def _no_axis(axis: str, mesh: Mesh) -> InvalidPlan:
    return InvalidPlan(
        f"no mesh axis is called {axis!r}{did_you_mean(axis, mesh.axes)}; axes: "
        f"{', '.join(mesh.axes)}"
    )


def cuts(mesh: Mesh, axes: Sequence[str]) -> str:
    """``data=4 x model=2``."""
    return " x ".join(f"{axis}={mesh.size(axis)}" for axis in axes)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def read_all(
    analysis: Analysis, mesh: Mesh, pins: Iterable[tuple], forbids: Iterable[tuple]
) -> list[Wish]:
    """Wishes from the arguments of ``read_pin`` and ``read_forbid``.

    Raises:
        InvalidProblem: listing every one that cannot be read.
    """
    wishes, wrong = list[Wish](), []
    for read, verb, asked in ((read_pin, "pin", pins), (read_forbid, "forbid", forbids)):
        for given in asked:
            try:
                wishes.append(read(analysis, mesh, *given))
            except ToastError as error:
                shown = [item if isinstance(item, str) else repr(item) for item in given]
                wrong.append(f"{verb} {', '.join(shown)}: {error}")
    if wrong:
        raise InvalidProblem("these cannot be pinned or forbidden:\n" + join_offenders(wrong))
    return wishes


def given_as(analysis: Analysis, item: object) -> tuple:
    """Arguments of ``read_pin`` or ``read_forbid`` from one item.

    A tuple of path and spec or axis is about a value.
    """
    if isinstance(item, tuple) and not isinstance(item, Action) and len(item) == 2:
        colours = (*analysis.group_name, *analysis.colour_name)
        if not isinstance(item[1], str) or (
            item[0] not in colours and item[0] in _paths(analysis.program)
        ):
            return item
    return (item,)
