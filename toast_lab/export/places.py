"""Match the expressions of the user's source with the ops of the program.

The function is traced once more with a number on each equation of its jaxpr, which the equation's
ops carry in their names. Apart from constants, which JAX may place anywhere, both traces must have
the same ops in the same order, which is checked. So every op of the program has its equation, and
every equation its place (see ``constrained``).

Without a function (a StableHLO file) each op is its own equation, identified by its source line,
kind and shape.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError, InvalidPlan
from toast_lab.export.constrained import ENDS, EquationPlace, Walk, place_of, source_lines
from toast_lab.frontends import arguments, calls
from toast_lab.frontends.loading import function_of
from toast_lab.frontends.logical_names import dim_names_of
from toast_lab.frontends.traced import in_child
from toast_lab.frontends.traced_keys import is_key, key_data_shape
from toast_lab.frontends.tracing import retrace
from toast_lab.ir import op_kinds
from toast_lab.ir.model import Function, Model, Recipe
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.program import Program

ENDS.update((arguments.__file__, calls.__file__))
_NUMBERED = re.compile(r"toast_eqn_(\d+)\b")


#: File, line, column, end line, end column; columns count bytes from 0.
SourceSpan = tuple[str, int, int, int, int]
Shape = tuple[int, ...]


class Equation(NamedTuple):
    """An equation of the function's jaxpr, with its ops in the program."""

    place: EquationPlace
    number: int  #: its number among the equations of the place, in program order
    in_pass: int  #: the same, starting again each time the source line runs
    place_count: (
        int  #: number of equations of the place, including those that are not in the program
    )
    pass_count: int  #: number of those with the same ``in_pass``
    ops: tuple[int, ...]
    #: per operand, the program's uses that read it; empty where unknown
    uses: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]  #: per result the program's value, -1: unknown
    where: str  #: "model.py:31"
    name_stack: str
    #: source ranges that lead to it, innermost first
    frames: tuple[SourceSpan, ...]


class Source(NamedTuple):
    """What the user's function reveals about a program, as plain data."""

    equations: list[Equation]  #: those that are in the program, in program order
    #: for each positional argument the paths of its leaves, as JAX writes them
    argument_keys: list[list[str]]
    #: logical names of the dims of arguments, by the program's paths
    names: dict[str, tuple[str | None, ...]]


def source_of(program: Program, model: Model) -> Source | None:
    """What the function of ``model`` reveals about its program; None without a function.

    User code that is not loaded in this process runs in a child process.

    Raises:
        InvalidPlan: tracing the function gives another program than the plan's.
        FrontendError, RunFailed: the function cannot be made again.
    """
    if isinstance(model.function, Recipe):
        source: Source = in_child(
            "toast_lab.export.places:source_in_child",
            program,
            model.function,
            activity=f"tracing {model.function.which}",
        )
        return source
    return _source(program, model.function) if model.function else None


def source_in_child(program: Program, recipe: Recipe) -> Source:
    """``source_of`` in a child process, in which the user's code may run."""
    function = function_of(recipe)
    if function is None:
        raise InvalidPlan(f"{recipe.which} is not a function that JAX traces")
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
    return Source(
        equations_of(program, function), keys, dim_names_of(program.value_name, function.given)
    )


def equations_of(program: Program, function: Function) -> list[Equation]:
    """The equations of a function that are in the program, in program order.

    Raises:
        InvalidPlan: tracing the function gives another program.
    """
    walk = _Numbering()
    model = retrace(function, _numbered(function.call, walk))
    own_signatures = _signatures(program)
    kinds = [signature for _, signature in own_signatures]
    for platform in PLATFORMS:
        if kinds != [signature for _, signature in _signatures(model.program)]:
            with contextlib.suppress(FrontendError):
                model = model.lowered_for(platform)
    traced_signatures = _signatures(model.program)
    if kinds != [signature for _, signature in traced_signatures]:
        raise InvalidPlan(different(program, model.program))
    ops_of_equation: dict[int, list[int]] = {}
    for (op, _), (traced_op, _) in zip(own_signatures, traced_signatures, strict=True):
        numbers = _NUMBERED.findall(model.program.name_stack[traced_op])
        if numbers:
            ops_of_equation.setdefault(int(numbers[-1]), []).append(op)
    return [
        _equation(program, walk, number, ops)
        for number, ops in sorted(ops_of_equation.items(), key=lambda item: item[1][0])
    ]


def ops_as_equations(program: Program) -> list[Equation]:
    """Every op as an equation of its own, for programs without a function."""
    equations, count = [], Counter[EquationPlace]()
    for op in program.ops():
        results = program.results(op)
        if (
            op_kinds.is_control(program.kind[op])
            or not results
            or program.value_is_constant[results[0]]
        ):
            continue
        where = program.where(op)
        backward = "transpose" in program.name_stack[op]
        place = EquationPlace(where, program.kind[op], backward, program.dims(results[0]))
        uses = tuple((use,) for use in program.uses(op))
        equations.append(
            Equation(
                place=place,
                number=count[place],
                in_pass=count[place],
                place_count=-1,
                pass_count=1,
                ops=(op,),
                uses=uses,
                results=tuple(results),
                where=where,
                name_stack=program.name_stack[op],
                frames=(),
            )
        )
        count[place] += 1
    return [equation._replace(place_count=count[equation.place]) for equation in equations]


def different(mine: Program, other: Program) -> str:
    """Error message for a function whose program is not the plan's."""
    own_signatures, other_signatures = (
        [signature for _, signature in _signatures(program)] for program in (mine, other)
    )
    pairs = enumerate(zip(own_signatures, other_signatures, strict=False))
    shorter = min(len(own_signatures), len(other_signatures))
    index = next((i for i, (our_op, their_op) in pairs if our_op != their_op), shorter)

    def shown(signatures: list[tuple[Any, ...]]) -> str:
        if index >= len(signatures):
            return "the end"
        kind, shapes, _ = signatures[index]
        return f"{kind} {list(shapes[0]) if shapes else ''}"

    return (
        f"this plan shards {mine.name}; the function given is another program: op {index} is "
        f"{shown(own_signatures)} in the plan's, {shown(other_signatures)} in the function's "
        "(constants not counted). Was it planned with the same code, arguments and versions?"
    )


class _Numbering(Walk):
    """Evaluates a jaxpr, with a number in the name of every equation."""

    def __init__(self) -> None:
        super().__init__((), None)
        self.seen: list[tuple[Any, EquationPlace, int, int]] = []
        self.passes: dict[tuple[EquationPlace, int], int] = {}

    def forget(self) -> None:
        """Clear all records: if JAX traces more than once, only the last trace counts."""
        for record in (self.count, self.in_pass, self.passes, self.seen):
            record.clear()

    def bind(self, eqn: Any, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        import jax

        if params is not eqn.params:  # a loop or a branch, whose equations have their own numbers
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
    """(op, its kind, shapes and dtypes) of every op whose results are not all constants."""
    signatures = []
    for op in program.ops():
        results = program.results(op)
        if results and all(program.value_is_constant[value] for value in results):
            continue
        shapes = tuple(map(program.dims, results))
        signatures.append(
            (op, (program.kind[op], shapes, tuple(program.value_dtype[value] for value in results)))
        )
    return signatures


def _equation(program: Program, walk: _Numbering, number: int, ops: list[int]) -> Equation:
    eqn, place, at_place, in_pass = walk.seen[number]
    return Equation(
        place=place,
        number=at_place,
        in_pass=in_pass,
        place_count=walk.count[place] + 1,
        pass_count=walk.passes[place, in_pass],
        ops=tuple(ops),
        uses=_operand_uses(program, eqn, ops),
        results=_result_values(program, eqn, ops),
        where=place.source.partition(" < ")[0] or "unknown line",
        name_stack=str(eqn.source_info.name_stack),
        frames=_ranges(eqn.source_info.traceback),
    )


def _ranges(traceback: Any) -> tuple[SourceSpan, ...]:
    """Source ranges (see ``Equation.frames``, columns from 0); empty where JAX hides them."""
    try:
        codes, offsets = traceback.raw_frames()
        all_frames = [
            (code.co_filename, *traceback.code_addr2location(code, offset))
            for code, offset in zip(codes, offsets, strict=True)
        ]
    except (AttributeError, TypeError):
        return ()
    ranges, outer_frames = [], iter(all_frames)
    for file, line in source_lines(traceback):
        for frame in outer_frames:
            if frame[0] == file and frame[1] == line:
                ranges.append(frame)
                break
    return tuple(ranges)


def _result_values(program: Program, eqn: Any, ops: list[int]) -> tuple[int, ...]:
    """Per result of an equation its value in the program, -1 if there is none.

    It is the last value of that shape that one of the equation's ops makes and none of them reads.
    """
    inside = {value for op in ops for value in program.operands(op)}
    candidates = [
        value
        for op in ops
        for value in program.results(op)
        if value not in inside and not program.value_is_constant[value]
    ]
    shapes = [_shape(value) for value in eqn.outvars]
    if list(map(program.dims, candidates)) == shapes:
        return tuple(candidates)
    if len(shapes) == 1:
        fitting = [value for value in candidates if program.dims(value) == shapes[0]]
        return (fitting[-1] if fitting else -1,)
    return (-1,) * len(shapes)


def _fits(program: Program, variable: Any, value: int) -> bool:
    """Do a variable of a jaxpr and a value of the program have the same shape?"""
    return _shape(variable) == program.dims(value)


def _shape(variable: Any) -> Shape:
    """Shape of a jaxpr's variable in the program, where random keys have a dim for their words."""
    shape = tuple(map(int, getattr(variable.aval, "shape", ())))
    return (*shape, *key_data_shape(variable.aval)) if is_key(variable.aval) else shape


def _operand_uses(program: Program, eqn: Any, ops: list[int]) -> tuple[tuple[int, ...], ...]:
    """Per operand the uses that read it, empty where unknown.

    Values that the equation's ops read from outside are matched with its operands in order.
    """
    inside = {value for op in ops for value in program.results(op)}
    outside: dict[int, list[int]] = {}
    for op in ops:
        for use, value in zip(program.uses(op), program.operands(op), strict=True):
            if value not in inside and not program.value_is_constant[value]:
                outside.setdefault(value, []).append(use)
    unknown: tuple[tuple[int, ...], ...] = ((),) * len(eqn.invars)
    if len(ops) == 1 and len(program.uses(ops[0])) == len(eqn.invars):
        reads = zip(program.uses(ops[0]), program.operands(ops[0]), eqn.invars, strict=True)
        return tuple((use,) if _fits(program, atom, value) else () for use, value, atom in reads)
    variables = list(dict.fromkeys(atom for atom in eqn.invars if not hasattr(atom, "val")))
    if len(variables) != len(outside):
        return unknown
    pairs = list(zip(variables, outside, strict=True))
    if not all(_fits(program, variable, value) for variable, value in pairs):
        # Some ops read operands in another order, such as gathers, which first check their indices
        pairs = [
            (variable, value)
            for variable in variables
            for value in outside
            if _fits(program, variable, value)
        ]
        if len(pairs) != len(variables) or len({value for _, value in pairs}) != len(pairs):
            return unknown
    uses_of = {variable: outside[value] for variable, value in pairs}
    return tuple(() if hasattr(atom, "val") else tuple(uses_of[atom]) for atom in eqn.invars)
