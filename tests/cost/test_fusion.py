"""Fusion: which values are written to memory and how often they are read.

The rules one by one, prices computed by hand, and properties of random programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.test_fold import check
from tests.helpers import plan, traced
from tests.machines import plain
from toast_lab.cost.problem import Problem, price
from toast_lab.ir import program as p
from toast_lab.machines.machine_model import Machine
from toast_lab.pipeline import replicated
from toast_lab.sharding.state import State, legal_rows
from toast_lab.sharding.step_kinds import SLICE

S = jax.ShapeDtypeStruct
COMPILERS = ("cpu", "gpu", "tpu")
# Memory traffic decides the time (1 byte/s); peak FLOP/s are out of reach.
PLAIN = dataclasses.replace(plain.PLAIN, flops={"f32": 1e18}, memory_bytes_per_s=1.0)
SQUARE = S((64, 64), jnp.float32)
SIZE = 4 * 64 * 64


def machine(compiler: str, **changes: Any) -> Machine:
    return dataclasses.replace(PLAIN, compiler=compiler, **changes)


class Fused:
    """A function as a compiler fuses it.

    Ops are named by kind, with an index where there are several of a kind.
    """

    def __init__(self, compiler: str, fn: Callable[..., Any], *args: Any, **options: Any) -> None:
        self.problem = Problem(traced(fn, *args, **options), {"a": 2}, machine(compiler))
        self.program = self.problem.analysis.program
        self.facts = self.problem.prices.inputs.facts
        self.memory = self.problem.prices.inputs.memory

    def ops(self, kind: str) -> list[int]:
        return [op for op in self.program.ops() if self.program.kind[op] == kind]

    def written(self, kind: str, n: int = 0) -> bool:
        (value,) = self.program.results(self.ops(kind)[n])
        return bool(self.facts.value.written[value])

    def reads(self, kind: str, n: int = 0) -> list[float]:
        op = self.ops(kind)[n]
        return self.facts.use.reads[
            self.program.use_ptr[op] : self.program.use_ptr[op + 1]
        ].tolist()

    def reads_of_argument(self, argument: int) -> float:
        """Return how often an argument is read in total."""
        return float(self.facts.use.reads[self.facts.root == argument].sum())

    def starts(self) -> list[str]:
        return [
            self.program.kind[op] for op in self.program.ops() if self.facts.op.starts_kernel[op]
        ]

    def runs_at(self, kind: str) -> str:
        return self.program.kind[self.memory.runs_at[self.ops(kind)[0]]]

    def ends_at(self, kind: str) -> str:
        return self.program.kind[self.memory.ends_at[self.ops(kind)[0]]]

    def moved_bytes(self) -> float:
        return sum(row.moved_bytes for row in price(self.problem, replicated(self.problem)).ops)


def fixed(x: jax.Array) -> jax.Array:
    """Make a value that is neither an argument nor soft: written, and dead after its last use."""
    return jax.lax.sort(x)


# -- soft values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_soft_value_with_one_consumer_is_not_written(compiler):
    fused = Fused(compiler, lambda x: jnp.sin(jnp.cos(x)), SQUARE)
    assert (fused.written("cosine"), fused.written("sine")) == (False, True)
    assert (fused.reads("cosine"), fused.reads("sine")) == ([1.0], [0.0])
    assert fused.starts() == ["sine"]
    assert fused.runs_at("cosine") == "sine"


@pytest.mark.parametrize(
    ("equation", "shape", "on_tpu"),
    [
        ("bd,df->bf", (64, 32), False),
        ("bhk,hkd->bd", (4, 16, 64), False),
        ("bd,dhk->bhk", (64, 4, 16), True),  # its columns are two dims
        ("bgk,btgk->btg", (8, 32, 4, 16), True),  # its batch dims do not come first
    ],
)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_slice_picked_in_a_loop_is_read_where_it_lies(compiler, equation, shape, on_tpu):
    left = equation.partition(",")[0]
    names = dict(zip(equation.partition(",")[2].partition("->")[0], shape, strict=True))
    left_shape = tuple(names.get(letter, 8) for letter in left)

    def fn(x, ws):
        def layer(total, w):
            return total + jnp.einsum(equation, x, w).sum(), None

        return jax.lax.scan(layer, jnp.zeros(()), ws)[0]

    fused = Fused(compiler, fn, S(left_shape, jnp.float32), S((3, *shape), jnp.float32))
    assert fused.written("dynamic_slice") == (on_tpu if compiler == "tpu" else True)


@pytest.mark.parametrize(
    ("compiler", "written", "kernels"), [("cpu", True, 2), ("gpu", False, 1), ("tpu", False, 1)]
)
def test_several_consumers_compute_a_soft_value_again_but_on_cpus(compiler, written, kernels):
    def fn(x):
        y = jnp.exp(x)
        return jnp.sin(y), jnp.tanh(y)

    fused = Fused(compiler, fn, SQUARE)
    assert fused.written("exponential") == written
    # The two kernels that compute it become one, which reads its source once.
    assert fused.reads("exponential") == [1.0 if written else float(kernels)]
    assert fused.reads("sine") == fused.reads("tanh") == [float(written)]
    assert fused.moved_bytes() == (6 if written else 2 + kernels) * SIZE
    # On a TPU the kernel runs at the first of the two
    kernel = "sine" if compiler == "tpu" else "tanh"
    assert fused.runs_at("exponential") == ("exponential" if written else kernel)


# name: (a function of two values that die after it, is its result written?)
ONCE_MORE = {
    "of one value of its size": (lambda a, b: jnp.exp(a), False),
    "of two values of its size": (lambda a, b: a + b, True),
    "a cast to half the size": (lambda a, b: a.astype(jnp.bfloat16), True),
    "a cast to twice the size": (
        lambda a, b: a.astype(jnp.bfloat16) + b[:, :1].astype(jnp.bfloat16),
        True,
    ),
    "of a value and a row": (lambda a, b: a[:32] * 2.0, True),
}


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
@pytest.mark.parametrize("case", ONCE_MORE)
def test_a_value_is_written_if_its_sources_are_larger_and_die(case, compiler):
    make, written = ONCE_MORE[case]

    def fn(x, w):
        y = jax.lax.neg(make(fixed(x), fixed(w)))
        return jnp.sin(y), jnp.tanh(y)

    assert Fused(compiler, fn, SQUARE, SQUARE).written("negate") == written


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
def test_the_cast_up_of_a_half_sized_value_is_computed_again(compiler):
    def fn(x):
        y = fixed(x).astype(jnp.float32)
        return jnp.sin(y), jnp.tanh(y)

    assert not Fused(compiler, fn, S((64, 64), jnp.bfloat16)).written("convert")


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
@pytest.mark.parametrize("kept", ["both", "one", "none"])
def test_sources_that_live_as_long_cost_nothing(compiler, kept):
    """A sum of two values is written only if both would have to be kept for it.

    If at least one is kept anyway, computing it again is cheaper.
    """

    def fn(x, w):
        a, b = fixed(x), fixed(w)
        y = a + b
        results = jnp.sin(y), jnp.tanh(y)
        return results, {"both": (jnp.exp(a), jnp.exp(b)), "one": (jnp.exp(a),), "none": ()}[kept]

    assert Fused(compiler, fn, SQUARE, SQUARE).written("add") == (kept == "none")


@pytest.mark.parametrize(("compiler", "written"), [("cpu", True), ("gpu", False), ("tpu", False)])
def test_a_normalised_activation_is_computed_again(compiler, written):
    def fn(x):
        h = fixed(x)
        y = h * jax.lax.rsqrt(jnp.mean(h * h, axis=1, keepdims=True))
        return jnp.sin(y), jnp.tanh(y), h

    fused = Fused(compiler, fn, SQUARE)
    assert fused.written("multiply", 1) == written


@pytest.mark.parametrize("compiler", COMPILERS)
def test_fusions_do_not_grow_without_end(compiler):
    row = S((64,), jnp.float32)

    def fn(*xs):
        y = jax.lax.neg(sum(xs[1:], xs[0]))
        return jnp.sin(y), jnp.tanh(y)

    assert Fused(compiler, fn, SQUARE, *[row] * 7).written("negate") == (compiler == "cpu")
    assert Fused(compiler, fn, SQUARE, *[row] * 8).written("negate")


def _in_a_loop(y, i):
    return jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), y)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("n_sources", "n_consumers", "written"), [(2, 3, False), (2, 4, True), (5, 2, True)]
)
def test_what_takes_more_reads_than_it_saves_is_written(n_sources, n_consumers, written, compiler):
    """Too many reads make a value written, even if all its sources are arguments.

    Arguments are in memory anyway, but every consumer would have to read them all.
    """

    def fn(*xs):
        y = jax.lax.neg(sum(xs[1:], xs[0]))
        return [f(y) for f in (jnp.sin, jnp.tanh, jnp.exp, jnp.cos)[:n_consumers]]

    fused = Fused(compiler, fn, *[SQUARE] * n_sources)
    assert fused.written("negate") == (written or compiler == "cpu")


@pytest.mark.parametrize("compiler", ["gpu", "tpu"])
def test_what_a_consumer_reads_anyway_is_no_further_read(compiler):
    def fn(a, b):
        y = jax.lax.neg(a + b)
        return y * a, y - a, jnp.maximum(y, a), jnp.minimum(y, a)

    fused = Fused(compiler, fn, SQUARE, SQUARE)
    assert not fused.written("negate")
    # jax-cuda12-pjrt 0.10.2 and libtpu 0.0.42.1 make one kernel with four results
    assert fused.moved_bytes() == (2 + 4) * SIZE


WRITTEN_FOR = {
    "a result": lambda y, i: (y, jnp.sin(y)),
    "a result seen through a view": lambda y, i: (y.reshape(-1), jnp.sin(y)),
    "a gather": lambda y, i: y[i],
    "a scatter": lambda y, i: y.at[i].add(1.0),
    "an update": lambda y, i: jax.lax.dynamic_update_slice(y, jnp.ones((1, 64)), (i[0], i[1])),
    "a sort": lambda y, i: jax.lax.sort(y),
    "a loop": _in_a_loop,
    "a branch": lambda y, i: jax.lax.cond(i[0] > 0, lambda: jnp.sin(y), lambda: jnp.tanh(y)),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", WRITTEN_FOR)
def test_what_must_be_in_memory_is_written(case, compiler):
    fused = Fused(
        compiler, lambda x, i: WRITTEN_FOR[case](jnp.cos(x), i), SQUARE, S((5,), jnp.int32)
    )
    assert fused.written("cosine")
    assert "cosine" in fused.starts()


# -- products --------------------------------------------------------------------------------------


def _convolution(x, w):
    return jax.lax.conv_general_dilated(
        x[None], w[None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


@pytest.mark.parametrize("product", [jnp.matmul, _convolution])
@pytest.mark.parametrize(("compiler", "written"), [("cpu", True), ("gpu", True), ("tpu", False)])
def test_inputs_are_computed_on_the_way_into_a_product_on_tpus(product, compiler, written):
    fused = Fused(compiler, lambda x, w: product(jnp.cos(x), w), SQUARE, SQUARE)
    assert fused.written("cosine") == written
    kind = "dot_general" if product is jnp.matmul else "convolution"
    # The product reads the size of the value; the value's own source is not read as well.
    assert fused.reads(kind) == [1.0, 1.0]
    assert fused.reads("cosine") == [float(written)]
    assert fused.moved_bytes() == (5 if written else 3) * SIZE


@pytest.mark.parametrize(("compiler", "written"), [("cpu", True), ("gpu", True), ("tpu", False)])
def test_an_elementwise_op_is_computed_on_the_way_out_of_a_product_on_tpus(compiler, written):
    fused = Fused(compiler, lambda x, w: jnp.tanh(x @ w), SQUARE, SQUARE)
    assert fused.written("dot_general") == written
    assert fused.written("tanh")
    assert fused.starts() == (["dot_general", "tanh"] if written else ["dot_general"])
    assert fused.runs_at("dot_general") == "dot_general"
    assert fused.ends_at("dot_general") == ("dot_general" if written else "tanh")
    assert fused.reads("tanh") == [float(written)]
    assert fused.moved_bytes() == (5 if written else 3) * SIZE


def test_a_product_is_written_as_the_end_of_a_chain():
    fused = Fused(
        "tpu", lambda x, w, b: jnp.sin(jnp.tanh(x @ w) + b), SQUARE, SQUARE, S((64,), jnp.float32)
    )
    assert [fused.written(k) for k in ("dot_general", "tanh", "add", "sine")] == [
        False,
        False,
        False,
        True,
    ]
    assert fused.starts() == ["dot_general"]
    assert fused.ends_at("dot_general") == "sine"
    assert fused.moved_bytes() == 3 * SIZE + 4 * 64


def test_one_op_is_the_end_of_one_product():
    fused = Fused("tpu", lambda x, w, u: x @ w + x @ u, SQUARE, SQUARE, SQUARE)
    assert sorted(fused.written("dot_general", n) for n in range(2)) == [False, True]
    # two products, one written as the sum, the other written and read
    assert fused.moved_bytes() == (2 + 1 + 2 + 1 + 1) * SIZE


@pytest.mark.parametrize(
    "use",
    [
        lambda y: (y, jnp.sin(y)),  # a result
        lambda y: fixed(y),
        lambda y: jnp.sin(y[:8]),  # an eighth of it
        lambda y: jax.lax.cond(y[0, 0] > 0, lambda: jnp.sin(y), lambda: y),
    ],
)
def test_other_products_are_written(use):
    fused = Fused("tpu", lambda x, w: use(x @ w), SQUARE, SQUARE)
    assert fused.written("dot_general")
    assert fused.runs_at("dot_general") == "dot_general"


# name: (a function of a product and a third value, squares read and written besides)
COMPUTED_ON_THE_WAY_OUT = {
    "a chain": (lambda y, b: jnp.tanh(y + b), 2),
    "several results": (lambda y, b: (jnp.sin(y), jnp.tanh(y)), 2),
    "a sum": (lambda y, b: jnp.sum(y, axis=1), 1 / 64),
    "a result and its sum": (lambda y, b: (y + b, jnp.sum(y + b, axis=0)), 2 + 1 / 64),
    "what meets again": (lambda y, b: jnp.sin(y) * jnp.cos(y) + b, 2),
    "an update with its moment": (lambda y, b: (b - 0.1 * y, b * 0.9 + y), 3),
}


@pytest.mark.parametrize("case", COMPUTED_ON_THE_WAY_OUT)
def test_what_follows_a_product_is_computed_in_its_kernel(case):
    use, beside = COMPUTED_ON_THE_WAY_OUT[case]
    fused = Fused("tpu", lambda x, w, b: use(x @ w, b), SQUARE, SQUARE, SQUARE)
    assert not fused.written("dot_general")
    assert fused.starts() == ["dot_general"]
    (priced,) = (row for row in price(fused.problem, replicated(fused.problem)).ops if row.time_s)
    assert (priced.kind, priced.moved_bytes) == ("dot_general", (2 + beside) * SIZE)


def test_what_needs_a_later_value_is_not_computed_in_a_products_kernel():
    fused = Fused("tpu", lambda x, w, b: jnp.tanh(x @ w) * fixed(b), SQUARE, SQUARE, SQUARE)
    assert fused.written("tanh")  # on the way out; the sort comes after the product
    assert fused.starts() == ["dot_general", "sort", "multiply"]


def test_a_smaller_value_on_the_way_is_what_is_written():
    """Only the bfloat16 activation is written, as backward passes compute the rest from it."""

    def fn(x, w):
        y = jnp.tanh(x @ w).astype(jnp.bfloat16)
        return fixed(y), jnp.sum(jnp.exp(y.astype(jnp.float32)), axis=0)

    fused = Fused("tpu", fn, SQUARE, SQUARE)
    assert fused.written("convert")
    assert not fused.written("tanh")


@pytest.mark.parametrize(
    "use",
    [
        lambda y: y @ jnp.ones((64, 64)),
        lambda y: (y @ y, jnp.exp(y)),
    ],
)
def test_what_a_product_is_written_as_is_not_computed_again(use):
    fused = Fused("tpu", lambda x, w: use(jnp.tanh(x @ w)), SQUARE, SQUARE)
    assert fused.written("tanh")
    assert not fused.written("dot_general")


def _if(c, y, x):
    return jax.lax.cond(c, lambda: jnp.sin(y), lambda: x)


def test_a_result_behind_a_product_is_written_though_no_op_reads_it():
    """Of two equal ops on a product here, one is a result and the other feeds another product."""

    def step(x):
        h = x @ x
        one, other = jax.lax.sin(h), jax.lax.sin(h)
        return one, other @ other

    fused = Fused("tpu", step, SQUARE)
    assert fused.written("dot_general")
    assert fused.written("sine")
    assert not fused.written("sine", 1)


def test_a_product_outside_a_branch_is_not_written_as_what_is_inside():
    def fn(x, w, c):
        y = x @ w

        def inside():
            t = jnp.tanh(y)
            return jnp.sin(t), jnp.exp(t)

        return jax.lax.cond(c, inside, lambda: (x, x))

    fused = Fused("tpu", fn, SQUARE, SQUARE, S((), bool))
    assert fused.written("dot_general")
    assert not fused.written("tanh")  # computed again from the product, like any soft value
    assert fused.reads("tanh") == [1.0]  # by both ops, which are one kernel
    once = Fused("tpu", lambda x, w, c: _if(c, x @ w, x), SQUARE, SQUARE, S((), bool))
    assert once.written("dot_general")
    assert once.runs_at("dot_general") == "dot_general"
    assert once.starts() == ["dot_general", "sine"]


def test_a_product_reads_its_operands_where_it_stands():
    """Its operands are read at the product, even if the op computed on its way out comes late."""

    def fn(x, w, b):
        early = fixed(b)
        y = jnp.cos(fixed(x)) @ w
        return y + early

    fused = Fused("tpu", fn, SQUARE, SQUARE, SQUARE)
    assert fused.runs_at("cosine") == fused.runs_at("dot_general") == "dot_general"
    assert fused.ends_at("cosine") == fused.ends_at("dot_general") == "add"


# -- reads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sin(x) + jnp.cos(x) * x,
        lambda x: jnp.sin(x) + jnp.cos(x.reshape(-1)).reshape(64, 64),
        lambda x: jnp.sum(x * x, axis=0),
        lambda x: x * x,
        lambda x: jnp.sin(jnp.sin(x) * jnp.sin(x) + x),
    ],
)
def test_a_kernel_reads_a_source_once_however_many_of_its_ops_look_at_it(fn, compiler):
    fused = Fused(compiler, fn, SQUARE)
    assert len(fused.starts()) == 1
    assert fused.reads_of_argument(0) == 1.0


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_product_reads_both_its_operands(compiler):
    assert Fused(compiler, lambda x: x @ x, SQUARE).reads("dot_general") == [1.0, 1.0]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_each_kernel_reads_what_it_computes_again(compiler):
    def fn(x):
        y = jnp.cos(x) * 2.0
        return jnp.sin(y) + x, jnp.sum(y), jnp.tanh(y)

    # On CPUs y and the sum with x read it; elsewhere all is one kernel.
    reads = {"cpu": 2.0, "gpu": 1.0, "tpu": 1.0}
    assert Fused(compiler, fn, SQUARE).reads_of_argument(0) == reads[compiler]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("donated", [False, True])
def test_updates_in_place_read_nothing_of_what_they_update(compiler, donated):
    def fn(x, row, i):
        return jax.lax.dynamic_update_slice(x, row, (i, i))

    args = SQUARE, S((1, 64), jnp.float32), S((), jnp.int32)
    fused = Fused(compiler, fn, *args, donate_argnums=0 if donated else ())
    kind = "dynamic_update_slice"
    assert fused.reads(kind)[:2] == [0.0 if donated else 1.0, 1.0]
    # In place, the row is read and written; otherwise the whole value too. Indices have 4 bytes
    # each.
    expected = 2 * 256 if donated else 2 * SIZE + 256
    assert fused.moved_bytes() == pytest.approx(expected, abs=32)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_constants_are_neither_written_nor_read(compiler):
    def fn(x):
        return x + jnp.sin(jnp.arange(64, dtype=jnp.float32)) * 2.0

    fused = Fused(compiler, fn, SQUARE)
    assert not fused.written("sine")
    assert fused.facts.use.reads.sum() == 1.0
    assert fused.moved_bytes() == 2 * SIZE


@pytest.mark.parametrize("compiler", COMPILERS)
def test_slices_and_gathers_read_no_more_than_they_deliver(compiler):
    assert Fused(compiler, lambda x: x[:8], SQUARE).moved_bytes() == 2 * 8 * 256
    assert Fused(compiler, lambda x: jnp.sin(x[:8]), SQUARE).moved_bytes() == 2 * 8 * 256
    assert Fused(compiler, lambda x: x[:8] + 0 * x[8:16], SQUARE).moved_bytes() == 2 * 8 * 256


@pytest.mark.parametrize("compiler", COMPILERS)
def test_only_kernels_take_time_to_start(compiler):
    def fn(x, w):
        return jnp.tanh(jnp.sin(x) @ w) + 1.0

    problem = Problem(
        traced(fn, SQUARE, SQUARE),
        {"a": 2},
        machine(compiler, memory_bytes_per_s=1e30, op_overhead_s=1.0),
    )
    kernels = {"cpu": 3, "gpu": 3, "tpu": 1}[compiler]
    assert price(problem, replicated(problem)).time_s == pytest.approx(kernels)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_soft_op_computes_the_slice_alone_that_is_kept(compiler):
    """Where a result is kept in halves, an elementwise op computes only the kept half.

    A sort has to make all of it first.
    """
    for make, passing in ((jnp.sin, 0.0), (fixed, 1.0)):
        problem = Problem(traced(make, SQUARE), {"a": 2}, machine(compiler))
        unsharded = replicated(problem)
        value_dim = np.array(unsharded.value_dim)
        value_dim[problem.analysis.program.outputs[0], 0] = 0
        totals = problem.pricer().totals(unsharded.op_factor, value_dim)
        assert (totals.steps.kind[: totals.n_steps] == SLICE).sum() == 1
        assert totals.peak_bytes == (1 + 0.5 + passing) * SIZE


# -- properties ------------------------------------------------------------------------------------

UNARY = (
    jnp.sin,
    jnp.tanh,
    lambda x: x + 1.0,
    lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    jnp.transpose,
)
BINARY = (jnp.add, jnp.multiply, jnp.matmul, jnp.matmul)
REDUCE = (
    lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True)),
    lambda x: jnp.exp(x - jnp.max(x, axis=1, keepdims=True)),
    lambda x: jnp.broadcast_to(jnp.sum(x, axis=0), x.shape),
)
NUMBER = st.integers(0, 99)
LINE = st.tuples(st.sampled_from(("unary", "binary", "binary", "reduce")), NUMBER, NUMBER, NUMBER)


@st.composite
def programs(draw):
    """Draw a function of square matrices, and its arguments.

    It consists of elementwise ops, products and reductions.
    """
    lines, n_arguments = draw(st.lists(LINE, min_size=3, max_size=20)), draw(st.integers(1, 5))
    results = draw(st.sets(st.integers(0, len(lines) - 1), max_size=4)) | {len(lines) - 1}

    def fn(*xs):
        values = list(xs)
        for kind, which, left, right in lines:
            a, b = (values[-1 - n % len(values)] for n in (left, right))
            if kind == "binary":
                values.append(BINARY[which % len(BINARY)](a, b))
            else:
                ops = UNARY if kind == "unary" else REDUCE
                values.append(ops[which % len(ops)](a))
        return tuple(values[len(xs) + n] for n in sorted(results))

    return fn, [S((8, 8), jnp.float32)] * n_arguments


def sources(found: Fused, op: int) -> tuple[set[int], set[int]]:
    """Return the values that a kernel reads from memory, and the ops computed inside it.

    Both are found by following its operands upwards.
    """
    program, written = found.program, found.facts.value.written
    reached: set[int] = set()
    inside = {op}
    waiting = [op]
    while waiting:
        current = waiting.pop()
        for use in range(program.use_ptr[current], program.use_ptr[current + 1]):
            source = int(found.facts.root[use])
            maker = int(program.value_op[source])
            if program.value_is_constant[source]:
                continue
            if written[source]:
                reached.add(source)
                continue
            if maker not in inside:
                inside.add(maker)
                waiting.append(maker)
    return reached, inside


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(COMPILERS))
def test_whatever_a_kernel_needs_is_in_memory_or_computed_inside_it(made, compiler):
    fn, args = made
    fused = Fused(compiler, fn, *args)
    program, facts = fused.program, fused.facts
    expected = np.zeros(program.n_values)
    for op in program.ops():
        if facts.op.free[op] or (
            fused.memory.ends_at[op] != op and program.op_class[op] not in (p.DOT, p.CONVOLUTION)
        ):
            continue
        reached, inside = sources(fused, op)
        assert all(facts.op.op_class[o] != p.ARGUMENT for o in inside)
        # An op inside is soft, or is the product whose kernel this is.
        assert all(
            o == op or facts.op.computes_kept_slice[o] or op <= fused.memory.ends_at[o] != o
            for o in inside
        )
        if program.op_class[op] in (p.DOT, p.CONVOLUTION):
            for use in range(program.use_ptr[op], program.use_ptr[op + 1]):
                expected[facts.root[use]] += 1
        else:
            stop = {o for o in inside if program.op_class[o] in (p.DOT, p.CONVOLUTION)}
            assert len(stop) <= 1
            for source in reached if not stop else without(fused, op, stop):
                expected[source] += 1
    counted = np.zeros(program.n_values)
    np.add.at(counted, facts.root, facts.use.reads)
    if compiler != "cpu":  # kernels may be shared
        assert (counted <= expected).all()
        for op in np.flatnonzero(
            facts.op.starts_kernel & (facts.op.op_class == p.ELEMENTWISE)
        ).tolist():
            kernel, _ = sources(fused, op)
            assert not kernel or counted[list(kernel)].max() > 0.0
    else:
        np.testing.assert_array_equal(counted, expected)


def without(found: Fused, op: int, stop: set[int]) -> set[int]:
    """Return the values that a kernel reads, except those that its products read."""
    program, written = found.program, found.facts.value.written
    reached: set[int] = set()
    seen = {op, *stop}
    waiting = [op]
    while waiting:
        current = waiting.pop()
        for use in range(program.use_ptr[current], program.use_ptr[current + 1]):
            source = int(found.facts.root[use])
            maker = int(program.value_op[source])
            if written[source]:
                reached.add(source)
            elif maker not in seen and not program.value_is_constant[source]:
                seen.add(maker)
                waiting.append(maker)
    return reached


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(COMPILERS))
def test_fusing_never_moves_more_bytes_than_running_op_by_op(made, compiler):
    fn, args = made
    fused = Fused(compiler, fn, *args)
    program, one_by_one = fused.program, 0
    for op in program.ops():
        if not fused.facts.op.free[op]:
            read = {
                int(fused.facts.root[u])
                for u in range(program.use_ptr[op], program.use_ptr[op + 1])
            }
            touched = [*read, *program.results(op)]
            if program.op_class[op] in (p.DOT, p.CONVOLUTION):
                touched = [*program.operands(op), *program.results(op)]
            one_by_one += sum(
                program.nbytes(v) for v in touched if not program.value_is_constant[v]
            )
    assert 0 < fused.moved_bytes() <= one_by_one


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(COMPILERS), st.lists(NUMBER, max_size=4))
def test_peaks_hold_the_arguments_and_folded_prices_are_the_whole_programs(made, compiler, choices):
    fn, args = made
    problem = Problem(traced(fn, *args), {"a": 2, "b": 2}, machine(compiler, op_overhead_s=1.0))
    pricer, state = problem.pricer(), State(problem.space)
    cost = price(problem, replicated(problem))
    assert cost.peak_bytes >= len(args) * 4 * 64 > 0
    check(pricer, state)
    for choice in choices:
        rows = legal_rows(state)
        if len(rows):
            state.apply_row(*map(int, rows[choice % len(rows)]))
            check(pricer, state)


def test_plans_are_priced_as_fused():
    """A sharded plan is priced as fused: each device reads and writes its half once."""
    problem = Problem(traced(lambda x: jnp.sin(jnp.cos(x)), SQUARE), {"a": 2}, machine("tpu"))
    cost = price(problem, plan(problem, ("x.0", "a")))
    assert [row.moved_bytes for row in cost.ops] == [SIZE / 2, SIZE / 2]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_product_that_sums_over_nothing_is_an_elementwise_one(compiler):
    """XLA turns it into a multiplication, which is computed inside its consumers."""
    weights, scores = S((16,), jnp.float32), S((4, 16, 32), jnp.float32)
    fused = Fused(compiler, lambda w, x: jnp.sin(jnp.einsum("h,bhk->bhk", w, x)), weights, scores)
    (product,) = fused.ops("dot_general")
    assert fused.program.op_class[product] == p.ELEMENTWISE
    assert not fused.written("dot_general")


def _picked(x, labels):
    return jax.grad(lambda x: jnp.take_along_axis(jnp.sin(x), labels, -1).sum())(x)


def _looked_up(x, ids):
    return jax.grad(lambda x: jnp.sin(x[ids]).sum())(x)


@pytest.mark.parametrize(
    ("compiler", "gradient", "places", "written"),
    [
        ("tpu", _picked, (64, 1), False),
        ("gpu", _picked, (64, 1), True),
        ("tpu", _looked_up, (128,), True),
    ],
)
def test_the_gradient_of_an_element_a_row_is_a_comparison_on_tpus(
    compiler, gradient, places, written
):
    """It is computed inside its consumer; the gradient of a loss over labels is an example."""
    x, indices = S((64, 512), jnp.float32), S(places, jnp.int32)
    fused = Fused(compiler, lambda x, places: gradient(x, places) * jnp.cos(x), x, indices)
    assert fused.written("scatter") == written


def test_a_comparison_made_whole_is_written_for_each_part_that_is_taken() -> None:
    """libtpu never computes only a part: 1.4 ms of a GPT-2 step, and as much in its reader."""

    def gradient(x: jax.Array, places: jax.Array) -> jax.Array:
        picked = jax.grad(lambda x: jnp.take_along_axis(x, places, -1).sum())(x)
        return -picked + jnp.cos(x)

    fused = Fused("tpu", gradient, S((64, 512), jnp.float32), S((64, 1), jnp.int32))
    problem, program = fused.problem, fused.program
    compared_values = [program.results(fused.ops(kind)[0])[0] for kind in ("scatter", "negate")]
    assert np.flatnonzero(fused.facts.value.compared).tolist() == compared_values
    cut = plan(problem, ("x_columns", "a"))
    op_factor, value_dim = cut.op_factor.copy(), cut.value_dim.copy()
    for value in compared_values:
        assert value_dim[value].tolist() == [1]
        op_factor[program.value_op[value]], value_dim[value] = -1, -1
    totals = problem.pricer().totals
    more_s = totals(op_factor, value_dim).time_s - totals(cut.op_factor, cut.value_dim).time_s
    assert more_s == pytest.approx(4 * 64 * 512)


ROWS = S((64, 32), jnp.float32)


def softmax(x: jax.Array) -> jax.Array:
    spread = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))
    return spread / jnp.sum(spread, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("compiler", "reads", "kernels"), [("gpu", 1.0, 1), ("tpu", 3.0, 3), ("cpu", 2.0, 4)]
)
def test_a_gpu_goes_over_a_row_that_it_holds(compiler: str, reads: float, kernels: int) -> None:
    """A softmax of short rows reads them once and writes nothing in between."""
    fused = Fused(compiler, softmax, ROWS)
    assert fused.reads_of_argument(0) == reads
    assert len(fused.starts()) == kernels
    assert fused.written("reduce") == fused.written("reduce", 1) == (compiler != "gpu")


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x - jnp.max(x, axis=0, keepdims=True), "columns lie apart"),
        (lambda x: (jnp.max(x, axis=1), x - jnp.max(x, axis=1, keepdims=True)), "a result, too"),
        (lambda x: jnp.sum(x, axis=1) * 2, "nothing goes over the row again"),
        (lambda x: x.T * jnp.sum(x, axis=1), "the row is read as a column"),
        (lambda x: jnp.sum(jnp.exp(x), axis=1)[:, None] @ jnp.ones((1, 8)), "a product reads it"),
    ],
)
def test_sums_that_a_gpu_writes(fn: Callable[..., Any], why: str) -> None:
    fused = Fused("gpu", fn, ROWS)
    assert fused.written("reduce"), why


def test_a_row_may_be_too_long_to_be_held() -> None:
    for length, written in ((16384, False), (16385, True)):
        fused = Fused("gpu", softmax, S((2, length), jnp.float32))
        assert fused.written("reduce") is written


# -- reshapes and one-hot matrices on TPUs ---------------------------------------------------------


@pytest.mark.parametrize(("classes", "read"), [(256, 1.0 / 256), (32, 1.0)])
def test_a_one_hot_matrix_is_read_as_the_places_that_it_is_made_of(
    classes: int, read: float
) -> None:
    def chosen(places: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(places, classes, dtype=jnp.float32).T @ x

    fused = Fused("tpu", chosen, S((512,), jnp.int32), S((512, 128), jnp.float32))
    assert not fused.written("convert")
    assert fused.reads("dot_general") == [pytest.approx(read), 1.0]
