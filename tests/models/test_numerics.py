"""What the Transformers compute.

Options that must change nothing, and a cache that must agree with no cache.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab.models import itx, registry, transformer

TRANSFORMER = {
    "layers": 3,
    "d_model": 16,
    "hidden": 24,
    "heads": 4,
    "key_size": 6,
    "vocab": 40,
    "batch": 2,
    "sequence": 7,
}
ITX = {
    "layers": 2,
    "d_model": 16,
    "hidden": 24,
    "heads": 4,
    "key_size": 6,
    "vocab": 40,
    "batch": 3,
    "prompt": 5,
    "sequence": 4,
}


def filled(shapes: Any, seed: int = 0) -> Any:
    """Random arrays of the given shapes; whole numbers become tokens."""
    rng = np.random.default_rng(seed)

    def one(s: jax.ShapeDtypeStruct) -> Any:
        if jnp.issubdtype(s.dtype, jnp.integer):
            return rng.integers(0, 40, s.shape).astype(s.dtype)
        return (rng.standard_normal(s.shape) * 0.3).astype(s.dtype)

    return jax.tree_util.tree_map(one, shapes)


def stacked(tree: Any) -> Any:
    """The same parameters (or gradients, or moments) as ``scan`` wants them."""
    if isinstance(tree, dict) and "layers" in tree:
        return {
            **tree,
            "layers": jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *tree["layers"]),
        }
    return tree


def stacked_all(value: Any) -> Any:
    return jax.tree_util.tree_map(
        stacked, value, is_leaf=lambda t: isinstance(t, dict) and "layers" in t
    )


def assert_equal(found: Any, wanted: Any) -> None:
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(wanted)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree_util.tree_leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", registry.choices("transformer")["mode"])
@pytest.mark.parametrize(
    "options", [{"remat": True}, {"scan": True}, {"scan": True, "remat": True}]
)
def test_scan_and_remat_change_nothing(mode: str, options: dict[str, bool]) -> None:
    plain = registry.make("transformer", **TRANSFORMER, kv_heads=2, mode=mode)
    other = registry.make("transformer", **TRANSFORMER, kv_heads=2, mode=mode, **options)
    args = filled(plain.args)
    # From zero, Adam's first step is the sign of the gradient, and noise decides small ones
    if mode == "train":
        args = (args[0], jax.tree_util.tree_map(np.abs, args[1]), *args[2:])
    wanted = jax.jit(plain.fn)(*args)
    assert float(np.abs(jax.tree_util.tree_leaves(wanted)[-1]).max()) > 0
    if options.get("scan"):
        args, wanted = stacked_all(args), stacked_all(wanted)
    assert jax.tree_util.tree_map(np.shape, args) == jax.tree_util.tree_map(
        lambda s: s.shape, other.args
    )
    assert_equal(jax.jit(other.fn)(*args), wanted)


@pytest.mark.parametrize("name", ["t2b", "t7b"])
def test_scan_and_remat_are_options_of_the_gemmas_too(name: str) -> None:
    kv_heads = {"t2b": 1, "t7b": 4}[name]
    example = registry.make(
        name, **TRANSFORMER, kv_heads=kv_heads, scan=True, remat=True, mode="gradient"
    )
    assert example.args[0]["layers"]["wk"].shape == (3, 16, kv_heads, 6)
    assert example.dim_names["wk"] == (
        "layers",
        "d_model",
        "heads" if name == "t7b" else "kv_heads",
        "key",
    )
    text = str(jax.make_jaxpr(example.fn)(*example.args))
    assert "scan[" in text
    assert "remat" in text or "checkpoint" in text


def test_more_key_heads_are_the_same_heads_repeated() -> None:
    few = registry.make("transformer", **TRANSFORMER, kv_heads=2, mode="forward")
    params, tokens = filled(few.args)
    wanted = jax.jit(few.fn)(params, tokens)
    for p in params["layers"]:
        p["wk"], p["wv"] = (np.repeat(p[k], 2, axis=1) for k in ("wk", "wv"))
    assert_equal(jax.jit(transformer.forward)(params, tokens), wanted)


def test_late_positions_are_told_apart_in_narrow_types() -> None:
    x = jnp.ones((1, 1, 1, 8))
    for position in (1001, 16383):
        wide = transformer.rotary(x, position)
        narrow = transformer.rotary(x.astype(jnp.bfloat16), position).astype(jnp.float32)
        np.testing.assert_allclose(narrow, wide, atol=0.02)
    whole = transformer.rotary(jnp.ones((1, 1002, 1, 8)))
    np.testing.assert_allclose(whole[:, -1:], transformer.rotary(x, 1001), atol=1e-5)


@pytest.fixture
def inference() -> tuple[Any, Any, Any]:
    """Parameters, an empty cache and three texts of 7 tokens."""
    params, cache, _ = filled(registry.make("itx", **ITX, mode="prefill").args)
    empty = jax.tree_util.tree_map(np.zeros_like, cache)
    return params, empty, np.random.default_rng(1).integers(0, 40, (3, 7)).astype(np.int32)


READ, STEP = jax.jit(itx.prefill), jax.jit(itx.decode)


def test_prefill_and_decoding_agree_with_reading_everything_at_once(
    inference: tuple[Any, Any, Any],
) -> None:
    params, cache, tokens = inference
    logits, cache = READ(params, cache, tokens[:, :5])
    for position in range(5, 7):
        at_once, whole = READ(params, inference[1], tokens[:, :position])
        np.testing.assert_allclose(logits, at_once, rtol=1e-4, atol=1e-5)
        assert_equal(cache, whole)
        logits, cache = STEP(params, cache, tokens[:, position], jnp.int32(position))
    at_once, whole = READ(params, inference[1], tokens)
    np.testing.assert_allclose(logits, at_once, rtol=1e-4, atol=1e-5)
    assert_equal(cache, whole)
    for c in cache:
        written = np.abs(np.asarray(c["k"])).min(axis=(0, 2)) > 0
        assert written.tolist() == [True] * 7 + [False] * 2


def test_a_token_does_not_see_what_the_cache_holds_after_it(
    inference: tuple[Any, Any, Any],
) -> None:
    params, cache, tokens = inference
    noise = [{k: v + np.float32(7) for k, v in c.items()} for c in cache]
    wanted = READ(params, cache, tokens[:, :5])[0]
    _, filled_up = READ(params, noise, tokens[:, :4])
    np.testing.assert_allclose(
        STEP(params, filled_up, tokens[:, 4], jnp.int32(4))[0], wanted, rtol=1e-4, atol=1e-5
    )
    _, earlier = READ(params, cache, tokens[:, 1:5])
    assert (
        np.abs(np.asarray(STEP(params, earlier, tokens[:, 4], jnp.int32(4))[0]) - wanted).max()
        > 1e-3
    )
