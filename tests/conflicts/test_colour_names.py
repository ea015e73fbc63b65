"""Colours are named after what the user wrote, and can be renamed for good."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import analysed, plan, traced
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import ToastError
from toast_lab.frontends import from_jax
from toast_lab.plan_verbs import Plan


def s(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def shardable(analysis: Analysis) -> list[str]:
    return [group.name for group in analysis.groups if group.shardable and group.n_names > 1]


def test_arguments_name_their_dims() -> None:
    def mlp(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(x @ w["kernel"]["w1"]) + b

    analysis = traced(mlp, s(64, 32), {"kernel": {"w1": s(32, 16)}}, s(16))
    assert shardable(analysis) == ["batch", "features", "outputs"]


def test_a_word_that_every_module_has_gives_way_to_the_module() -> None:
    def dense(p: Any, x: Any) -> Any:
        return x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]

    params = {"Dense_0": {"kernel": s(32, 16), "bias": s(16)}}
    analysis = traced(dense, params, s(64, 32))
    assert shardable(analysis) == ["outputs", "features", "batch"]
    assert analysis.group_index("Dense_0_out") == analysis.group_index("outputs")


def test_roles_come_before_letters_of_an_einsum() -> None:
    def heads(x: Any, w: Any) -> Any:
        return jnp.einsum("bsd,dhk->bhsk", x, w)

    names = shardable(traced(heads, s(4, 8, 16), s(16, 2, 32)))
    assert sorted(names) == ["batch", "features", "h", "k", "s"]


def test_operands_of_an_einsum_that_jax_has_turned_round() -> None:
    def turned(w: Any, x: Any) -> Any:
        return jnp.einsum("ij,bkj->bki", w, x)

    analysis = traced(turned, s(16, 32), s(4, 64, 32))
    program = analysis.program
    w, x = (program.def_names(value) for value in (0, 1))
    words = [analysis.given_names.of(int(analysis.colour[name])) for name in (*w, *x)]
    assert words == ["i", "j", "b", "k", "j"]


def sized(fn: Any, *args: Any, **sizes: int) -> Analysis:
    return analyse(dataclasses.replace(from_jax(fn, *args), sizes=sizes))


def test_sizes_name_the_dims_of_repeated_layers() -> None:
    def net(p: Any, x: Any) -> Any:
        for layer in p["layers"]:
            x = x + jnp.tanh(x @ layer["up"]["kernel"]) @ layer["down"]["kernel"]
        return x @ p["out"]

    layer = {"up": {"kernel": s(32, 128)}, "down": {"kernel": s(128, 32)}}
    args = {"layers": [layer] * 3, "out": s(32, 64)}, s(8, 32)
    named = sized(net, *args, batch=8, width=32, hidden=128, vocabulary=64, layers=3)
    assert sorted(shardable(named)) == ["batch", "hidden", "vocabulary", "width"]


def test_sizes_that_two_things_have_name_neither() -> None:
    def two(x: Any, a: Any, b: Any) -> Any:
        return (x @ a) @ b

    args = s(8, 32), s(32, 16), s(16, 32)
    # Rows of `a` and columns of `b` are both 32
    named = sized(two, *args, batch=8, width=32, hidden=16)
    assert sorted(shardable(named)) == ["batch", "features", "hidden", "outputs"]
    # Here two of the given sizes are equal
    named = sized(two, *args, batch=8, rows=8, hidden=16)
    assert sorted(shardable(named)) == ["batch", "features", "hidden", "outputs"]


def test_variables_name_what_no_argument_carries() -> None:
    def outer(x: Any) -> Any:
        table = jnp.broadcast_to(x[:, None], (8, 24))
        return jnp.tanh(table)

    analysis = traced(outer, s(8))
    assert "table_dim1" in analysis.group_name
    assert not any(set(name) & set(".%") for name in analysis.colour_name)


def test_ops_without_a_variable_are_called_as_in_jax() -> None:
    """A library call is named after its purpose."""

    def fn(x: Any) -> Any:
        return jax.lax.top_k(jnp.linalg.qr(x)[0], 4)[0]

    analysis = traced(fn, s(48, 16))
    assert {"geqrf_dim0", "top_k_dim1"} <= set(analysis.colour_name)


def test_names_are_different_whatever_the_program() -> None:
    for name in ("mlp", "transformer", "gns"):
        analysis = analysed(name)
        assert len(set(analysis.colour_name)) == len(analysis.colour_name)


def test_logical_names_of_flax_are_taken() -> None:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            init = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
            return nn.Dense(16, kernel_init=init, use_bias=False)(x)

    net = Net()
    variables = jax.eval_shape(net.init, jax.random.key(0), s(8, 32))
    analysis = traced(net.apply, variables, s(8, 32))
    assert {"embed", "mlp"} <= {*analysis.group_name}


def test_a_dim_of_an_argument_names_its_colour_too() -> None:
    analysis = analysed("mlp")
    assert analysis.group_index("w1.1") == analysis.group_index("U")
    with pytest.raises(ToastError, match=r"no colour is called 'w1\.7'"):
        analysis.group_index("w1.7")


def test_names_can_be_changed_and_last(tmp_path: Path) -> None:
    problem = Problem(analysed("mlp"), {"a": 2, "b": 2})
    renamed = problem.renamed({"U": "width", "B": "rows"}).renamed({"rows": "batch"})
    assert renamed.analysis.renames == {"U": "width", "B": "batch"}
    renamed_plan = plan(renamed, ("width", "a"), ("batch", "b"))
    assert renamed_plan.actions == ("width->a", "batch->b")
    assert "width->a" in renamed_plan.describe()
    assert (
        price(renamed, renamed_plan).time_s == price(problem, plan(problem, "U->a", "B->b")).time_s
    )
    renamed_plan.save(tmp_path / "plan.json")
    reloaded = Plan.load(tmp_path / "plan.json", problem)
    assert reloaded.actions == renamed_plan.actions
    assert reloaded.describe() == renamed_plan.describe()
    assert reloaded.analysis is not None
    assert reloaded.analysis.renames == renamed.analysis.renames
    assert problem.analysis.renames == {}


def test_names_that_cannot_be_are_all_listed() -> None:
    with pytest.raises(
        ToastError,
        match=r"(?s)no colour is called 'Y'.*'a->b' is not a name.*another colour is called U",
    ):
        analysed("mlp").renamed({"Y": "y", "B": "a->b", "X": "U"})
