"""Users' requests for every plan: pinned and forbidden actions and shardings.

``pins`` turns them into rules for the arrays of plans.

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

OPEN_ENTRIES = ("*", "?", ...)  #: entries of a spec that leave a dim open for more axes


class ActionWish(NamedTuple):
    """An action that is pinned or forbidden."""

    text: str  #: shown to people, and part of what identifies a problem
    pinned: bool  #: False: forbidden
    action: Action
    every_side: bool  #: forbidden for every resolution of its colour's conflicts


class ValueWish(NamedTuple):
    """A request for how one value is cut."""

    text: str
    value: int
    dims: tuple[tuple[int, int], ...]  #: (mesh axis, dim) pairs that every plan has
    closed: tuple[tuple[int, int], ...]  #: (mesh axis, dim) pairs that no plan has
    #: the op that makes the value only passes it on, and is split in the same way
    split_op_alike: bool = False


Wish = ActionWish | ValueWish


def read_pin(analysis: Analysis, mesh: Mesh, target: object, spec: object = None) -> Wish:
    """Read a pin: an action, or the path of an argument or result with a spec.

    Texts: ``"batch->data"``, ``"params['w']=data,-"`` (``-``: whole, ``*``: open, ``data+model``:
    both).

    Raises:
        ToastError: it names an unknown colour, axis, argument or result, or the spec does not fit
            the shape.
    """
    if spec is None and isinstance(target, str) and "->" not in target and "=" in target:
        path, _, spec_text = target.rpartition("=")
        target, spec = path.strip(), _spec_of(spec_text)
    if spec is not None:
        path = str(target)
        return pin_value(analysis.program, mesh, _value(analysis, path), spec, called=path)
    action = parse_action(analysis, mesh, target)
    return ActionWish(f"pin {action_text(analysis, mesh, action)}", True, action, False)


def read_forbid(analysis: Analysis, mesh: Mesh, target: object, axis: str | None = None) -> Wish:
    """Read a prohibition: of an action, or of an axis for a value.

    The value is an argument or result, given by its path, that the axis must not cut.

    Texts: ``"sequence@1->model"``, ``"sequence->model"`` (for every resolution of its conflicts),
    ``"params['w']->data"``.

    Raises:
        ToastError: it names an unknown colour, axis, argument or result.
    """
    program = analysis.program
    if axis is None and isinstance(target, str) and "->" in target:
        target_text, _, axis_name = (text.strip() for text in target.rpartition("->"))
        if target_text.partition("@")[0] not in (
            *analysis.group_name,
            *analysis.colour_name,
        ) and target_text in _paths(program):
            target, axis = target_text, axis_name
    if axis is not None:
        value, path = _value(analysis, str(target)), str(target)
        if axis not in mesh.axes:
            raise _no_axis(axis, mesh)
        axis_number = mesh.axes.index(axis)
        closed = tuple((axis_number, dim) for dim in range(len(program.dims(value))))
        return ValueWish(f"forbid {path}->{axis}", value, (), closed)
    action = parse_action(analysis, mesh, target)
    if isinstance(target, Action):
        every_side = False
    elif isinstance(target, str):
        every_side = "@" not in target
    else:
        every_side = len(tuple(target)) < 3  # type: ignore[arg-type]
    every_side = every_side or not analysis.groups[action.group].resolutions
    return ActionWish(
        f"forbid {action_text(analysis, mesh, action, every_side=every_side)}",
        False,
        action,
        every_side,
    )


def pin_value(
    program: Program,
    mesh: Mesh,
    value: int,
    spec: object,
    called: str,
    *,
    never: Sequence[str] = (),
    split_op_alike: bool = False,
) -> ValueWish:
    """The pin of one value.

    Args:
        program: the program.
        mesh: the mesh.
        value: number of the value.
        spec: one entry for each dim: None (whole), an axis, several axes, ``"*"`` (open), or axes
            and ``"*"`` (at least these axes).
        called: name of the value in messages.
        never: axes that must not cut any dim, open dims included.
        split_op_alike: the op that makes the value only passes it on, and is split in the same way.

    Raises:
        InvalidPlan: the spec does not fit the shape or the mesh; all offences are listed.
    """
    shape = program.dims(value)
    if isinstance(spec, str) or not isinstance(spec, Iterable):
        raise InvalidPlan(
            f'{called}: give one entry for each dim, such as ("data", None), not {spec!r}'
        )
    entries = [_entry(entry) for entry in spec]
    hidden_count = random_keys.hidden_dims(program, value)
    if hidden_count and len(entries) == len(shape) - hidden_count:
        entries += [([], False)] * hidden_count  # JAX hides the last dims of typed random keys
    if len(entries) != len(shape):
        raise InvalidPlan(
            f"{called}: {len(entries)} entries for shape {_shape(shape)}; give one for each dim"
        )
    dim_of_axis: dict[str, int] = {}
    offenders, dim_texts = [], []
    for dim, (axes, is_open) in enumerate(entries):
        dim_texts.append("+".join([*axes, *(["*"] if is_open else [])]) or "-")
        existing = [axis for axis in axes if axis in mesh.axes]
        offenders += [str(_no_axis(axis, mesh)) for axis in axes if axis not in mesh.axes]
        offenders += [
            f"axis {axis} is on dims {dim_of_axis[axis]} and {dim}"
            for axis in existing
            if axis in dim_of_axis
        ]
        dim_of_axis.update(dict.fromkeys(existing, dim))
        if existing != sorted(existing, key=mesh.axes.index):
            offenders.append(
                f"dim {dim} lists its axes in the order {', '.join(existing)}; plans always "
                f"take the order of the mesh, {mesh}"
            )
        if existing and (offence := random_keys.offence(program, value, dim)):
            offenders.append(offence)
        if not mesh.divides(shape[dim], existing):
            offenders.append(
                f"dim {dim} has size {shape[dim]}, not divisible by {cuts(mesh, existing)}"
            )
    if program.value_is_constant[value] and mesh.ways(dim_of_axis) > 1:
        offenders.append("it is made of constants, which are never cut")
    if offenders:
        raise InvalidPlan(f"{called}: {'; '.join(offenders)}")
    dims = tuple(
        (axis_number, dim_of_axis[axis])
        for axis_number, axis in enumerate(mesh.axes)
        if axis in dim_of_axis and mesh.sizes[axis_number] > 1
    )
    closed = tuple(
        (axis_number, dim)
        for axis_number, axis in enumerate(mesh.axes)
        if axis not in dim_of_axis
        for dim, (_, is_open) in enumerate(entries)
        if not is_open or axis in never
    )
    return ValueWish(
        text=f"pin {called}=({', '.join(dim_texts)})",
        value=value,
        dims=dims,
        closed=closed,
        split_op_alike=split_op_alike,
    )


def _entry(dim_spec: object) -> tuple[list[str], bool]:
    """The axes of one dim of a spec, and whether the dim is open for more."""
    if dim_spec is None:
        return [], False
    if isinstance(dim_spec, str) or dim_spec is ...:
        dim_spec = [dim_spec]
    axes = list(dim_spec)  # type: ignore[call-overload]
    return [str(axis) for axis in axes if axis not in OPEN_ENTRIES], any(
        axis in OPEN_ENTRIES for axis in axes
    )


def _spec_of(spec_text: str) -> list[list[str]]:
    dim_texts = [dim_text.strip() for dim_text in spec_text.strip().strip("()[]").split(",")]
    return [
        [axis.strip() for axis in dim_text.split("+")] if dim_text not in ("", "-", "None") else []
        for dim_text in dim_texts
        if dim_text or len(dim_texts) == 1
    ]


def _paths(program: Program) -> dict[str, int]:
    """Values by the paths of arguments and results.

    Where an argument and a result have the same path, it means the argument.
    """
    results = zip(program.output_paths, program.outputs.tolist(), strict=True)
    return {
        **dict(results),
        **{program.value_name[argument]: argument for argument in range(program.n_arguments)},
    }


def _value(analysis: Analysis, path: str) -> int:
    paths = _paths(analysis.program)
    if path not in paths:
        shown_paths = ", ".join(list(paths)[:20]) + (", ..." if len(paths) > 20 else "")
        raise InvalidPlan(
            f"no argument or result is called {path!r}{did_you_mean(path, paths)}; known paths: "
            f'{shown_paths}. For a colour give an action: "colour->axis"'
        )
    return paths[path]


def _no_axis(axis: str, mesh: Mesh) -> InvalidPlan:
    return InvalidPlan(
        f"no mesh axis is called {axis!r}{did_you_mean(axis, mesh.axes)}; axes: "
        f"{', '.join(mesh.axes)}"
    )


def cuts(mesh: Mesh, axes: Sequence[str]) -> str:
    """Axes with their sizes, as ``data=4 x model=2``."""
    return " x ".join(f"{axis}={mesh.size(axis)}" for axis in axes)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def read_all(
    analysis: Analysis, mesh: Mesh, pins: Iterable[tuple], forbids: Iterable[tuple]
) -> list[Wish]:
    """Wishes from the arguments of ``read_pin`` and ``read_forbid``.

    Raises:
        InvalidProblem: some cannot be read; all of them are listed.
    """
    wishes, offenders = list[Wish](), []
    for read, verb, requests in ((read_pin, "pin", pins), (read_forbid, "forbid", forbids)):
        for arguments in requests:
            try:
                wishes.append(read(analysis, mesh, *arguments))
            except ToastError as error:
                argument_texts = [
                    argument if isinstance(argument, str) else repr(argument)
                    for argument in arguments
                ]
                offenders.append(f"{verb} {', '.join(argument_texts)}: {error}")
    if offenders:
        raise InvalidProblem("these cannot be pinned or forbidden:\n" + join_offenders(offenders))
    return wishes


def given_as(analysis: Analysis, request: object) -> tuple:
    """Arguments of ``read_pin`` or ``read_forbid`` from one request.

    A pair of a path with a spec or an axis concerns a value; any other request is an action.
    """
    if isinstance(request, tuple) and not isinstance(request, Action) and len(request) == 2:
        colours = (*analysis.group_name, *analysis.colour_name)
        if not isinstance(request[1], str) or (
            request[0] not in colours and request[0] in _paths(analysis.program)
        ):
            return request
    return (request,)
