"""A diffusion U-Net: residual blocks down, attention, residual blocks up with skip connections.

The network is that of Ho et al. 2020 ("Denoising diffusion probabilistic models"): it sees a noisy
image and the time of the diffusion and predicts the noise.  GroupNorm, swish, 3x3 convolutions on
``[batch, height, width, channels]``, a strided convolution between levels on the way down, nearest
neighbours and a convolution on the way up.  Plain JAX, parameters in nested dicts and lists, so
that argument paths read like ``params['down'][0]['conv1']``.

How many blocks.  The paper's 9 down and 12 up blocks are 3 levels of 3 blocks and, on the way up,
of 3 + 1 blocks. The way down leaves 1 (first convolution) + 9 (blocks) + 2 (strided convolutions) =
12 skip connections, and each of the 12 up blocks takes one.  Between them stands one 32-head
attention layer and nothing else, as the paper says; Ho et al. have a residual block on either side
of it, which the paper counts nowhere.

How many parameters.  The paper says 3.6B and gives no channels.  A residual block from a to b
channels has 9ab + 9bb weights in its convolutions, ab in its shortcut if a differs from b, and tb
for the time embedding (t is 4 times the channels of the first level).  With c, 2c and 3c channels
on the three levels that makes, in units of c^2,

    convolutions of the blocks on the way down   54 +  198 + 459 =  711
    convolutions of the blocks on the way up    945 +  432 + 117 = 1494
    shortcuts                                     8 +  110       =  118
    convolutions between levels, down and up     45 +  117       =  162
    attention                                                        36
    time embedding, and its use in the blocks    20 +   72 +  96 =  188
                                                                   2709

which is 3.6B for c = 1152, with biases and norms 3,595,652,355.  Of the usual multipliers (1, 2,
2), (1, 2, 3) and (1, 2, 4) these come nearest with channels that 32 heads and 32 groups divide.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (U-Net).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.array_shapes import Training, arrays_of, names_of, shapes_of
from toast_lab.models.model_sizes import UnetSizes, unet_blocks
from toast_lab.models.registry import Example

if TYPE_CHECKING:
    from toast_lab.models.array_shapes import Weights

DIMS = ("NHWC", "HWIO", "NHWC")


def param_shapes(sizes: UnetSizes) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of these sizes."""
    return shapes_of(weights(sizes), sizes.dtype)


def streams(sizes: UnetSizes) -> dict[tuple[Any, ...], str]:
    """Path of a block or convolution -> name of its output channels, ``channels<k>`` in order.

    Additions and concatenations tie channels together: a block without shortcut passes its channels
    on, and what meets in a skip connection is sharded alike or gathered.  The channels that come
    into a block stand at its path and ``"in"``.
    """
    parent: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def find(path: tuple[Any, ...]) -> tuple[Any, ...]:
        while parent[path] != path:
            path = parent[path]
        return path

    def stream(*path: Any, like: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        parent[path] = like or path
        return path

    down_blocks, up_blocks = unet_blocks(sizes)
    source = stream("first")
    skips = [source]
    for block_index, block in enumerate(down_blocks):
        inputs = stream("down", block_index, "in", like=source)
        source = stream("down", block_index, like=inputs if block.inputs == block.outputs else ())
        skips.append(source)
        if block.resize is not None:
            source = stream("shrink", block.resize)
            skips.append(source)
    source = stream("attention", like=source)
    for block_index, block in enumerate(up_blocks):
        parent[find(skips.pop())] = find(source)
        stream("up", block_index, "in", like=source)
        source = stream("up", block_index)
        if block.resize is not None:
            source = stream("grow", block.resize)
    number: dict[Any, int] = {}
    return {path: f"channels{number.setdefault(find(path), len(number))}" for path in parent}


def weights(sizes: UnetSizes) -> Weights:
    """Every weight with the names and sizes of its dims.

    The channels between the two convolutions of a block are called ``down0_inner``.
    """
    stream = streams(sizes)
    dims_of: Weights = {}

    def add(base: tuple[Any, ...], name: str, *dims: tuple[str, int]) -> None:
        dims_of[*base, name] = dims

    def conv(
        base: tuple[Any, ...],
        name: str,
        inputs: tuple[str, int],
        outputs: tuple[str, int],
        size: int = 3,
    ) -> None:
        add(base, name, ("kernel_height", size), ("kernel_width", size), inputs, outputs)
        add(base, f"{name}_bias", outputs)

    def norm(base: tuple[Any, ...], name: str, dim: tuple[str, int]) -> None:
        add(base, f"{name}_scale", dim)
        add(base, f"{name}_offset", dim)

    colours, time = ("colours", sizes.colours), ("time", 4 * sizes.channels)
    hidden = ("time_hidden", 4 * sizes.channels)
    add(("time",), "w1", ("time_features", sizes.channels), hidden)
    add(("time",), "b1", hidden)
    add(("time",), "w2", hidden, time)
    add(("time",), "b2", time)
    conv(("first",), "conv", colours, (stream["first",], sizes.channels))
    outputs = colours
    for way, resize, blocks in zip(
        ("down", "up"), ("shrink", "grow"), unet_blocks(sizes), strict=True
    ):
        for block_index, block in enumerate(blocks):
            base = (way, block_index)
            inputs = (stream[*base, "in"], block.inputs)
            inner = (f"{way}{block_index}_inner", block.outputs)
            outputs = (stream[base], block.outputs)
            norm(base, "norm1", inputs)
            conv(base, "conv1", inputs, inner)
            add(base, "time", time, inner)
            add(base, "time_bias", inner)
            norm(base, "norm2", inner)
            conv(base, "conv2", inner, outputs)
            if block.inputs != block.outputs:
                conv(base, "shortcut", inputs, outputs, size=1)
            if block.resize is not None:
                base = (resize, block.resize)
                conv(base, "conv", outputs, (stream[base], block.outputs))
    norm(("last",), "norm", outputs)
    conv(("last",), "conv", outputs, colours)
    middle, heads = (stream["attention",], sizes.widths[-1]), ("heads", sizes.heads)
    norm(("attention",), "norm", middle)
    for name, dim in zip("qkv", ("key", "key", "value"), strict=True):
        key = (dim, sizes.widths[-1] // sizes.heads)
        add(("attention",), f"w{name}", middle, heads, key)
        add(("attention",), f"b{name}", heads, key)
    add(("attention",), "wo", heads, key, middle)
    add(("attention",), "bo", middle)
    return dims_of


def dim_names(sizes: UnetSizes) -> dict[str, tuple[str, ...]]:
    """Names of the dims by argument path."""
    image = ("batch", "height", "width", "colours")
    return {"images": image, "noise": image, **names_of(weights(sizes))}


def expert_plans(sizes: UnetSizes) -> dict[str, tuple[tuple[str, str], ...]]:
    """The expert strategy of the paper: FSDP with Megatron-style sharding, and FSDP alone.

    FSDP: the batch, then every parameter along the channels that come in or go out, on one axis.
    Megatron: in each residual block the first convolution's output channels and the second's input
    channels, heads in attention, the hidden layer of the time embedding. Reference: TOAST section
    5.1.
    """
    inner = [
        f"{way}{block_index}_inner"
        for way, blocks in zip(("down", "up"), unet_blocks(sizes), strict=True)
        for block_index in range(len(blocks))
    ]
    channel_dims = [*dict.fromkeys(streams(sizes).values()), "time", "time_features"]
    fsdp = [("batch", "data"), *((name, "data") for name in channel_dims)]
    megatron = [(name, "model") for name in (*inner, "heads", "time_hidden")]
    return {"FSDP": tuple(fsdp), "FSDP + Megatron": tuple(fsdp + megatron)}


def group_norm(x: jax.Array, scale: jax.Array, offset: jax.Array, groups: int) -> jax.Array:
    """Normalise ``x: [batch, height, width, channels]``.

    Each norm is over height, width and the channels of one group.
    """
    split = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    mean = jnp.mean(split, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean(jnp.square(split - mean), axis=(1, 2, 4), keepdims=True)
    split = (split - mean) * jax.lax.rsqrt(variance + 1e-6)
    return split.reshape(x.shape) * scale + offset


def convolve(params: dict[str, jax.Array], name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    """Convolution and bias, as many pixels out as in (divided by the stride)."""
    y = jax.lax.conv_general_dilated(
        x, params[name], (stride, stride), "SAME", dimension_numbers=DIMS
    )
    return y + params[f"{name}_bias"]


def residual_block(
    params: dict[str, jax.Array], x: jax.Array, time: jax.Array, groups: int
) -> jax.Array:
    """Two convolutions with the time embedding between them.

    A 1x1 convolution goes around them where the number of channels changes.
    """
    y = jax.nn.swish(group_norm(x, params["norm1_scale"], params["norm1_offset"], groups))
    y = convolve(params, "conv1", y)
    y = y + (jax.nn.swish(time) @ params["time"] + params["time_bias"])[:, None, None, :]
    y = jax.nn.swish(group_norm(y, params["norm2_scale"], params["norm2_offset"], groups))
    y = convolve(params, "conv2", y)
    return y + (convolve(params, "shortcut", x) if "shortcut" in params else x)


def attention(params: dict[str, jax.Array], x: jax.Array, groups: int) -> jax.Array:
    """Self-attention among all pixels, added to ``x: [batch, height, width, channels]``."""
    batch, height, width, channels = x.shape
    y = group_norm(x, params["norm_scale"], params["norm_offset"], groups).reshape(
        batch, height * width, channels
    )
    q = jnp.einsum("bpc,chk->bphk", y, params["wq"]) + params["bq"]
    k = jnp.einsum("bpc,chk->bphk", y, params["wk"]) + params["bk"]
    v = jnp.einsum("bpc,chk->bphk", y, params["wv"]) + params["bv"]
    weights = jax.nn.softmax(jnp.einsum("bphk,bqhk->bhpq", q, k) / math.sqrt(q.shape[-1]), axis=-1)
    y = jnp.einsum("bhpq,bqhk->bphk", weights, v)
    y = jnp.einsum("bphk,hkc->bpc", y, params["wo"]) + params["bo"]
    return x + y.reshape(x.shape)


def time_embedding(params: dict[str, jax.Array], time: jax.Array, channels: int) -> jax.Array:
    """``[batch, 4 * channels]``: sines and cosines of ``time: [batch]``, through two layers."""
    dtype = params["w1"].dtype
    frequency = jnp.exp(
        -math.log(10000.0) * jnp.arange(channels // 2, dtype=dtype) / (channels // 2)
    )
    angle = time.astype(dtype)[:, None] * frequency[None, :]
    y = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1) @ params["w1"] + params["b1"]
    return jax.nn.swish(y) @ params["w2"] + params["b2"]


def enlarge(x: jax.Array) -> jax.Array:
    """Twice as high and wide, every pixel four times."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def forward(
    params: dict[str, Any], images: jax.Array, time: jax.Array, *, sizes: UnetSizes
) -> jax.Array:
    """Predicted noise in ``images: [batch, height, width, colours]`` at ``time: [batch]``."""
    down_blocks, up_blocks = unet_blocks(sizes)
    embedded = time_embedding(params["time"], time, sizes.channels)
    x = convolve(params["first"], "conv", images)
    skips = [x]
    for block_index, block in enumerate(down_blocks):
        x = residual_block(params["down"][block_index], x, embedded, sizes.groups)
        skips.append(x)
        if block.resize is not None:
            x = convolve(params["shrink"][block.resize], "conv", x, stride=2)
            skips.append(x)
    x = attention(params["attention"], x, sizes.groups)
    for block_index, block in enumerate(up_blocks):
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = residual_block(params["up"][block_index], x, embedded, sizes.groups)
        if block.resize is not None:
            x = convolve(params["grow"][block.resize], "conv", enlarge(x))
    last = params["last"]
    x = jax.nn.swish(group_norm(x, last["norm_scale"], last["norm_offset"], sizes.groups))
    return convolve(last, "conv", x)


OPTIMISER = optax.adam(1e-4)


def _functions(sizes: UnetSizes) -> tuple[Any, Any, Any]:
    """Forward pass, loss and Adam step with the sizes bound, whose arguments are arrays only."""

    def unet(params: dict[str, Any], images: jax.Array, time: jax.Array) -> jax.Array:
        return forward(params, images, time, sizes=sizes)

    def loss_fn(
        params: dict[str, Any], images: jax.Array, time: jax.Array, noise: jax.Array
    ) -> jax.Array:
        """Mean squared error of the predicted noise."""
        return jnp.mean(jnp.square(forward(params, images, time, sizes=sizes) - noise))

    def train_step(
        params: dict[str, Any], opt_state: Any, images: jax.Array, time: jax.Array, noise: jax.Array
    ) -> tuple[dict[str, Any], Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, images, time, noise)
        updates, opt_state = OPTIMISER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return unet, loss_fn, train_step


def make(**given: Any) -> Example:
    """A U-Net of any size; sizes as in ``UnetSizes``.

    Raises ValueError listing every impossible size.
    """
    sizes = UnetSizes(**given)
    sizes.check()
    images = arrays_of(sizes.dtype)(sizes.batch, sizes.image, sizes.image, sizes.colours)
    time = jax.ShapeDtypeStruct((sizes.batch,), jnp.int32)
    example = Training(*_functions(sizes), OPTIMISER).example(
        sizes.mode, param_shapes(sizes), inputs=(images, time), targets=(images,)
    )
    return example._replace(dim_names=dim_names(sizes), expert_plans=expert_plans(sizes))
