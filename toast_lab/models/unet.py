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
from typing import Any

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.array_shapes import Training, arrays_of
from toast_lab.models.model_sizes import UnetBlock, UnetSizes, unet_blocks
from toast_lab.models.registry import Example

DIMS = ("NHWC", "HWIO", "NHWC")


def param_shapes(sizes: UnetSizes) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of these sizes."""
    shape_of = arrays_of(sizes.dtype)

    def conv(name: str, size: int, inputs: int, outputs: int) -> dict[str, Any]:
        return {name: shape_of(size, size, inputs, outputs), f"{name}_bias": shape_of(outputs)}

    def norm(name: str, width: int) -> dict[str, Any]:
        return {f"{name}_scale": shape_of(width), f"{name}_offset": shape_of(width)}

    def block(shape: UnetBlock) -> dict[str, Any]:
        inputs, outputs = shape.inputs, shape.outputs
        return (
            norm("norm1", inputs)
            | conv("conv1", 3, inputs, outputs)
            | {"time": shape_of(time_width, outputs), "time_bias": shape_of(outputs)}
            | norm("norm2", outputs)
            | conv("conv2", 3, outputs, outputs)
            | (conv("shortcut", 1, inputs, outputs) if inputs != outputs else {})
        )

    time_width = 4 * sizes.channels
    last_width, key_size = sizes.widths[-1], sizes.widths[-1] // sizes.heads
    down_blocks, up_blocks = unet_blocks(sizes)
    attention = norm("norm", last_width)
    for name in "qkv":
        attention[f"w{name}"] = shape_of(last_width, sizes.heads, key_size)
        attention[f"b{name}"] = shape_of(sizes.heads, key_size)
    attention["wo"] = shape_of(sizes.heads, key_size, last_width)
    attention["bo"] = shape_of(last_width)
    return {
        "time": {
            "w1": shape_of(sizes.channels, time_width),
            "b1": shape_of(time_width),
            "w2": shape_of(time_width, time_width),
            "b2": shape_of(time_width),
        },
        "first": conv("conv", 3, sizes.colours, sizes.channels),
        "down": list(map(block, down_blocks)),
        "shrink": [conv("conv", 3, width, width) for width in sizes.widths[:-1]],
        "attention": attention,
        "up": list(map(block, up_blocks)),
        "grow": [conv("conv", 3, width, width) for width in sizes.widths[:0:-1]],
        "last": norm("norm", sizes.widths[0]) | conv("conv", 3, sizes.widths[0], sizes.colours),
    }


def streams(sizes: UnetSizes) -> dict[tuple[Any, ...], str]:
    """Path of a block or convolution -> name of its output channels, ``channels<k>`` in order.

    Additions and concatenations tie channels together: a block without shortcut passes its channels
    on, and what meets in a skip connection is sharded alike or gathered.
    """
    parent: dict[Any, Any] = {}

    def find(path: Any) -> Any:
        while parent.setdefault(path, path) != path:
            path = parent[path]
        return path

    down_blocks, up_blocks = unet_blocks(sizes)
    source: tuple[Any, ...] = ("first",)
    skips = [source]
    order = [source]
    for block_index, block in enumerate(down_blocks):
        stream: tuple[Any, ...] = ("down", block_index)
        order.append(stream)
        if block.inputs == block.outputs:
            parent[find(stream)] = find(source)
        source = stream
        skips.append(source)
        if block_index + 1 < len(down_blocks) and down_blocks[block_index + 1].level > block.level:
            source = ("shrink", block.level)
            order.append(source)
            skips.append(source)
    parent[find(("attention",))] = find(source)
    order.append(("attention",))
    for block_index, block in enumerate(up_blocks):
        stream = ("up", block_index)
        parent[find(skips.pop())] = find(source)
        order += [(*stream, "in"), stream]
        parent[find((*stream, "in"))] = find(source)
        source = stream
        if block_index + 1 < len(up_blocks) and up_blocks[block_index + 1].level < block.level:
            source = ("grow", len(sizes.widths) - 1 - block.level)
            order.append(source)
    number: dict[Any, int] = {}
    return {path: f"channels{number.setdefault(find(path), len(number))}" for path in order}


def dim_names(sizes: UnetSizes) -> dict[str, tuple[str, ...]]:
    """Names of the dims by argument path.

    The channels between the two convolutions of a block are called ``down0_inner``.
    """
    stream = streams(sizes)
    names: dict[str, tuple[str, ...]] = {
        "images": ("batch", "height", "width", "colours"),
        "noise": ("batch", "height", "width", "colours"),
        "params['time']['w1']": ("time_features", "time_hidden"),
        "params['time']['b1']": ("time_hidden",),
        "params['time']['w2']": ("time_hidden", "time"),
        "params['time']['b2']": ("time",),
    }

    def add(base: str, name: str, *dims: str) -> None:
        names[f"params{base}['{name}']"] = dims
        if name == "time":
            names[f"params{base}['{name}_bias']"] = dims[-1:]

    def convolution(base: str, name: str, inputs: str, outputs: str) -> None:
        names[f"params{base}['{name}']"] = ("kernel_height", "kernel_width", inputs, outputs)
        names[f"params{base}['{name}_bias']"] = (outputs,)

    def norm(base: str, name: str, dim: str) -> None:
        add(base, f"{name}_scale", dim)
        add(base, f"{name}_offset", dim)

    def residual(way: str, index: int, block: UnetBlock, inputs: str) -> None:
        base, inner, outputs = f"['{way}'][{index}]", f"{way}{index}_inner", stream[way, index]
        norm(base, "norm1", inputs)
        convolution(base, "conv1", inputs, inner)
        add(base, "time", "time", inner)
        norm(base, "norm2", inner)
        convolution(base, "conv2", inner, outputs)
        if block.inputs != block.outputs:
            convolution(base, "shortcut", inputs, outputs)

    convolution("['first']", "conv", "colours", stream["first",])
    down_blocks, up_blocks = unet_blocks(sizes)
    for block_index, block in enumerate(down_blocks):
        # The input is the output of the block before, the first convolution or a strided one.
        before = ("down", block_index - 1) if block_index else ("first",)
        if block_index and down_blocks[block_index - 1].level < block.level:
            before = ("shrink", down_blocks[block_index - 1].level)
        residual("down", block_index, block, stream[before])
    for block_index, block in enumerate(up_blocks):
        residual("up", block_index, block, stream["up", block_index, "in"])
    for level in range(len(sizes.widths) - 1):
        for way, between, block_count in (
            ("down", "shrink", sizes.blocks),
            ("up", "grow", sizes.blocks + 1),
        ):
            convolution(
                f"['{between}'][{level}]",
                "conv",
                stream[way, (level + 1) * block_count - 1],
                stream[between, level],
            )
    middle = stream["attention",]
    norm("['attention']", "norm", middle)
    for name in "qkv":
        key = "value" if name == "v" else "key"
        names[f"params['attention']['w{name}']"] = (middle, "heads", key)
        add("['attention']", f"b{name}", "heads", key)
    names["params['attention']['wo']"] = ("heads", "value", middle)
    add("['attention']", "bo", middle)
    norm("['last']", "norm", stream["up", len(up_blocks) - 1])
    convolution("['last']", "conv", stream["up", len(up_blocks) - 1], "colours")
    return names


def expert_plans(sizes: UnetSizes) -> dict[str, tuple[tuple[str, str], ...]]:
    """The expert strategy of the paper: FSDP with Megatron-style sharding, and FSDP alone.

    FSDP: the batch, then every parameter along the channels that come in or go out, on one axis.
    Megatron: in each residual block the first convolution's output channels and the second's input
    channels, heads in attention, the hidden layer of the time embedding. Reference: TOAST section
    5.1.
    """
    down_blocks, up_blocks = unet_blocks(sizes)
    inner = [
        f"{way}{block_index}_inner"
        for way, blocks in (("down", down_blocks), ("up", up_blocks))
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
        if block_index + 1 < len(down_blocks) and down_blocks[block_index + 1].level > block.level:
            x = convolve(params["shrink"][block.level], "conv", x, stride=2)
            skips.append(x)
    x = attention(params["attention"], x, sizes.groups)
    for block_index, block in enumerate(up_blocks):
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = residual_block(params["up"][block_index], x, embedded, sizes.groups)
        if block_index + 1 < len(up_blocks) and up_blocks[block_index + 1].level < block.level:
            x = convolve(params["grow"][len(sizes.widths) - 1 - block.level], "conv", enlarge(x))
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
