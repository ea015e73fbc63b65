"""Which expressions of the user's source stand for which ops of the program.

The function is traced once more with a number on each equation of its jaxpr, which the ops that it
becomes carry in their names.  Constants aside (JAX makes them where it likes) the ops of both
traces are the same in the same order, which is checked; so every op of the program has its
equation, and every equation its place (see ``constrained``).

Where there is no function (a StableHLO file) an op is its own equation, known by its source line,
kind and shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.errors import InvalidPlan
from toast_lab.export.constrained import ENDS, Place, Walk, place_of, source_lines
from toast_lab.frontends import arguments, calls
from toast_lab.frontends.loading import function_of
from toast_lab.frontends.random_keys import is_key, words_of
from toast_lab.frontends.traced import in_child
from toast_lab.frontends.tracing import from_jax
from toast_lab.ir import op_kinds
from toast_lab.ir.model import Function, Model, Recipe
from toast_lab.ir.program import Program

ENDS.update((arguments.__file__, calls.__file__))
_NUMBERED = re.compile(r"toast_eqn_(\d+)\b")


class Equation(NamedTuple):
    """An equation of the function's jaxpr and what it became."""

    place: Place
    number: int  #: among the equations of the place, in program order
    in_pass: int  #: the same, counted anew each time that the source line is run
    of: int  #: equations of the place, those included that are not in the program
    of_pass: int  #: those of them that have the same number in their pass
    ops: tuple[int, ...]
    #: per operand, the program's uses that read it; empty where unknown
    uses: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]  #: per result the program's value, -1: unknown
    where: str  #: "model.py:31"
    name_stack: str
    #: file, line, column, end line, end column; innermost first
    frames: tuple[tuple[str, int, int, int, int], ...]


class Source(NamedTuple):
    """What the user's function says of a program, as plain data."""

    equations: list[Equation]  #: those that are in the program, in program order
    #: for each positional argument the paths of its leaves, as JAX writes them
    argument_keys: list[list[str]]
    #: logical names of dims that arguments carry, by our path
    names: dict[str, tuple[str | None, ...]]


def source_of(program: Program, model: Model) -> Source | None:
    """What the function of ``model`` says of its program.

    None if there is no function, as with a StableHLO file.

    User code that is not loaded in this process is run in a child.

    Raises:
        InvalidPlan: the function is another program.
        FrontendError, RunFailed: it cannot be made again.
    """
    if isinstance(model.function, Recipe):
        found: Source = in_child(
            "toast_lab.export.places:source_in_child",
            program,
            model.function,
            what=f"tracing {model.function.which}",
        )
        return found
    return _source(program, model.function) if model.function else None


def source_in_child(program: Program, recipe: Recipe) -> Source:
    """``source_of`` where the user's code may be run."""
    function = function_of(recipe)
    if function is None:
        raise InvalidPlan(f"{recipe.which} is no function that JAX traces")
    return _source(program, function)


def _source(program: Program, function: Function) -> Source:
    import jax

    keys = [
        [
            str(jax.tree_util.keystr(path))
            for path, _ in jax.tree_util.tree_flatten_with_path(given)[0]
        ]
        for given in function.given
    ]
    return Source(equations_of(program, function), keys, _carried(program, function.given))


def equations_of(program: Program, function: Function) -> list[Equation]:
    """The equations of a function that are in the program, in program order.

    Raises:
        InvalidPlan: the function is another program.
    """
    walk = _Numbering()
    model = from_jax(_numbered(function.call, walk), *function.given)
    ours, theirs = _signatures(program), _signatures(model.program)
    if [s for _, s in ours] != [s for _, s in theirs]:
        raise InvalidPlan(different(program, model.program))
    of_eqn: dict[int, list[int]] = {}
    for (op, _), (other, _) in zip(ours, theirs, strict=True):
        numbers = _NUMBERED.findall(model.program.name_stack[other])
        if numbers:
            of_eqn.setdefault(int(numbers[-1]), []).append(op)
    return [
        _equation(program, walk, n, ops)
        for n, ops in sorted(of_eqn.items(), key=lambda item: item[1][0])
    ]


def ops_as_equations(program: Program) -> list[Equation]:
    """Every op as an equation of its own, for programs whose function is not at hand."""
    found, count = [], dict[Place, int]()
    for op in program.ops():
        values = program.results(op)
        if (
            op_kinds.is_control(program.kind[op])
            or not len(values)
            or program.value_is_constant[values[0]]
        ):
            continue
        where = program.where(op)
        shape = tuple(map(int, program.dims(int(values[0]))))
        place = Place(where, program.kind[op], "transpose" in program.name_stack[op], shape)
        count[place] = count.get(place, -1) + 1
        uses = tuple((u,) for u in program.uses(op))
        results = tuple(map(int, values))
        found.append(
            Equation(
                place,
                count[place],
                count[place],
                -1,
                1,
                (op,),
                uses,
                results,
                where,
                program.name_stack[op],
                (),
            )
        )
    return [e._replace(of=count[e.place] + 1) for e in found]


def different(mine: Program, other: Program) -> str:
    """What to say when a function is another program than the plan's."""
    ours, theirs = ([s for _, s in _signatures(p)] for p in (mine, other))
    first = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    shown = [
        f"{s[first][0]} {list(s[first][1][0]) if s[first][1] else ''}"
        if first < len(s)
        else "the end"
        for s in (ours, theirs)
    ]
    return (
        f"this plan shards {mine.name}; the function given is another program: op {first} is "
        f"{shown[0]} in the plan's, "
        f"{shown[1]} in the function's (constants not counted). Was it planned with the same "
        "code, arguments and "
        "versions?"
    )


class _Numbering(Walk):
    """Evaluates a jaxpr with a number in the name of every equation."""

    def __init__(self) -> None:
        super().__init__((), None)
        self.seen: list[tuple[Any, Place, int, int]] = []
        self.passes: dict[tuple[Place, int], int] = {}

    def forget(self) -> None:
        """Begin anew: where JAX traces more than once, the last time counts."""
        for known in (self.count, self.in_pass, self.passes, self.seen):
            known.clear()

    def bind(self, eqn: Any, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        import jax

        if params is not eqn.params:  # a loop or a branch: what is in it has its own numbers
            return super().bind(eqn, values, params)
        place = place_of(eqn)
        number, in_pass = self.count[place], self.in_pass[place]
        self.passes[place, in_pass] = self.passes.get((place, in_pass), 0) + 1
        self.seen.append((eqn, place, number, in_pass))
        with jax.named_scope(f"toast_eqn_{len(self.seen) - 1}"):
            return super().bind(eqn, values, params)


def _numbered(fn: Callable[..., Any], walk: _Numbering) -> Callable[..., Any]:
    import jax

    def numbered(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        walk.forget()
        results = walk.closed(closed, jax.tree_util.tree_leaves(args))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), results)

    return numbered


def _signatures(program: Program) -> list[tuple[int, tuple[Any, ...]]]:
    """(op, kind and shapes) of every op that is not made of constants alone."""
    found = []
    for op in program.ops():
        values = list(map(int, program.results(op)))
        if values and all(program.value_is_constant[v] for v in values):
            continue
        shapes = tuple(tuple(map(int, program.dims(v))) for v in values)
        found.append(
            (op, (program.kind[op], shapes, tuple(program.value_dtype[v] for v in values)))
        )
    return found


def _equation(program: Program, walk: _Numbering, number: int, ops: list[int]) -> Equation:
    eqn, place, at_place, in_pass = walk.seen[number]
    where = place.source.partition(" < ")[0] or "unknown line"
    return Equation(
        place,
        at_place,
        in_pass,
        walk.count[place] + 1,
        walk.passes[place, in_pass],
        tuple(ops),
        _operand_uses(program, eqn, ops),
        _result_values(program, eqn, ops),
        where,
        str(eqn.source_info.name_stack),
        _ranges(eqn.source_info.traceback),
    )


def _ranges(traceback: Any) -> tuple[tuple[str, int, int, int, int], ...]:
    """Source ranges of ``source_lines``; none where JAX hides them.

    A range is file, line, column from 0, end line, end column.
    """
    wanted = [(file, line) for file, line in source_lines(traceback)]
    try:
        codes, offsets = traceback.raw_frames()
        every = [
            (code.co_filename, *traceback.code_addr2location(code, offset))
            for code, offset in zip(codes, offsets, strict=True)
        ]
    except (AttributeError, TypeError):
        return ()
    found, rest = [], iter(every)
    for file, line in wanted:
        for frame in rest:
            if frame[0] == file and frame[1] == line:
                found.append(frame)
                break
    return tuple(found)


def _result_values(program: Program, eqn: Any, ops: list[int]) -> tuple[int, ...]:
    """Per result of an equation, the value of the program that stands for it.

    It is the last one of its shape that the equation's ops make and no other op of it reads, -1 if
    there is none.
    """
    inside = {int(program.use_value[u]) for op in ops for u in program.uses(op)}
    made = [int(v) for op in ops for v in program.results(op)]
    made = [v for v in made if v not in inside and not program.value_is_constant[v]]
    shapes = [_shape(v) for v in eqn.outvars]
    if [tuple(map(int, program.dims(v))) for v in made] == shapes:
        return tuple(made)
    if len(shapes) == 1:
        fitting = [v for v in made if tuple(map(int, program.dims(v))) == shapes[0]]
        return (fitting[-1] if fitting else -1,)
    return (-1,) * len(shapes)


def _fits(program: Program, variable: Any, value: int) -> bool:
    """Have a jaxpr's variable and a value of the program the same shape?"""
    return _shape(variable) == tuple(map(int, program.dims(value)))


def _shape(variable: Any) -> tuple[int, ...]:
    """Shape of a jaxpr's variable as the program has it, with the words of random keys."""
    shape = tuple(map(int, getattr(variable.aval, "shape", ())))
    return (*shape, *words_of(variable.aval)) if is_key(variable.aval) else shape


def _operand_uses(program: Program, eqn: Any, ops: list[int]) -> tuple[tuple[int, ...], ...]:
    """Per operand the uses that read it.

    Values from outside come in the order in which the equation names them.
    """
    made = {int(v) for op in ops for v in program.results(op)}
    outside: dict[int, list[int]] = {}
    for op in ops:
        for use in program.uses(op):
            value = int(program.use_value[use])
            if value not in made and not program.value_is_constant[value]:
                outside.setdefault(value, []).append(use)
    nothing: tuple[tuple[int, ...], ...] = ((),) * len(eqn.invars)
    only = ops[0] if len(ops) == 1 else -1
    if only >= 0 and len(program.uses(only)) == len(eqn.invars):
        return tuple(
            (u,) if _fits(program, v, int(program.use_value[u])) else ()
            for u, v in zip(program.uses(only), eqn.invars, strict=True)
        )
    variables = list(dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val")))
    if len(variables) != len(outside):
        return nothing
    pairs = list(zip(variables, outside, strict=True))
    if not all(_fits(program, variable, value) for variable, value in pairs):
        # Some ops read their operands in another order, such as gathers that first look which
        # indices are inside.
        pairs = [
            (variable, value)
            for variable in variables
            for value in outside
            if _fits(program, variable, value)
        ]
        if len(pairs) != len(variables) or len({value for _, value in pairs}) != len(pairs):
            return nothing
    groups = {variable: outside[value] for variable, value in pairs}
    return tuple(tuple(groups[v]) if not hasattr(v, "val") else () for v in eqn.invars)


def _carried(program: Any, given: Any) -> dict[str, tuple[str | None, ...]]:
    """Names that boxes around the arguments carry, by our path."""
    import jax

    flat = jax.tree_util.tree_leaves(given, is_leaf=lambda x: _names_of(x) is not None)
    found, at = {}, 0
    for part in flat:
        names, count = _names_of(part), len(jax.tree_util.tree_leaves(part))
        if names is not None and count == 1 and len(names) == len(program.dims(at)):
            found[program.value_name[at]] = names
        at += count
    return found


def _names_of(box: Any) -> tuple[str | None, ...] | None:
    """Logical names of a flax box or nnx variable."""
    if not type(box).__module__.startswith("flax."):
        return None
    for key in ("names", "sharding_names", "out_sharding", "sharding"):
        names = getattr(box, key, None)
        if (
            isinstance(names, tuple)
            and names
            and all(n is None or isinstance(n, str) for n in names)
        ):
            return names
    return None
