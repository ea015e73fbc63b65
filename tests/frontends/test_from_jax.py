"""``from_jax`` keeps the caller's pytrees, and explains why a function cannot be traced.

Paths of the trees name arguments and results.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import resource
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab.errors import FrontendError
from toast_lab.frontends import from_jax

S = jax.ShapeDtypeStruct


class Pair(NamedTuple):
    weight: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    scale: Any


def leaf(*shape: int) -> S:
    return S(shape, jnp.float32)


def arguments(model: Any) -> list[str]:
    return list(model.program.value_name[: model.program.n_arguments])


def test_argument_paths_follow_the_pytree() -> None:
    def fn(params: Any, pair: Pair, layer: Layer, x: jax.Array) -> jax.Array:
        h = x @ params["in"] + params["stack"][1]
        return h @ pair.weight + pair.bias + layer.kernel * layer.scale

    model = from_jax(
        fn,
        {"stack": [leaf(8), leaf(8)], "in": leaf(4, 8)},
        Pair(leaf(8, 6), leaf(6)),
        Layer(leaf(6), leaf(6)),
        leaf(2, 4),
    )
    assert arguments(model) == [
        "params['in']",
        "params['stack'][0]",
        "params['stack'][1]",
        "pair.weight",
        "pair.bias",
        "layer.kernel",
        "layer.scale",
        "x",
    ]
    assert [model.program.dims(a) for a in range(3)] == [(4, 8), (8,), (8,)]
    assert model.name == "fn"


def test_an_unused_argument_stays() -> None:
    model = from_jax(lambda x, unused: x + 1, leaf(4), leaf(5))
    assert arguments(model) == ["x", "unused"]


def test_result_paths() -> None:
    def fn(x: jax.Array) -> Any:
        return {"sum": x.sum(), "pair": Pair(x + 1, [x * 2, x])}

    model = from_jax(fn, leaf(4))
    assert model.program.output_paths == (
        "result['pair'].weight",
        "result['pair'].bias[0]",
        "result['pair'].bias[1]",
        "result['sum']",
    )
    assert [model.program.dims(int(v)) for v in model.program.outputs] == [(4,), (4,), (4,), ()]
    # the last result is the argument itself
    assert model.program.outputs[2] == 0


def test_a_bare_result_is_called_result() -> None:
    assert from_jax(lambda x: x + 1, leaf(4)).program.output_paths == ("result",)


@pytest.mark.parametrize(
    ("donate", "expected"),
    [((), [False] * 4), (0, [True, True, False, False]), ((0, 2), [True, True, False, True])],
)
def test_donated_arguments(donate: Any, expected: list[bool]) -> None:
    model = from_jax(
        lambda p, x, y: (p["a"] + x, p["b"] + y, x),
        {"a": leaf(4), "b": leaf(4)},
        leaf(4),
        leaf(4),
        donate_argnums=donate,
    )
    assert model.program.donated.tolist() == expected


def test_a_donated_position_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FrontendError, match=r"donate_argnums 3, -3: there are 2 arguments"):
        from_jax(lambda x, y: x + y, leaf(4), leaf(4), donate_argnums=(3, 0, -3))


def test_nothing_is_materialised() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = from_jax(lambda x, w: x @ w, leaf(16, 10**6), leaf(10**6, 10**6))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert model.program.nbytes(1) == 4 * 10**12
    assert after - before < 200_000, "kilobytes; the weight alone would be four billion"


def test_arrays_count_by_shape_and_type_only() -> None:
    shapes = from_jax(lambda x, n: x * n, S((4, 3), jnp.int32), 2.0)
    arrays = from_jax(lambda x, n: x * n, np.arange(12, dtype=np.int32).reshape(4, 3), 2.0)
    assert arrays.program.digest() == shapes.program.digest()
    assert arrays.program.dims(0) == (4, 3)
    assert arrays.program.value_dtype[0] == "i32"


def test_a_jitted_function_is_the_function() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.sin(x) @ x

    plain, jitted = from_jax(fn, leaf(4, 4)), from_jax(jax.jit(fn), leaf(4, 4))
    assert plain.program.digest() == jitted.program.digest()
    assert jitted.name == "fn"
    assert arguments(jitted) == ["x"]


def test_partial_binds_what_is_no_array() -> None:
    def fn(mode: str, x: jax.Array, *, times: int) -> jax.Array:
        assert mode == "square"
        for _ in range(times):
            x = x * x
        return x

    model = from_jax(functools.partial(fn, "square", times=3), leaf(4))
    assert arguments(model) == ["x"]
    assert [model.program.kind[op] for op in model.program.ops()] == ["multiply"] * 3
    assert model.name == "fn"


def test_closing_over_weights_is_noted() -> None:
    weights = np.ones((1024, 512), np.float32)
    model = from_jax(lambda x: x @ weights, leaf(4, 1024))
    assert "closes over 1 arrays of 2.1 MB in all" in " ".join(model.notes)
    assert from_jax(lambda x: x @ weights[:8, :8], leaf(4, 8)).notes == ()


def test_a_closure_becomes_a_constant() -> None:
    table = np.arange(12.0, dtype=np.float32).reshape(3, 4)

    def fn(x: jax.Array) -> jax.Array:
        return x + table

    program = from_jax(fn, leaf(3, 4)).program
    assert program.n_arguments == 1
    constants = [op for op in program.ops() if program.kind[op] == "constant"]
    assert [program.dims(program.results(op)[0]) for op in constants] == [(3, 4)]
    assert program.value_is_constant[program.results(constants[0])[0]]


def test_what_is_no_array_is_bound() -> None:
    def fn(config: dict[str, Any], x: list[Any]) -> Any:
        assert config["name"] == "a"
        return {"y": config["act"](config["fine"] + x[0]), "name": config["name"]}

    model = from_jax(fn, {"name": "a", "act": jnp.tanh, "fine": leaf(3)}, [leaf(3), object()])
    assert arguments(model) == ["config['fine']", "x[0]"]
    assert model.program.output_paths == ("result['y']",)
    assert [model.program.kind[op] for op in model.program.ops()] == ["add", "tanh"]
    (note,) = model.notes
    for part in ("config['act'] = tanh", "config['name'] = 'a'", "x[1] = <object object"):
        assert part in note
    # the trees have a leaf for each array and None for the others, like equinox.partition's
    tree, _ = model.trees
    assert tree.unflatten([1, 2]) == ({"name": None, "act": None, "fine": 1}, [2, None])


def test_static_arguments_of_jit_stay_static() -> None:
    @functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
    def fn(x: jax.Array, times: int) -> jax.Array:
        for _ in range(times):
            x = x * x
        return x

    model = from_jax(fn, leaf(4), 3)
    assert arguments(model) == ["x"]
    assert [model.program.kind[op] for op in model.program.ops()] == ["multiply"] * 3
    assert model.program.donated.tolist() == [True]


def test_variable_arguments_are_numbered() -> None:
    model = from_jax(
        lambda params, *inputs: params + inputs[0] + inputs[1]["a"],
        leaf(3),
        leaf(3),
        {"a": leaf(3)},
    )
    assert arguments(model) == ["params", "inputs[0]", "inputs[1]['a']"]


def test_typed_random_keys_are_arguments() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    model = from_jax(
        lambda rngs, x: x + jax.random.normal(rngs["noise"], x.shape), {"noise": key}, leaf(8)
    )
    assert arguments(model) == ["rngs['noise']", "x"]
    assert model.program.value_dtype[0] == "ui32"
    assert model.program.dims(0) == (2,)


def test_what_only_looks_like_an_array_is_refused() -> None:
    class Tensor:
        shape, dtype = (3,), "torch.float32"

    with pytest.raises(FrontendError) as caught:
        from_jax(lambda a, b, x: x, {"w": Tensor()}, np.array(["text"]), leaf(3))
    text = str(caught.value)
    for part in (
        "a['w']: a ",
        "Tensor of type torch.float32",
        "b: a numpy.ndarray of type <U4",
        "from_torch",
    ):
        assert part in text
    assert "x:" not in text


def test_a_function_that_does_not_trace_names_the_users_line() -> None:
    def helper(x: jax.Array) -> jax.Array:
        return x @ x  # this line is to blame

    line = inspect.getsourcelines(helper)[1] + 1
    with pytest.raises(FrontendError) as caught:
        from_jax(lambda x: helper(x) + 1, leaf(3, 4))
    text = str(caught.value)
    assert f"{Path(__file__).name}:{line}: return x @ x" in text
    assert "dot_general requires contracting dimensions" in text


def test_a_function_that_raises_says_what() -> None:
    def fn(x: jax.Array) -> jax.Array:
        raise RuntimeError("no such head count")

    with pytest.raises(
        FrontendError, match="fn cannot be traced: RuntimeError: no such head count"
    ):
        from_jax(fn, leaf(3))


def test_a_wrong_number_of_arguments() -> None:
    with pytest.raises(FrontendError, match="cannot be traced: TypeError"):
        from_jax(lambda x, y: x + y, leaf(3))


def test_the_model_keeps_its_trees() -> None:
    model = from_jax(lambda p: {"out": p["w"] + 1}, {"w": leaf(3)})
    arguments_tree, results_tree = model.trees
    assert jax.tree_util.tree_unflatten(arguments_tree, [1]) == ({"w": 1},)
    assert jax.tree_util.tree_unflatten(results_tree, [2]) == {"out": 2}
