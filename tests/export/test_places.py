"""Places of constraints in the source.

Every op has its equation, and rules find the equations that they were made for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from tests.helpers import SMALL
from toast_lab.errors import InvalidPlan
from toast_lab.export import constrained, places
from toast_lab.export.constrained import EquationPlace, EquationSelection, PinRule
from toast_lab.export.drift import drifted, recorded
from toast_lab.export.minimal import _which, candidates
from toast_lab.export.patch import _with_imports
from toast_lab.export.python import _folded

MESH = {"data": 2, "model": 2}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("attention", {}),
        ("transformer", {**SMALL, "layers": 2, "mode": "train"}),
        ("transformer", {**SMALL, "layers": 2, "mode": "train", "scan": True, "remat": True}),
    ],
)
def test_every_op_that_is_not_constant_has_its_equation(name: str, sizes: dict[str, Any]) -> None:
    model = tl.load(name, **sizes)
    program = model.program
    source = places.source_of(program, model)
    assert source is not None
    covered = {op for e in source.equations for op in e.ops}
    real = {
        op
        for op in program.ops()
        if not all(program.value_is_constant[v] for v in program.results(op))
        and not program.kind[op].startswith(("while.", "optimization_barrier"))
    }
    if not sizes.get("scan"):
        assert real <= covered
    assert {program.kind[op] for op in real - covered} <= {
        "dynamic_slice",
        "reshape",
        "broadcast_in_dim",
        "dynamic_update_slice",
        "compare",
        "add",
        "subtract",
    }, "only what JAX's loops are made of"
    for e in source.equations:
        for value in e.results:
            assert value < 0 or int(program.value_op[value]) in e.ops
        for uses in e.uses:
            assert len({int(program.use_value[u]) for u in uses}) <= 1
            assert all(
                program.use_ptr[e.ops[0]] <= u < program.use_ptr[max(e.ops) + 1] for u in uses
            )
    assert len(source.argument_keys[0]) == len(jax.tree_util.tree_leaves(model.function.given[0]))


def test_an_equation_that_is_not_in_the_program_counts_as_an_occurrence() -> None:
    """Constants' equations are not listed here, but the walk that applies rules passes them."""

    def scaled(v: Any) -> Any:
        return v * 2.0

    def fn(x: Any) -> Any:
        return scaled(jnp.arange(8.0)) + scaled(x)

    model = tl.from_jax(fn, jnp.ones(8))
    (product,) = [
        e for e in places.source_of(model.program, model).equations if e.place.primitive == "mul"
    ]
    assert (product.number, product.place_count) == (1, 2)
    assert product.place.source.count(" < ") == 1
    assert product.frames[0][1] == scaled.__code__.co_firstlineno + 1


def test_equations_of_a_line_are_counted_anew_each_time_that_it_runs() -> None:
    def scaled(v: Any) -> Any:
        return jnp.sin(v * 2.0 * v)

    def fn(x: Any) -> Any:
        for _ in range(3):
            x = scaled(x)
            x = x + 1.0
        return x

    model = tl.from_jax(fn, jnp.ones(8))
    products = [
        e for e in places.source_of(model.program, model).equations if e.place.primitive == "mul"
    ]
    assert [e.in_pass for e in products] == [0, 1] * 3
    assert [e.number for e in products] == list(range(6))
    assert {(e.place_count, e.pass_count) for e in products} == {(6, 3)}
    assert _which(products) is None
    assert _which(products[1::2]) == EquationSelection(frozenset([1]), in_pass=True)
    assert _which(products[:3]) == EquationSelection(frozenset([0, 1, 2]), in_pass=False)


def test_numbers_in_the_source_are_never_pinned() -> None:
    """A plan may split a tensor that a number is broadcast to; the number itself has no dims."""

    def fn(x: Any) -> Any:
        return jnp.maximum(x, 0.5) * 2.0

    model = tl.from_jax(fn, jnp.ones((8, 8)))
    program = model.program
    for e in places.source_of(program, model).equations:
        assert e.uses == ((0,), ()) or e.uses[1] == ()
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    plan = tl.Plan.from_specs(problem, {"x": ("data", "model")})
    rows = candidates(plan, places.source_of(program, model).equations)
    assert {t.side for row, _ in rows for t in row.targets} == {"result"}


def test_rules_reach_into_loops_branches_and_inner_jits(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr(
        constrained.Walk,
        "pin",
        lambda self, value, spec: pinned.append((value.shape, spec)) or value,
    )

    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.sin(x)

    def fn(x: Any) -> Any:
        y = jax.lax.fori_loop(0, 3, lambda _, c: jnp.cos(c), x)
        y = jax.lax.cond(x[0] > 0, lambda v: jnp.tanh(v), lambda v: v, y)
        return inner(jax.checkpoint(jnp.exp)(y))

    line = fn.__code__.co_firstlineno
    file_name = Path(__file__).name
    walk = constrained.Walk((), None)
    closed = jax.make_jaxpr(fn)(jnp.ones(4))
    out = walk.closed(closed, [jnp.ones(4)])
    assert out[0] == pytest.approx(fn(jnp.ones(4)))
    seen = {p.primitive: p for p in walk.count}
    assert seen["cos"].source.startswith(f"{file_name}:{line + 1}")
    rules = [
        PinRule(seen[k], {0: ("data",)}, {0: (("data",),)}) for k in ("cos", "tanh", "exp", "sin")
    ]
    jax.make_jaxpr(constrained.constrain(fn, rules, None))(jnp.ones(4))
    assert pinned == [((4,), ("data",))] * 8
    lost = PinRule(EquationPlace("model.py:3", "sinh", False, (4,)), {}, {0: (("data",),)})
    with pytest.raises(ValueError, match=r"sinh \[4\] at model.py:3"):
        jax.make_jaxpr(constrained.constrain(fn, [lost], None))(jnp.ones(4))


def test_another_function_is_refused_with_the_first_difference() -> None:
    one, other = (
        tl.from_jax(f, jnp.ones((4, 4)))
        for f in (lambda x: jnp.sin(x @ x), lambda x: jnp.cos(x @ x))
    )
    with pytest.raises(InvalidPlan, match="op 1 is sine"):
        places.equations_of(one.program, other.function)


def test_paths_of_layers_share_a_line_where_they_agree() -> None:
    specs = {
        "['l'][0]['w']": ("d",),
        "['l'][1]['w']": ("d",),
        "['l'][0]['b']": (None,),
        "['l'][1]['b']": ("d",),
    }
    assert _folded(specs) == {
        "['l'][*]['w']": ("d",),
        "['l'][0]['b']": (None,),
        "['l'][1]['b']": ("d",),
    }


def test_a_patch_imports_what_it_lacks() -> None:
    spec = "from jax.sharding import PartitionSpec as P"
    assert _with_imports('"""Doc."""\nimport jax\n\nx = 1\n', spec) == (
        f'"""Doc."""\nimport jax\n{spec}\n\nx = 1\n'
    )
    assert _with_imports("import numpy\nx = 1\n", "") == "import numpy\nimport jax\nx = 1\n"
    whole = f"import jax\n{spec}\n"
    assert _with_imports(whole, spec) == whole


def test_drift_is_told_by_kind_axes_and_bytes() -> None:
    model = tl.load("mlp")
    plan = tl.Plan.from_specs(
        tl.Problem(tl.analyse(model), MESH, "cpu"), {"x": ("data", None), "w1": (None, "model")}
    )
    compiled = tl.compile(model, plan, "cpu:4", store=False)
    record = recorded(compiled)
    assert drifted(record, compiled) == []
    assert list(record["collectives"]) == ["all_reduce over model"]
    more = {
        **record,
        "collectives": {"all_gather over data": {"count": 1.0, "bytes": 64.0}},
        "peak_bytes": 10**9,
    }
    (text,) = drifted(more, compiled)
    assert "all_gather over data: 1 of 64 bytes recorded, 0 of 0 bytes now" in text
    assert "all_reduce over model: 0 of 0 bytes recorded" in text
    assert "peak memory" in text
