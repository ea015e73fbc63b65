"""Sites are where constraints in the user's source reach, and constraints apply there."""

from __future__ import annotations

import functools
import importlib
import types
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests.constrained_source import constrained
from tests.helpers import SMALL
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import from_jax, site_marks
from toast_lab.frontends.site_finding import IN_LIBRARY, sites_of
from toast_lab.frontends.tracing import retrace
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.model import Function, Model
from toast_lab.ir.program import Program
from toast_lab.ir.sites import Site, Sites

S = jax.ShapeDtypeStruct
X, W = S((8, 16), jnp.float32), S((16, 16), jnp.float32)
MESH = jax.sharding.AbstractMesh((2, 2), ("a", "b"))


def by_name(sites: Sites) -> dict[str, Site]:
    return {f"{site.function.rpartition('.')[2]}:{site.name}": site for site in sites.sites}


def constraints_in(program: Program) -> Counter[tuple[int, ...]]:
    """Shapes of the constraints of a program, but for those on constants."""
    return Counter(
        program.dims(value)
        for op in program.ops()
        if program.kind[op] == CONSTRAINT
        for value in program.results(op)
        if not program.value_is_constant[program.operands(op)[0]]
    )


def check(model: Model) -> Sites:
    """The sites of a model, after comparing what they promise with what JAX makes of them."""
    function = model.function
    assert isinstance(function, Function)
    before = retrace(function, function.call).program
    assert len(constraints_in(before)) == 0
    sites = sites_of(model.program, model)
    able = [site for site in sites.sites if not site.refusal]
    for chosen in (able, able[: len(able) // 2]):
        if not chosen or (chosen is not able and model.program.n_ops > 500):  # takes a second
            continue
        rows = [(site, (("a",), *[()] * (site.rank - 1))) for site in chosen]
        program = retrace(function, constrained(function, rows, MESH)).program
        promised = Counter(
            model.program.dims(value)
            for site in chosen
            for value in (*site.values, *site.cotangents)
        )
        assert constraints_in(program) == promised
    after = retrace(function, function.call)
    assert after.program.digest() == before.digest()
    assert not list(site_marks.marks_in(after.program))
    return sites


def trained(loss: Any) -> Any:
    """A gradient step on the first argument."""

    def step(weights: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return step


# -- plain functions -------------------------------------------------------------------------------


def test_every_layer_comes_by_one_site() -> None:
    model = tl.load("transformer", **{**SMALL, "layers": 2})
    site = by_name(check(model))["attention:scores"]
    assert (len(site.values), len(site.cotangents), site.rank) == (2, 2, 4)
    program = model.program
    assert {program.dims(value) for value in site.values} == {(8, 4, 32, 32)}
    assert site.values == tuple(sorted(site.values))
    assert not set(site.values) & set(site.cotangents)


def test_layers_in_a_loop_that_are_computed_again() -> None:
    model = tl.load("transformer", **SMALL, scan=True, remat=True)
    sites = by_name(check(model))
    # Forward, and again in the backward pass, where the cotangent is
    assert len(sites["attention:weights"].values) == 2
    assert len(sites["attention:weights"].cotangents) == 1
    assert len(sites["forward:x"].values) == 1


def test_a_cotangent_of_two_uses_is_their_sum() -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = x @ w
        return (jnp.sin(hidden) * jnp.tanh(hidden)).sum()

    model = from_jax(trained(loss), W, X)
    (site,) = [site for site in check(model).sites if site.name == "hidden"]
    (cotangent,) = site.cotangents
    program = model.program
    assert program.kind[program.value_op[cotangent]] == "add"


def test_a_cotangent_of_several_names_is_their_sum_in_any_order() -> None:
    def layer(given: Any) -> Any:
        residual = given
        normal = given - (given * given).sum(axis=1, keepdims=True)
        branch = jnp.sin(normal * 3)
        return residual + branch

    def loss(w: Any, x: Any) -> Any:
        stream = x @ w
        return (layer(stream) ** 2).sum()

    model = from_jax(trained(loss), W, X)
    (site,) = [site for site in check(model).sites if site.name == "stream"]
    (cotangent,) = site.cotangents
    program = model.program
    (use,) = np.flatnonzero(program.use_value == cotangent)
    assert program.kind[program.use_op[use]] == "dot_general", "the gradient reads the whole sum"


def test_elements_of_a_returned_tuple() -> None:
    def pair(x: Any, w: Any) -> Any:
        kept = jnp.sin(x)
        return x @ w, kept, [kept @ w], kept + 1

    sites = check(from_jax(lambda x, w: pair(x, w), X, W)).sites
    assert [(site.target, len(site.values)) for site in sites] == [
        ("kept", 1),
        ("return[0]", 1),
        ("return[3]", 1),
    ]


def test_weights_that_the_loop_over_layers_slices() -> None:
    def layer(x: Any, weights: Any) -> Any:
        up, down = weights["up"], weights["down"]
        same = x
        hidden = jnp.tanh(x @ up)
        return same + hidden @ down, None

    def loss(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(layer, x, weights)
        return (x * x).sum()

    stacked = S((3, 16, 16), jnp.float32)
    model = from_jax(trained(loss), {"up": stacked, "down": stacked}, X)
    sites = by_name(sites_of(model.program, model))
    for name, shape in (("up", (16, 16)), ("hidden", (8, 16))):
        site = sites[f"layer:{name}"]
        assert {model.program.dims(v) for v in (*site.values, *site.cotangents)} == {shape}
        assert len(site.values) == len(site.cotangents) == 1
    check(model)


def test_a_mark_may_keep_another_residual() -> None:
    def body(x: Any, _: Any) -> Any:
        same = x
        both = jax.checkpoint(lambda a, b: jnp.sin(a) * jnp.tanh(b))(x, same)
        return both, None

    def loss(x: Any) -> Any:
        y, _ = jax.lax.scan(body, x, None, length=3)
        return (y * y).sum()

    model = from_jax(jax.value_and_grad(loss), X)
    sites, program = by_name(check(model)), model.program
    # With the mark, x and same are two residuals of the loop instead of one
    (cotangent,) = sites["body:same"].cotangents
    total = next(op for op in program.ops() if cotangent in program.operands(op) and op > cotangent)
    assert [program.kind[op] for op in (program.value_op[cotangent], total)] == ["add", "add"], (
        "its share of what x gets"
    )


def test_constrained_functions_run() -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ w)
        return (hidden @ w).sum()

    model = from_jax(trained(loss), W, X)
    site = by_name(sites_of(model.program, model))["loss:hidden"]
    mesh = jax.make_mesh((1, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    assert isinstance(model.function, Function)
    fn = constrained(model.function, [(site, (("a",), ("b",)))], mesh)
    w, x = jax.random.normal(jax.random.key(0), (16, 16)), jnp.ones((8, 16))
    (new, value), (expected, expected_value) = jax.jit(fn)(w, x), trained(loss)(w, x)
    assert jnp.allclose(new, expected, rtol=1e-5)
    assert jnp.allclose(value, expected_value, rtol=1e-5)
    text = jax.jit(fn).lower(w, x).as_text()
    assert text.count("sdy.sharding_constraint") == 2
    assert text.count('[{"a"}, {"b"}]') >= 2


def test_statements_that_bind() -> None:
    box = types.SimpleNamespace()

    def fn(x: Any, w: Any) -> Any:
        first, second = jnp.sin(x), jnp.cos(x)
        box.kept = first @ w
        product: Any = box.kept * second
        product += first
        both = first, second
        scale = product.sum()
        alias = product
        table = jnp.ones((8, 16)) * 2
        return alias * scale + both[0] + table

    sites = check(from_jax(fn, X, W))
    assert sorted((site.name, site.text.partition(" ")[0]) for site in sites.sites) == [
        ("", "return"),
        ("box.kept", "box.kept"),
        ("first", "first,"),
        ("product", "product"),
        ("product", "product:"),
        ("second", "first,"),
    ], "no scalars, constants, tuples or second names"
    text = Path(__file__).read_text().splitlines()
    for site in sites.sites:
        assert text[site.line - 1].strip() == site.text
        assert site.function == "test_statements_that_bind.<locals>.fn"
    assert set(sites.digests) == {__file__}


def factory(width: int) -> Any:
    def inner(x: Any) -> Any:
        widened = jnp.tile(x, (1, width))
        return widened * 2

    return inner


def doubled(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        outcome = fn(*args) * 2
        return outcome

    return wrapper


class Layer:
    @doubled
    @jax.jit
    def method(self: Any, x: Any) -> Any:
        inside = jnp.sin(x)
        return inside + 1

    @property
    def unread(self) -> Any:
        raise AssertionError


jax.tree_util.register_static(Layer)


def test_closures_of_factories_and_decorated_methods() -> None:
    inner, layer = factory(3), Layer()
    codes = [fn.__code__ for fn in (inner, Layer.method, Layer.method.__wrapped__.__wrapped__)]
    model = from_jax(lambda x: layer.method(inner(x)), X)
    sites = by_name(check(model))
    assert {"inner:widened", "inner:", "method:inside", "wrapper:outcome"} <= set(sites)
    assert codes == [
        fn.__code__ for fn in (inner, Layer.method, Layer.method.__wrapped__.__wrapped__)
    ]
    # A jit that was called within has kept nothing
    sites_of(model.program, model)
    assert "toast_site" not in str(jax.make_jaxpr(layer.method)(jnp.ones((8, 48))))


def test_branches_and_loops() -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(x: Any) -> Any:
            turned = x @ w
            return turned

        def other(x: Any) -> Any:
            shifted = x + 1
            return shifted

        x = jax.lax.cond(x.sum() > 0, body, other, x)
        return jax.lax.while_loop(lambda x: x.sum() < 0, body, x)

    sites = by_name(check(from_jax(fn, X, W)))
    assert len(sites["body:turned"].values) == 2
    assert len(sites["other:shifted"].values) == 1


@jax.custom_vjp
def clipped(x: Any) -> Any:
    primal = jnp.clip(x, -1, 1)
    return primal


def clipped_forward(x: Any) -> Any:
    saved = jnp.sin(x)
    return clipped(x), saved


def clipped_backward(saved: Any, cotangent: Any) -> Any:
    scaled = cotangent * saved
    return (scaled,)


clipped.defvjp(clipped_forward, clipped_backward)


def test_rules_of_custom_vjp_have_sites_of_their_own() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = clipped(x @ w)
        return (y * y).sum()

    sites = by_name(check(from_jax(trained(loss), W, X)))
    assert len(sites["loss:y"].values) == len(sites["loss:y"].cotangents) == 1
    for name in ("clipped_forward:saved", "clipped_backward:scaled"):
        assert (len(sites[name].values), sites[name].cotangents) == (1, ())


# -- refusals --------------------------------------------------------------------------------------


def test_inside_vmap_the_statement_around_it_is_named() -> None:
    def row(x: Any) -> Any:
        inside = jnp.outer(x, x)
        return inside.sum(0)

    def fn(x: Any) -> Any:
        outside = jax.vmap(row)(x)
        return outside + 1

    model = from_jax(fn, X)
    sites = by_name(check(model))
    inside, outside = sites["row:inside"], sites["fn:outside"]
    assert inside.refusal.startswith("inside vmap")
    assert inside.refusal.endswith(f"constrain outside at {outside.where}")
    assert (inside.rank, model.program.dims(inside.values[0])) == (2, (8, 16, 16))
    assert not outside.refusal
    with pytest.raises(InvalidPlan, match=r"cannot carry a constraint: test_sites\.py.*vmap"):
        constrained(model.function, [(inside, (("a",), ()))], MESH)  # type: ignore[arg-type]


def test_arrays_of_several_ranks_fit_no_one_spec() -> None:
    def normalised(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return x - mean

    sites = by_name(check(from_jax(lambda x: normalised(x) + normalised(x[0]), X)))
    assert sites["normalised:mean"].refusal == (
        "arrays of 1 and 2 dims come by, which no one spec fits"
    )


def test_inside_shard_map_and_kernels() -> None:
    from jax.experimental import pallas

    mesh = jax.sharding.AbstractMesh((2,), ("a",))

    def by_hand(x: Any) -> Any:
        local = x * 2
        return local

    def kernel(x: Any, out: Any) -> None:
        loaded = x[...]
        out[...] = loaded * 2

    def fn(x: Any) -> Any:
        spec = jax.P("a")
        cut = jax.shard_map(by_hand, mesh=mesh, in_specs=spec, out_specs=spec)(x)
        called = pallas.pallas_call(kernel, out_shape=X)(cut)
        return called + 1

    sites = by_name(check(from_jax(fn, X, platform="tpu")))
    assert sites["by_hand:local"].refusal.startswith("inside shard_map, which is split by hand")
    assert "constrain cut at" in sites["by_hand:local"].refusal
    assert sites["kernel:loaded"].refusal.startswith("inside a Pallas kernel")
    assert "constrain called at" in sites["kernel:loaded"].refusal
    assert sites["by_hand:local"].values == sites["kernel:loaded"].values == ()


def module_of(path: Path, text: str) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    module = types.ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


DOUBLE = "def double(x):\n    twice = x * 2\n    return twice + 1\n"


def test_files_of_packages_are_listed_and_refused(tmp_path: Path) -> None:
    module = module_of(tmp_path / "site-packages" / "nets" / "net.py", DOUBLE)
    sites = check(from_jax(module.double, X))
    assert {site.name for site in sites.sites} == {"twice", ""}
    assert all(site.refusal == f"{IN_LIBRARY} (nets)" for site in sites.sites)


def test_a_source_that_has_changed_since_is_told(tmp_path: Path) -> None:
    import linecache

    path = tmp_path / "net.py"
    model = from_jax(module_of(path, DOUBLE).double, X)
    (site, _) = sites_of(model.program, model).sites
    path.write_text("\n" + DOUBLE)
    linecache.checkcache()
    assert isinstance(model.function, Function)
    fn = constrained(model.function, [(site, (("a",), ()))], MESH)
    with pytest.raises(InvalidPlan, match=r"changed since\? .*net.py:2: twice = x \* 2"):
        jax.eval_shape(fn, *model.function.given)


def test_another_function_is_refused() -> None:
    model, other = from_jax(jnp.sin, X), from_jax(lambda x, w: x @ w @ w @ w, X, W)
    with pytest.raises(InvalidPlan, match="another program than sin"):
        sites_of(model.program, other)


# -- models of libraries ---------------------------------------------------------------------------


def test_flax_linen() -> None:
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            hidden = nn.relu(nn.Dense(32)(x))
            return x + nn.Dense(16)(hidden)

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(2):
                x = nn.remat(Block)()(x)
            return x

    net = Net()
    variables = jax.eval_shape(net.init, jax.random.key(0), X)
    step = trained(lambda variables, x: net.apply(variables, x).sum())
    sites = by_name(check(from_jax(step, variables, X)))
    assert len(sites["__call__:hidden"].values) >= 2
    assert len(sites["__call__:hidden"].cotangents) == 2
    assert all("flax" not in site.file for site in sites.values())


def test_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.up = nnx.Linear(16, 32, rngs=nnx.Rngs(0))
            self.down = nnx.Linear(32, 16, rngs=nnx.Rngs(1))

        def __call__(self, x: Any) -> Any:
            hidden = nnx.relu(self.up(x))
            return self.down(hidden)

    @nnx.jit
    def step(net: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda net: (net(x) ** 2).sum())(net)
        nnx.update(net, jax.tree.map(lambda w, g: w - g, nnx.state(net), gradients))
        return loss

    sites = by_name(check(from_jax(step, nnx.eval_shape(Net), X)))
    assert len(sites["__call__:hidden"].values) == len(sites["__call__:hidden"].cotangents) == 1


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):  # type: ignore[misc, name-defined]
        layers: list[Any]

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = jax.nn.relu(x @ layer.weight)
            return x

    net = eqx.filter_eval_shape(
        lambda: Net([eqx.nn.Linear(16, 16, key=jax.random.key(i)) for i in range(2)])
    )

    @eqx.filter_jit
    def step(net: Any, x: Any) -> Any:
        loss, gradients = eqx.filter_value_and_grad(lambda net: (net(x) ** 2).sum())(net)
        return eqx.apply_updates(net, gradients), loss

    sites = by_name(check(from_jax(step, net, X)))
    assert len(sites["__call__:x"].values) == len(sites["__call__:x"].cotangents) == 2


def test_haiku() -> None:
    hk = pytest.importorskip("haiku")

    class Net(hk.Module):  # type: ignore[misc, name-defined]
        def __call__(self, x: Any) -> Any:
            hidden = jax.nn.relu(hk.Linear(32)(x))
            return hk.Linear(16)(hidden)

    net = hk.transform(lambda x: Net()(x).sum())
    weights = jax.eval_shape(net.init, jax.random.key(0), X)
    step = trained(lambda weights, x: net.apply(weights, None, x))
    sites = by_name(check(from_jax(step, weights, X)))
    assert len(sites["__call__:hidden"].values) == len(sites["__call__:hidden"].cotangents) == 1


def test_a_package_may_be_constrained_if_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "widgets_of_a_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "def layer(w, x):\n    hidden = x @ w\n    return (hidden * hidden).sum()\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    layer = importlib.import_module(folder.name).layer
    model = from_jax(trained(lambda w, x: layer(w, x)), W, X)
    refused = by_name(sites_of(model.program, model))["layer:hidden"]
    allowed = by_name(sites_of(model.program, model, in_packages=[folder.name]))["layer:hidden"]
    assert refused.refusal.startswith(f"{IN_LIBRARY} ({folder.name})")
    assert allowed == refused._replace(refusal="")


# -- without a function in this process ------------------------------------------------------------


def test_a_recipe_is_traced_in_a_child() -> None:
    model = tl.load("toast_lab.models.mlp:make", batch=64)
    direct = tl.load("mlp", batch=64)
    assert sites_of(model.program, model) == sites_of(direct.program, direct)


def test_a_file_has_a_site_for_each_line_and_op() -> None:
    text = jax.jit(trained(lambda w, x: jnp.sin(x @ w).sum())).lower(W, X).as_text(debug_info=True)
    model = tl.from_stablehlo(text)
    sites = sites_of(model.program, model)
    (product,) = [site for site in sites.sites if site.text == "dot_general"]
    assert product.where.startswith("test_sites.py:")
    assert (product.rank, len(product.values), sites.digests) == (2, 1, {})
