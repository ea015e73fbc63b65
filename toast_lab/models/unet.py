"""A diffusion U-Net: residual blocks down, attention between, residual blocks up with skip connections.

The network is that of Ho et al. 2020 ("Denoising diffusion probabilistic models"): it sees a noisy image and the time
of the diffusion and predicts the noise.  GroupNorm, swish, 3x3 convolutions on ``[batch, height, width, channels]``,
a strided convolution between levels on the way down, nearest neighbours and a convolution on the way up.  Plain JAX,
parameters in nested dicts and lists, so that argument paths read like ``params['down'][0]['conv1']``.

How many blocks.  The paper's 9 down and 12 up blocks are 3 levels of 3 blocks and, on the way up, of 3 + 1 blocks.
The way down leaves 1 (first convolution) + 9 (blocks) + 2 (strided convolutions) = 12 skip connections, and each of
the 12 up blocks takes one.  Between them stands one 32-head attention layer and nothing else, as the paper says;
Ho et al. have a residual block on either side of it, which the paper counts nowhere.

How many parameters.  The paper says 3.6B and gives no channels.  A residual block from a to b channels has 9ab + 9bb
weights in its convolutions, ab in its shortcut if a differs from b, and tb for the time embedding (t is 4 times the
channels of the first level).  With c, 2c and 3c channels on the three levels that makes, in units of c^2,

    convolutions of the blocks on the way down   54 +  198 + 459 =  711
    convolutions of the blocks on the way up    945 +  432 + 117 = 1494
    shortcuts                                     8 +  110       =  118
    convolutions between levels, down and up     45 +  117       =  162
    attention                                                        36
    time embedding, and its use in the blocks    20 +   72 +  96 =  188
                                                                   2709

which is 3.6B for c = 1152, with biases and norms 3,595,652,355.  Of the usual multipliers (1, 2, 2), (1, 2, 3) and
(1, 2, 4) these come nearest with channels that 32 heads and 32 groups divide.

``make`` only builds shapes: no weight is ever allocated.  Reference: TOAST section 5.1 (U-Net).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from toast_lab.models.registry import Example, count_parameters

MODES = ("forward", "gradient", "train")
DIMS = ("NHWC", "HWIO", "NHWC")


class Config(NamedTuple):
    """Sizes of one U-Net; level i has ``channels * multipliers[i]`` channels."""

    channels: int = 1152
    multipliers: tuple[int, ...] = (1, 2, 3)
    blocks: int = 3
    heads: int = 32
    groups: int = 32
    batch: int = 64
    image: int = 64
    colours: int = 3
    dtype: str = "float32"

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.channels * m for m in self.multipliers)

    def check(self) -> None:
        """Raise ValueError naming every size that cannot work."""
        sizes = {k: v for k, v in self._asdict().items() if k not in ("dtype", "multipliers")}
        wrong = [f"{k}={v}" for k, v in sizes.items() if v < 1]
        if not self.multipliers or not all(isinstance(m, int) and m > 0 for m in self.multipliers):
            wrong.append(f"multipliers={self.multipliers} are no whole numbers above 0")
        if not wrong:
            if self.channels % 2:
                wrong.append(f"channels={self.channels} is odd, the time embedding needs pairs")
            if self.widths[-1] % self.heads:
                wrong.append(f"the last level's {self.widths[-1]} channels are not a multiple of heads={self.heads}")
            odd = sorted({c for c in norm_widths(self) if c % self.groups})
            if odd:
                wrong.append(f"groups={self.groups} does not divide the channels of a norm: {', '.join(map(str, odd))}")
            if self.image % 2 ** (len(self.multipliers) - 1):
                wrong.append(f"image={self.image} cannot be halved {len(self.multipliers) - 1} times")
        if wrong:
            raise ValueError("unet: impossible sizes: " + "; ".join(wrong))


class Block(NamedTuple):
    """One residual block: its level and its channels; ``skip`` of its ``inputs`` come from the way down."""

    level: int
    inputs: int
    outputs: int
    skip: int = 0


def plan_blocks(c: Config) -> tuple[list[Block], list[Block]]:
    """Residual blocks on the way down and on the way up, in order of execution."""
    down: list[Block] = []
    up: list[Block] = []
    skips, now = [c.channels], c.channels
    for level, width in enumerate(c.widths):
        for _ in range(c.blocks):
            down.append(Block(level, now, width))
            skips.append(width)
            now = width
        if level < len(c.widths) - 1:
            skips.append(width)
    for level in reversed(range(len(c.widths))):
        for _ in range(c.blocks + 1):
            skip = skips.pop()
            up.append(Block(level, now + skip, c.widths[level], skip))
            now = c.widths[level]
    return down, up


def norm_widths(c: Config) -> list[int]:
    """Channels of every GroupNorm."""
    down, up = plan_blocks(c)
    return [c.widths[0], c.widths[-1], *(w for b in (*down, *up) for w in (b.inputs, b.outputs))]


def param_shapes(c: Config) -> dict[str, Any]:
    """Nested dict of ShapeDtypeStructs for the parameters of ``c``."""

    def s(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(c.dtype))

    def conv(name: str, size: int, inputs: int, outputs: int) -> dict[str, Any]:
        return {name: s(size, size, inputs, outputs), f"{name}_bias": s(outputs)}

    def norm(name: str, width: int) -> dict[str, Any]:
        return {f"{name}_scale": s(width), f"{name}_offset": s(width)}

    def block(b: Block) -> dict[str, Any]:
        made = norm("norm1", b.inputs) | conv("conv1", 3, b.inputs, b.outputs)
        made |= {"time": s(time, b.outputs), "time_bias": s(b.outputs)}
        made |= norm("norm2", b.outputs) | conv("conv2", 3, b.outputs, b.outputs)
        return made | (conv("shortcut", 1, b.inputs, b.outputs) if b.inputs != b.outputs else {})

    time = 4 * c.channels
    last, key = c.widths[-1], c.widths[-1] // c.heads
    down, up = plan_blocks(c)
    return {
        "time": {
            "w1": s(c.channels, time), "b1": s(time), "w2": s(time, time), "b2": s(time),
        },
        "first": conv("conv", 3, c.colours, c.channels),
        "down": [block(b) for b in down],
        "shrink": [conv("conv", 3, w, w) for w in c.widths[:-1]],
        "attention": norm("norm", last) | {
            "wq": s(last, c.heads, key), "wk": s(last, c.heads, key), "wv": s(last, c.heads, key),
            "bq": s(c.heads, key), "bk": s(c.heads, key), "bv": s(c.heads, key),
            "wo": s(c.heads, key, last), "bo": s(last),
        },
        "up": [block(b) for b in up],
        "grow": [conv("conv", 3, w, w) for w in c.widths[:0:-1]],
        "last": norm("norm", c.widths[0]) | conv("conv", 3, c.widths[0], c.colours),
    }  # fmt: skip


def streams(c: Config) -> dict[tuple[Any, ...], str]:
    """Path of a block or convolution -> name of the channels that it puts out: ``channels<k>``, k from first to last.

    Additions and concatenations tie channels together: a block without shortcut passes its channels on, and what
    meets in a skip connection is sharded alike or gathered.
    """
    parent: dict[Any, Any] = {}

    def find(key: Any) -> Any:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    down, up = plan_blocks(c)
    now: tuple[Any, ...] = ("first",)
    skips = [now]
    order = [now]
    for i, block in enumerate(down):
        here: tuple[Any, ...] = ("down", i)
        order.append(here)
        if block.inputs == block.outputs:
            parent[find(here)] = find(now)
        now = here
        skips.append(now)
        if i + 1 < len(down) and down[i + 1].level > block.level:
            now = ("shrink", block.level)
            order.append(now)
            skips.append(now)
    parent[find(("attention",))] = find(now)
    order.append(("attention",))
    for i, block in enumerate(up):
        here = ("up", i)
        parent[find(skips.pop())] = find(now)
        order += [(*here, "in"), here]
        parent[find((*here, "in"))] = find(now)
        now = here
        if i + 1 < len(up) and up[i + 1].level < block.level:
            now = ("grow", len(c.widths) - 1 - block.level)
            order.append(now)
    number: dict[Any, int] = {}
    return {key: f"channels{number.setdefault(find(key), len(number))}" for key in order}


def dim_names(c: Config) -> dict[str, tuple[str, ...]]:
    """Names of the dims by argument path; what lies between a block's convolutions is called ``down0_inner``."""
    found = streams(c)
    names: dict[str, tuple[str, ...]] = {
        "images": ("batch", "height", "width", "colours"),
        "noise": ("batch", "height", "width", "colours"),
    }
    kernel = ("kernel_height", "kernel_width")

    def add(base: str, name: str, *dims: str) -> None:
        names[f"params{base}['{name}']"] = dims
        if name.startswith(("conv", "shortcut", "time")):
            names[f"params{base}['{name}_bias']"] = dims[-1:]

    def norm(base: str, name: str, dim: str) -> None:
        add(base, f"{name}_scale", dim)
        add(base, f"{name}_offset", dim)

    def residual(base: str, block: Block, inputs: str, inner: str, outputs: str) -> None:
        norm(base, "norm1", inputs)
        add(base, "conv1", *kernel, inputs, inner)
        add(base, "time", "time", inner)
        norm(base, "norm2", inner)
        add(base, "conv2", *kernel, inner, outputs)
        if block.inputs != block.outputs:
            add(base, "shortcut", *kernel, inputs, outputs)

    for name, dims in {
        "w1": ("time_features", "time_hidden"), "b1": ("time_hidden",), "w2": ("time_hidden", "time"), "b2": ("time",),
    }.items():  # fmt: skip
        names[f"params['time']['{name}']"] = dims
    add("['first']", "conv", *kernel, "colours", found["first",])
    down, up = plan_blocks(c)
    for i, block in enumerate(down):
        # What comes in is what the one before put out: a block, the first convolution or a strided one.
        before = ("down", i - 1) if i else ("first",)
        if i and down[i - 1].level < block.level:
            before = ("shrink", down[i - 1].level)
        residual(f"['down'][{i}]", block, found[before], f"down{i}_inner", found["down", i])
    for i, block in enumerate(up):
        residual(f"['up'][{i}]", block, found["up", i, "in"], f"up{i}_inner", found["up", i])
    for i in range(len(c.widths) - 1):
        last_down, last_up = (i + 1) * c.blocks - 1, (i + 1) * (c.blocks + 1) - 1
        add(f"['shrink'][{i}]", "conv", *kernel, found["down", last_down], found["shrink", i])
        add(f"['grow'][{i}]", "conv", *kernel, found["up", last_up], found["grow", i])
    middle = found["attention",]
    norm("['attention']", "norm", middle)
    for name in "qkv":
        key = "value" if name == "v" else "key"
        add("['attention']", f"w{name}", middle, "heads", key)
        add("['attention']", f"b{name}", "heads", key)
    add("['attention']", "wo", "heads", "value", middle)
    add("['attention']", "bo", middle)
    norm("['last']", "norm", found["up", len(up) - 1])
    add("['last']", "conv", *kernel, found["up", len(up) - 1], "colours")
    return names


def expert_plans(c: Config) -> dict[str, tuple[tuple[str, str], ...]]:
    """The expert strategy of the paper: FSDP with Megatron-style sharding, and FSDP alone.

    FSDP: the batch, then every parameter along the channels that come in or go out, on one axis.  Megatron: in each
    residual block the first convolution's output channels and the second's input channels, heads in
    attention, the hidden layer of the time embedding.
    Reference: TOAST section 5.1.
    """
    down, up = plan_blocks(c)
    inner = [f"{way}{i}_inner" for way, blocks in (("down", down), ("up", up)) for i in range(len(blocks))]
    along = [*dict.fromkeys(streams(c).values()), "time", "time_features"]
    fsdp = [("batch", "data"), *((name, "data") for name in along)]
    megatron = [(name, "model") for name in (*inner, "heads", "time_hidden")]
    return {"FSDP": tuple(fsdp), "FSDP + Megatron": tuple(fsdp + megatron)}


def group_norm(x: jax.Array, scale: jax.Array, offset: jax.Array, groups: int) -> jax.Array:
    """Normalise ``x: [batch, height, width, channels]`` over height, width and the channels of each group."""
    split = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    mean = jnp.mean(split, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean(jnp.square(split - mean), axis=(1, 2, 4), keepdims=True)
    split = (split - mean) * jax.lax.rsqrt(variance + 1e-6)
    return split.reshape(x.shape) * scale + offset


def convolve(p: dict[str, jax.Array], name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    """Convolution and bias, as many pixels out as in (divided by the stride)."""
    y = jax.lax.conv_general_dilated(x, p[name], (stride, stride), "SAME", dimension_numbers=DIMS)
    return y + p[f"{name}_bias"]


def residual_block(p: dict[str, jax.Array], x: jax.Array, time: jax.Array, groups: int) -> jax.Array:
    """Two convolutions with the time embedding between them, and a 1x1 convolution around them if channels change."""
    y = jax.nn.swish(group_norm(x, p["norm1_scale"], p["norm1_offset"], groups))
    y = convolve(p, "conv1", y)
    y = y + (jax.nn.swish(time) @ p["time"] + p["time_bias"])[:, None, None, :]
    y = jax.nn.swish(group_norm(y, p["norm2_scale"], p["norm2_offset"], groups))
    y = convolve(p, "conv2", y)
    return y + (convolve(p, "shortcut", x) if "shortcut" in p else x)


def attention(p: dict[str, jax.Array], x: jax.Array, groups: int) -> jax.Array:
    """Self-attention among all pixels, added to ``x: [batch, height, width, channels]``."""
    batch, height, width, channels = x.shape
    y = group_norm(x, p["norm_scale"], p["norm_offset"], groups).reshape(batch, height * width, channels)
    q = jnp.einsum("bpc,chk->bphk", y, p["wq"]) + p["bq"]
    k = jnp.einsum("bpc,chk->bphk", y, p["wk"]) + p["bk"]
    v = jnp.einsum("bpc,chk->bphk", y, p["wv"]) + p["bv"]
    weights = jax.nn.softmax(jnp.einsum("bphk,bqhk->bhpq", q, k) / math.sqrt(q.shape[-1]), axis=-1)
    y = jnp.einsum("bhpq,bqhk->bphk", weights, v)
    y = jnp.einsum("bphk,hkc->bpc", y, p["wo"]) + p["bo"]
    return x + y.reshape(x.shape)


def time_embedding(p: dict[str, jax.Array], time: jax.Array, channels: int) -> jax.Array:
    """Sines and cosines of ``time: [batch]`` through two linear layers: ``[batch, 4 * channels]``."""
    dtype = p["w1"].dtype
    frequency = jnp.exp(-math.log(10000.0) * jnp.arange(channels // 2, dtype=dtype) / (channels // 2))
    angle = time.astype(dtype)[:, None] * frequency[None, :]
    y = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1) @ p["w1"] + p["b1"]
    return jax.nn.swish(y) @ p["w2"] + p["b2"]


def enlarge(x: jax.Array) -> jax.Array:
    """Twice as high and wide, every pixel four times."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def forward(params: dict[str, Any], images: jax.Array, time: jax.Array, *, config: Config) -> jax.Array:
    """Predicted noise in ``images: [batch, height, width, colours]`` at ``time: [batch]``."""
    down, up = plan_blocks(config)
    t = time_embedding(params["time"], time, config.channels)
    x = convolve(params["first"], "conv", images)
    skips = [x]
    for i, block in enumerate(down):
        x = residual_block(params["down"][i], x, t, config.groups)
        skips.append(x)
        if i + 1 < len(down) and down[i + 1].level > block.level:
            x = convolve(params["shrink"][block.level], "conv", x, stride=2)
            skips.append(x)
    x = attention(params["attention"], x, config.groups)
    for i, block in enumerate(up):
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = residual_block(params["up"][i], x, t, config.groups)
        if i + 1 < len(up) and up[i + 1].level < block.level:
            x = convolve(params["grow"][len(config.widths) - 1 - block.level], "conv", enlarge(x))
    p = params["last"]
    x = jax.nn.swish(group_norm(x, p["norm_scale"], p["norm_offset"], config.groups))
    return convolve(p, "conv", x)


OPTIMISER = optax.adam(1e-4)


def _functions(config: Config) -> tuple[Any, Any, Any]:
    """Forward pass, loss and Adam step with the sizes bound, so that the arguments are arrays only."""

    def unet(params: dict[str, Any], images: jax.Array, time: jax.Array) -> jax.Array:
        return forward(params, images, time, config=config)

    def loss_fn(params: dict[str, Any], images: jax.Array, time: jax.Array, noise: jax.Array) -> jax.Array:
        """Mean squared error of the predicted noise."""
        return jnp.mean(jnp.square(forward(params, images, time, config=config) - noise))

    def train_step(
        params: dict[str, Any], opt_state: Any, images: jax.Array, time: jax.Array, noise: jax.Array
    ) -> tuple[dict[str, Any], Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, images, time, noise)
        updates, opt_state = OPTIMISER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return unet, loss_fn, train_step


def make(
    channels: int = 1152,
    multipliers: tuple[int, ...] = (1, 2, 3),
    blocks: int = 3,
    heads: int = 32,
    groups: int = 32,
    batch: int = 64,
    image: int = 64,
    colours: int = 3,
    dtype: str = "float32",
    mode: str = "train",
) -> Example:
    """A U-Net of any size, the paper's by default.

    ``len(multipliers)`` levels with ``blocks`` residual blocks down and ``blocks + 1`` up; ``mode`` is "forward",
    "gradient" or "train".  Raises ValueError listing every impossible size.
    """
    config = Config(channels, tuple(multipliers), blocks, heads, groups, batch, image, colours, dtype)
    config.check()
    params = param_shapes(config)
    images = jax.ShapeDtypeStruct((batch, image, image, colours), jnp.dtype(dtype))
    time = jax.ShapeDtypeStruct((batch,), jnp.int32)
    run, loss, step = _functions(config)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    args: tuple[Any, ...] = (params, images, time)
    fn: Callable[..., Any] = run
    donated: tuple[int, ...] = ()
    if mode == "gradient":
        fn, args = jax.value_and_grad(loss), (*args, images)
    elif mode == "train":
        state = jax.eval_shape(OPTIMISER.init, params)
        fn, args, donated = step, (params, state, images, time, images), (0, 1)
    return Example(fn, args, donated, dim_names(config), expert_plans(config), count_parameters(params))
