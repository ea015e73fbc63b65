"""What JAX's explicit mode refuses gets a sharding, and what gets none is said."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax

import toast_lab as tl
from tests.export.written_by_hand import written_plan
from toast_lab.export.source_edits import Patch
from toast_lab.export.written_patch import to_patch

SOURCE = '''\
"""A model."""

import jax
import jax.numpy as jnp


def layer(table, up, down, tokens):
    x = table[tokens]
    hidden = jnp.einsum(
        "bd,df->bf",
        x,
        up,
    )
    return (jnp.tanh(hidden)) @ down


def differing(x, y):
    return x + y
'''


def patch_of(folder: Path, name: str, shapes: dict[str, Any], specs: dict[str, Any]) -> Patch:
    """The patch of a function of SOURCE for explicit mode, without constraints."""
    file = folder / "explicit_model.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    code = function.__code__
    arguments = [
        jax.ShapeDtypeStruct(shape, "int32" if key == "tokens" else "float32")
        for key, shape in shapes.items()
    ]
    model = tl.from_jax(function, *arguments)
    rules = {
        f"^{key}$": tuple((axis,) if axis else () for axis in axes) for key, axes in specs.items()
    }
    written = written_plan(model, rules)
    plan = tl.Plan.from_specs(written.problem, specs)
    patch = to_patch(dataclasses.replace(written, plan=plan), folder, "explicit")
    assert function.__code__ is code
    assert "P" not in vars(module)
    return patch


def test_gathers_and_products_get_the_sharding_of_the_plan(tmp_path: Path) -> None:
    shapes = {"table": (64, 16), "up": (16, 32), "down": (32, 16), "tokens": (8,)}
    specs = {"tokens": ("data",), "up": (None, "model"), "down": ("model", None)}
    patch = patch_of(tmp_path, "layer", shapes, specs)
    (source,) = patch.sources.values()
    assert patch.left_out == ()
    assert 'x = table.at[tokens].get(out_sharding=P("data", None))' in source
    product = 'jax.numpy.matmul((jnp.tanh(hidden)), down, out_sharding=P("data", None))'
    assert f"return {product}" in source
    assert "from jax.sharding import PartitionSpec as P\n" in source
    assert "        up,\n    )\n" in source  # this product is not ambiguous


def test_calls_of_several_lines_get_an_argument(tmp_path: Path) -> None:
    shapes = {"table": (64, 16), "up": (16, 32), "down": (32, 16), "tokens": (8,)}
    specs = {"tokens": ("data",), "table": (None, "model"), "up": ("model", None)}
    patch = patch_of(tmp_path, "layer", shapes, specs)
    (source,) = patch.sources.values()
    assert patch.left_out == ()
    assert '        up,\n        out_sharding=P("data", None),\n    )\n' in source


def test_what_is_not_resolved_is_said(tmp_path: Path) -> None:
    shapes = {"x": (8, 16), "y": (8, 16)}
    patch = patch_of(tmp_path, "differing", shapes, {"x": ("data", None), "y": (None, "data")})
    assert patch.text == ""
    (reason,) = patch.left_out
    assert reason.startswith("explicit_model.py:18: ShardingTypeError")


def test_a_function_in_another_process_is_left_out() -> None:
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    model = dataclasses.replace(tl.from_jax(lambda x: x * 2.0, x), function=None)
    patch = to_patch(written_plan(model, {}), mode="explicit")
    assert patch.left_out == (
        "where explicit mode needs out_sharding: the function is in another process",
    )
