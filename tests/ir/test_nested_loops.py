"""The work to read nested loops is proportional to ops and carried values, at any depth."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.ode import odeint

from evaluation.benchmarks import nested_programs
from evaluation.benchmarks.nested_programs import nested_loops
from toast_lab.frontends import from_jax
from toast_lab.frontends.tracing import trace
from toast_lab.ir import read
from toast_lab.ir.program import Program
from toast_lab.runtime import _jax_private


def leaf(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


class TooMuch(Exception):
    """More calls than were allowed."""


def calls(work: Callable[[], Any], most: float = float("inf")) -> tuple[int, Any]:
    """(number of functions that ``work`` calls, both Python and native; its result).

    Raises:
        TooMuch: as soon as there are more than ``most`` calls.
    """
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            if count > most:
                raise TooMuch(f"more than {most:.0f} calls")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return count, result


def carried(program: Program) -> int:
    return program.kind.count("while.enter")


def read_calls(text: str, most: float = float("inf")) -> tuple[float, Program]:
    """(function calls per op of reading ``text``, the program)."""
    count, parsed = calls(lambda: read.parse(text), most)
    return count / parsed.program.n_ops, parsed.program


@pytest.mark.parametrize(
    "options", [{}, {"dead": True, "constant": True}], ids=["plain", "dead and constant"]
)
@pytest.mark.parametrize("width", [4, 16])
def test_work_grows_with_ops_however_deep_loops_nest(width: int, options: dict[str, bool]) -> None:
    alone, one = read_calls(nested_loops(1, width, **options))
    for depth in (2, 3, 4, 8, 12, 40):
        each, program = read_calls(
            nested_loops(depth, width, **options), 3 * alone * depth * one.n_ops
        )
        assert each < 1.5 * alone, (
            f"depth {depth}: {each:.0f} calls for each op, {alone:.0f} at depth 1"
        )
        assert carried(program) == depth * (width + 1)
        # Loops carry neither dead values nor constants
        assert program.kind.count("add") == width + depth


def test_work_grows_with_carried_values() -> None:
    few, narrow = read_calls(nested_loops(4, 4))
    many, program = read_calls(nested_loops(4, 64), 3 * few * 16 * narrow.n_ops)
    assert many < 1.5 * few
    assert carried(program) == 4 * 65


@pytest.mark.parametrize("depth", [30, 100])
def test_a_hundred_loops_deep(depth: int) -> None:
    program = read.parse(nested_loops(depth, 2, dead=True)).program
    assert carried(program) == depth * 3
    bodies = [r for r in program.regions if r.kind == "body"]
    assert len(bodies) == depth
    assert all((r.times, r.known) == (3.0, True) for r in bodies)


def handed_down(depth: int) -> str:
    """Nested loops in which ``depth`` loops carry the bound of the innermost one unchanged."""
    text = nested_loops(depth, 1).splitlines()
    kinds = "tensor<i32>, tensor<8x8xf32>"
    for i, line in enumerate(text):
        if "stablehlo.while(" in line:
            level = line.split("%r")[1].split(":")[0]
            source = f"%b{int(level) + 1}" if int(level) < depth else "%bound"
            line = line.replace(f"%r{level}:2", f"%r{level}:3").replace(
                ") :", f", %b{level} = {source}) :"
            )
        if line.startswith("stablehlo.return %j"):
            line = line.replace(" : ", f", %b{line.split('%j')[1].split(',')[0]} : ")
        if line.startswith("%p1 "):
            line = line.replace("%n1", "%b1")
        text[i] = line.replace(f"{kinds} cond", f"{kinds}, tensor<i32> cond")
        if line.startswith("stablehlo.return %j"):
            text[i] += ", tensor<i32>"
    # A loop that changes nothing makes the bound, so that it is no constant that could be read
    # from outside.
    made = (
        "%five = stablehlo.constant dense<5> : tensor<i32>\n"
        "%bound = stablehlo.while(%s = %five) : tensor<i32> cond {\n"
        "%no = stablehlo.compare LT, %s, %s : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "stablehlo.return %no : tensor<i1>\n} do {\n"
        "%same = stablehlo.optimization_barrier %s : tensor<i32>\nstablehlo.return %same : "
        "tensor<i32>\n}"
    )
    return "\n".join([text[0], made, *text[1:]])


def test_a_trip_count_is_found_through_any_number_of_loops() -> None:
    for depth in (3, 25):
        program = read.parse(handed_down(depth)).program
        bodies = [r for r in program.regions if r.kind == "body"]
        assert [(r.times, r.known) for r in bodies if r.known][-1] == (5.0, True), f"depth {depth}"


WEIGHTS = (leaf(8, 16), leaf(16, 8))


def neural_ode(weights: Any, y: jax.Array, times: jax.Array) -> jax.Array:
    def loss(weights: Any) -> jax.Array:
        solution = odeint(lambda y, t, w: nested_programs.field(t, y, w), y, times, weights)
        return jnp.sum(solution**2)

    return jax.grad(loss)(weights)


def adaptive(depth: int) -> Callable[..., Any]:
    return functools.partial(nested_programs.fit, depth=depth)


def test_solvers_are_read_with_as_much_work_for_each_op_as_a_plain_network() -> None:
    def plain(weights: Any, y: jax.Array) -> Any:
        for _ in range(40):
            y = nested_programs.field(jnp.float32(0), y, weights)
        return y

    def each(fn: Callable[..., Any], *args: Any, most: float = float("inf")) -> float:
        text = trace(fn, args, ()).text
        count, parsed = calls(lambda: read.parse(text), most)
        return count / parsed.program.n_ops

    most = each(plain, WEIGHTS, leaf(4, 8)) * 2
    fitted = (WEIGHTS, leaf(4, 8), leaf(5), leaf(4, 4, 8))
    assert each(neural_ode, WEIGHTS, leaf(4, 8), leaf(5), most=most * 3000) < most
    for depth in (1, 2, 3):
        assert each(adaptive(depth), *fitted, most=most * 8000) < most, f"depth {depth}"


def mixed(x: jax.Array, junk: jax.Array, scale: jax.Array) -> jax.Array:
    """A while in a scan in a conditional in a loop.

    ``junk`` is changed at every level, and no result depends on it.
    """
    mask = jnp.tril(jnp.ones((4, 4), jnp.float32))

    def innermost(c: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        h, j, n = c
        return jnp.tanh(mask @ h) * scale, jnp.cos(j), n + 1

    def scanned(c: tuple[jax.Array, jax.Array], w: jax.Array) -> tuple[Any, jax.Array]:
        h, j, _ = lax.while_loop(
            lambda s: (s[2] < 3) & (jnp.sum(s[0]) < 9), innermost, (c[0] + w, jnp.sin(c[1]), 0)
        )
        return (h, j), jnp.sum(h)

    def outer(i: Any, h: jax.Array) -> jax.Array:
        def yes(h: jax.Array) -> jax.Array:
            return lax.scan(scanned, (h, junk), jnp.arange(3, dtype=jnp.float32))[0][0]

        return lax.cond(i % 2 == 0, yes, lambda h: h * 0.5, h)

    return lax.fori_loop(0, 4, outer, x)


MIXED = (leaf(4, 4), leaf(16, 16), leaf())


def test_what_is_dead_and_what_is_constant_goes_at_every_level() -> None:
    program = from_jax(mixed, *MIXED).program
    going_round = [
        program.dims(program.results(op)[0])
        for op in program.ops()
        if program.kind[op] == "while.enter"
    ]
    assert going_round.count((4, 4)) == 3, (
        "once in each of the three loops: neither the mask nor anything else"
    )
    assert (16, 16) not in going_round
    assert not {"sine", "cosine"} & set(program.kind)
    (product,) = (op for op in program.ops() if program.kind[op] == "dot_general")
    mask = program.operands(product)[0]
    assert program.value_is_constant[mask]
    assert program.region[program.value_op[mask]] == -1, "read from outside all loops"


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (mixed, MIXED),
        (neural_ode, (WEIGHTS, leaf(4, 8), leaf(5))),
        (adaptive(2), (WEIGHTS, leaf(4, 8), leaf(5), leaf(4, 4, 8))),
    ],
    ids=["mixed", "odeint gradient", "adaptive gradient"],
)
def test_the_slimmed_program_computes_the_same(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    rng = np.random.default_rng(0)

    def values(s: jax.ShapeDtypeStruct) -> np.ndarray:
        if s.shape == (5,):
            return np.linspace(0, 1, 5, dtype=s.dtype)  # times
        return (rng.normal(size=s.shape) * 0.5).astype(s.dtype)

    given = jax.tree_util.tree_map(values, args)
    wanted = jax.tree_util.tree_leaves(jax.jit(fn)(*given))
    device = jax.devices("cpu")[0]
    compiled = _jax_private.compile_module(from_jax(fn, *args).stablehlo, [device])
    arrays = [jax.device_put(a, device) for a in jax.tree_util.tree_leaves(given)]
    found = [np.asarray(parts[0]) for parts in _jax_private.execute(compiled, arrays)]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
