"""The diffusion U-Net.

It computes what its docstring says, in the paper's size, and names its dims.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

from tests.helpers import analysed, model
from tests.models.execution import worst_errors
from toast_lab.cost.problem import Problem
from toast_lab.errors import FrontendError
from toast_lab.frontends import load
from toast_lab.models import registry, unet
from toast_lab.models.model_sizes import UnetSizes, unet_blocks
from toast_lab.plan_verbs import Plan

SMALL: dict[str, Any] = {
    "channels": 8,
    "heads": 4,
    "groups": 4,
    "batch": 4,
    "image": 8,
    "blocks": 1,
    "multipliers": (1, 2),
}
PAPER_SHAPE = {**SMALL, "blocks": 3, "multipliers": (1, 2, 3), "image": 16}
MESH = {"data": 2, "model": 4}


def random_like(shapes: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def draw(s: jax.ShapeDtypeStruct) -> np.ndarray:
        if s.dtype == np.int32:
            return rng.integers(0, 1000, s.shape).astype(np.int32)
        fan_in = np.prod(s.shape[:-1]) if len(s.shape) > 1 else 4
        return (rng.standard_normal(s.shape) * fan_in**-0.5).astype(s.dtype)

    return jax.tree_util.tree_map(draw, shapes)


def test_group_norm() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 5, 8)) * 4 + 1
    scale, offset = rng.standard_normal(8), rng.standard_normal(8)
    found = np.asarray(unet.group_norm(x, scale, offset, 4))
    for image in range(2):
        for group in range(4):
            part = x[image, :, :, 2 * group : 2 * group + 2]
            plain = (part - part.mean()) / np.sqrt(part.var() + 1e-6)
            dims = slice(2 * group, 2 * group + 2)
            np.testing.assert_allclose(
                found[image, :, :, dims], plain * scale[dims] + offset[dims], rtol=1e-4, atol=1e-5
            )


def test_attention_mixes_all_pixels_head_by_head() -> None:
    example = registry.make("unet", **SMALL, mode="forward")
    p = random_like(example.args[0]["attention"], 2)
    x = np.random.default_rng(3).standard_normal((2, 2, 4, 16))
    y = np.asarray(unet.group_norm(x, p["norm_scale"], p["norm_offset"], 4)).reshape(2, 8, 16)
    plain = np.array(x).reshape(2, 8, 16) + p["bo"]
    for image in range(2):
        for head in range(4):
            q, k, v = (y[image] @ p[f"w{n}"][:, head] + p[f"b{n}"][head] for n in "qkv")
            weights = np.exp(q @ k.T / np.sqrt(4))
            plain[image] += weights / weights.sum(-1, keepdims=True) @ v @ p["wo"][head]
    np.testing.assert_allclose(
        np.asarray(unet.attention(p, x, 4)).reshape(2, 8, 16), plain, rtol=1e-4, atol=1e-4
    )


def test_enlarge_repeats_every_pixel() -> None:
    x = np.arange(6.0).reshape(1, 2, 3, 1)
    assert (
        np.asarray(unet.enlarge(x))[0, :, :, 0].tolist()
        == np.kron(x[0, :, :, 0], np.ones((2, 2))).tolist()
    )


def test_blocks_and_skips() -> None:
    down, up = unet_blocks(UnetSizes())
    assert (len(down), len(up)) == (9, 12)
    assert [b.level for b in up] == [2] * 4 + [1] * 4 + [0] * 4
    c = 1152
    # in units of c, last skip first: blocks and strided convolutions on the way down, then the
    # first convolution
    assert [b.skip // c for b in up] == [3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("multipliers", [(1, 2), (2, 1), (1,), (1, 1, 1)])
def test_it_predicts_an_image_and_every_parameter_gets_a_gradient(
    multipliers: tuple[int, ...],
) -> None:
    sizes = {**SMALL, "multipliers": multipliers}
    forward = registry.make("unet", **sizes, mode="forward")
    assert jax.eval_shape(forward.fn, *forward.args).shape == (4, 8, 8, 3)
    if multipliers != (1, 2):
        return
    example = registry.make("unet", **sizes, mode="gradient")
    _, gradient = jax.jit(example.fn)(*random_like(example.args, 1))
    size = {
        jax.tree_util.keystr(k): float(np.abs(g).max())
        for k, g in jax.tree_util.tree_leaves_with_path(gradient)
    }
    # softmax does not see what is added to all keys alike, so the keys' bias has none but rounding
    # errors
    assert size.pop("['attention']['bk']") < 1e-6
    assert min(size.values()) > 1e-6


def test_the_papers_size() -> None:
    """The count of the docstring is within half a percent of the paper's 3.6B.

    It is in units of 1152 channels squared.
    """
    example = registry.make("unet")
    assert example.parameter_count is not None
    count = {k: registry.count_parameters(v) / 1152**2 for k, v in example.args[0].items()}
    assert {k: int(v) for k, v in count.items()} == {
        "time": 20,
        "first": 0,
        "down": 711 + 8 + 72,
        "shrink": 45,
        "attention": 36,
        "up": 1494 + 110 + 96,
        "grow": 117,
        "last": 0,
    }
    assert abs(example.parameter_count - 3.6e9) < 0.005 * 3.6e9
    assert example.args[0]["attention"]["wq"].shape == (3456, 32, 108)
    assert {type(leaf) for leaf in jax.tree_util.tree_leaves(example.args)} == {
        jax.ShapeDtypeStruct
    }


@pytest.mark.parametrize("mode", registry.choices("unet")["mode"])
def test_modes(mode: str) -> None:
    found = model("unet", **SMALL, mode=mode)
    n_params = len(
        jax.tree_util.tree_leaves(unet.param_shapes(UnetSizes(8, (1, 2), 1, 4, 4, 4, 8)))
    )
    arguments = {"forward": n_params + 2, "gradient": n_params + 3, "train": 3 * n_params + 1 + 3}[
        mode
    ]
    results = {"forward": 1, "gradient": n_params + 1, "train": 3 * n_params + 1 + 1}[mode]
    assert found.program.n_arguments == arguments
    assert len(found.program.outputs) == results
    assert found.program.donated.sum() == (3 * n_params + 1 if mode == "train" else 0)
    assert found.program.missing_rules == ()


def test_channels_are_named_as_the_skip_connections_tie_them() -> None:
    """What ``streams`` foretells from the blocks alone is what the analysis finds."""
    analysis = analysed("unet", **PAPER_SHAPE)
    foretold = set(unet.streams(UnetSizes(8, (1, 2, 3), 3, 4, 4, 4, 8)).values())
    assert foretold == {f"channels{k}" for k in range(8)}
    assert {c for c in analysis.colour_name if c.startswith("channels")} == foretold
    checked = 0
    for name, dims in model("unet", **PAPER_SHAPE).dim_names.items():
        if name.startswith("params") and "kernel_height" not in dims:
            argument = analysis.program.value_name.index(name)
            found = [analysis.dim_text(n) for n in analysis.program.def_names(argument)]
            # The colours of the image that comes in and of the noise that goes out have nothing to
            # do with each other.
            assert tuple(re.sub(r"^colours_\d$", "colours", text) for text in found) == dims
            checked += 1
    assert checked > 20


def test_blocks_of_one_level_and_shape_are_mirrored() -> None:
    """The last of them too, although its results flow elsewhere.

    So do those of some block on the way down.
    """
    analysis = analysed("unet", **PAPER_SHAPE)
    together = [[analysis.colour_name[c] for c in g.colours] for g in analysis.groups]
    found = {tuple(g) for g in together if g[0].endswith("_inner")}
    expected = {
        "down": [(0, 1, 2), (3,), (4, 5), (6,), (7, 8)],
        "up": [(0, 1, 2), (3,), (4,), (5, 6), (7,), (8,), (9, 10, 11)],
    }
    assert found == {
        tuple(f"{way}{i}_inner" for i in row) for way, rows in expected.items() for row in rows
    }


@pytest.mark.parametrize("mode", registry.choices("unet")["mode"])
@pytest.mark.parametrize("multipliers", [(1, 2), (1, 1)])
def test_expert_plans_cut_every_kernel(multipliers: tuple[int, ...], mode: str) -> None:
    sizes = {**SMALL, "multipliers": multipliers, "mode": mode}
    found, problem = model("unet", **sizes), Problem(analysed("unet", **sizes), MESH)
    specs = Plan.from_actions(problem, found.expert_plans["FSDP + Megatron"]).argument_specs()
    for endings, axes in (
        (("['conv1']", "['conv2']", "['wq']", "['wo']"), {"data", "model"}),
        (("['conv']", "['shortcut']"), {"data"}),
    ):
        kernels = [path for path in specs if path.startswith("params") and path.endswith(endings)]
        assert len(kernels) > 1
        for path in kernels:
            assert {axis for dim in specs[path] for axis in dim} == axes, path


def test_all_impossible_sizes_are_listed() -> None:
    with pytest.raises(FrontendError, match="unet: impossible sizes: blocks=0; batch=-1"):
        load("unet", blocks=0, batch=-1)
    with pytest.raises(FrontendError) as caught:
        load("unet", channels=15, multipliers=(1, 2), heads=7, groups=4, image=9)
    for part in (
        "channels=15 is odd",
        "the last level's 30 channels are not a multiple of heads=7",
        "groups=4 does not divide the channels of a norm: 15, 30, 45",
        "image=9 cannot be halved 1 times",
    ):
        assert part in str(caught.value)
    with pytest.raises(
        FrontendError, match="mode must be one of forward, gradient, train, not 'test'"
    ):
        load("unet", mode="test")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["FSDP + Megatron", pytest.param("FSDP", marks=pytest.mark.slow)])
def test_expert_plans_change_nothing_in_the_result(name: str) -> None:
    """A training step from a fresh optimiser, executed on 8 virtual devices.

    Loss, moments and parameters are compared.

    The keys' bias is left out: its gradient is zero but for rounding errors, since softmax does not
    see it.
    """
    errors = {k: v for k, v in worst_errors("unet", SMALL, name, MESH).items() if "['bk']" not in k}
    assert max(errors.values()) < 1e-5, errors
