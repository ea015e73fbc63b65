"""The sizes of the built-in models: their names, defaults and choices, each written once.

The registry, the command line, the explorer and sweeps read the fields.  Nothing here imports JAX,
so that models can be listed quickly.  What the numbers mean is told in each model's own module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

TRAINING_MODES = ("forward", "gradient", "train")


def one_of(default: str, choices: Sequence[str]) -> Any:
    """A field that holds one of a few words."""
    return dataclasses.field(default=default, metadata={"choices": tuple(choices)})


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of one model, with a subclass for each."""

    model: ClassVar[str]

    def offences(self) -> list[str]:
        """Every whole number below 1, and every word that is not one of the choices."""
        offences = []
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata.get("choices")
            if field.type == "int" and value < 1:
                offences.append(f"{field.name}={value}")
            if choices and value not in choices:
                offences.append(f"{field.name} must be one of {', '.join(choices)}, not {value!r}")
        return offences

    def check(self) -> None:
        """Raise ValueError naming every size that cannot work."""
        if offences := self.offences():
            raise ValueError(f"{self.model}: impossible sizes: {'; '.join(offences)}")


@dataclass(frozen=True)
class MlpSizes(ModelSizes):
    """The two-layer perceptron, by default with the shapes of the paper's listing."""

    model = "mlp"
    batch: int = 256
    inputs: int = 32
    hidden: int = 64
    outputs: int = 16
    dtype: str = "float32"


@dataclass(frozen=True)
class XxtSizes(ModelSizes):
    """``x: [rows, columns]``, by default with the shape of the paper's listing."""

    model = "xxt"
    rows: int = 32
    columns: int = 4
    dtype: str = "float32"


@dataclass(frozen=True)
class CrossedSizes(ModelSizes):
    """``x: [rows, columns]`` with one path across the box or two; the paper gives no program."""

    model = "crossed"
    mode: str = one_of("row sums", ("row sums", "transpose"))
    rows: int = 32
    columns: int = 4
    dtype: str = "float32"


@dataclass(frozen=True)
class AttentionSizes(ModelSizes):
    """The simplified attention; the paper gives no sizes."""

    model = "attention"
    sequence: int = 64
    d_model: int = 32
    key: int = 16
    value: int = 8
    dtype: str = "float32"


@dataclass(frozen=True)
class TransformerSizes(ModelSizes):
    """A decoder-only Transformer; ``kv_heads=1`` is multi-query attention."""

    model = "transformer"
    layers: int = 2
    d_model: int = 512
    #: width of the feed-forward layer
    hidden: int = 2048
    heads: int = 8
    kv_heads: int = 1
    key_size: int = 64
    vocab: int = 32768
    batch: int = 8
    sequence: int = 256
    dtype: str = "float32"
    mode: str = one_of("train", TRAINING_MODES)
    #: layers stacked along a leading dim, run by one loop
    scan: bool = False
    #: the backward pass computes each layer again instead of keeping what is inside it
    remat: bool = False

    def offences(self) -> list[str]:
        """Also heads that cannot be shared, and keys that cannot be rotated."""
        offences = super().offences()
        if self.heads % max(1, self.kv_heads):
            offences.append(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        return offences + odd_key(self.key_size)


@dataclass(frozen=True)
class T2bSizes(TransformerSizes):
    """Gemma 1 2B, at the sequence length of the paper's figures."""

    layers: int = 18
    d_model: int = 2048
    hidden: int = 16384
    key_size: int = 256
    vocab: int = 256128
    batch: int = 4
    sequence: int = 16384


@dataclass(frozen=True)
class T7bSizes(TransformerSizes):
    """Gemma 1 7B, at the sequence length of the paper's figures."""

    layers: int = 28
    d_model: int = 3072
    hidden: int = 24576
    heads: int = 16
    kv_heads: int = 16
    key_size: int = 256
    vocab: int = 256128
    batch: int = 16
    sequence: int = 2048


@dataclass(frozen=True)
class ItxSizes(ModelSizes):
    """The inference Transformer: one decoding step, or the prefill of the prompt."""

    model = "itx"
    layers: int = 32
    d_model: int = 2048
    hidden: int = 4096
    heads: int = 32
    key_size: int = 1024
    vocab: int = 50257
    batch: int = 32
    prompt: int = 1024
    sequence: int = 1024
    dtype: str = "float32"
    mode: str = one_of("decode", ("decode", "prefill"))

    def offences(self) -> list[str]:
        """Also keys that cannot be rotated."""
        return super().offences() + odd_key(self.key_size)


@dataclass(frozen=True)
class GnsSizes(ModelSizes):
    """A graph network and the graph that it works on.

    The paper's graphs have 8192 to 65536 edges.
    """

    model = "gns"
    #: steps of message passing
    steps: int = 24
    nodes: int = 2048
    edges: int = 16384
    latent: int = 2048
    hidden: int = 1024
    hidden_layers: int = 3
    features: int = 128
    outputs: int = 3
    dtype: str = "float32"
    mode: str = one_of("train", TRAINING_MODES)


@dataclass(frozen=True)
class UnetSizes(ModelSizes):
    """A U-Net of ``len(multipliers)`` levels."""

    model = "unet"
    channels: int = 1152
    #: level i has ``channels * multipliers[i]`` channels
    multipliers: tuple[int, ...] = (1, 2, 3)
    #: residual blocks on each level down; there is one more on each level up
    blocks: int = 3
    heads: int = 32
    #: groups of each GroupNorm
    groups: int = 32
    batch: int = 64
    #: height and width in pixels
    image: int = 64
    colours: int = 3
    dtype: str = "float32"
    mode: str = one_of("train", TRAINING_MODES)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.channels * multiplier for multiplier in self.multipliers)

    def offences(self) -> list[str]:
        """Also channels that cannot be grouped or split into heads, and images too small."""
        offences = super().offences()
        if not self.multipliers or not all(isinstance(m, int) and m > 0 for m in self.multipliers):
            offences.append(f"multipliers={self.multipliers} must be whole numbers above 0")
        if offences:
            return offences
        if self.channels % 2:
            offences.append(f"channels={self.channels} is odd, the time embedding needs pairs")
        lowest_width = self.widths[-1]
        if lowest_width % self.heads:
            offences.append(
                f"the last level's {lowest_width} channels are not a multiple of heads={self.heads}"
            )
        down, up = unet_blocks(self)
        normalised = {width for block in down + up for width in (block.inputs, block.outputs)}
        normalised |= {self.widths[0], lowest_width}
        if uneven := sorted(width for width in normalised if width % self.groups):
            offences.append(
                f"groups={self.groups} does not divide the channels of a norm: "
                f"{', '.join(map(str, uneven))}"
            )
        halvings = len(self.multipliers) - 1
        if self.image % 2**halvings:
            offences.append(f"image={self.image} cannot be halved {halvings} times")
        return offences


@dataclass(frozen=True)
class UnetBlock:
    """One residual block: its level and its channels.

    ``skip`` of its ``inputs`` come from the way down.  ``resize`` counts the convolutions between
    levels before the one that follows this block, None where none follows.
    """

    level: int
    inputs: int
    outputs: int
    resize: int | None
    skip: int = 0


def unet_blocks(sizes: UnetSizes) -> tuple[list[UnetBlock], list[UnetBlock]]:
    """Residual blocks on the way down and on the way up, in order of execution."""
    down: list[UnetBlock] = []
    up: list[UnetBlock] = []
    channels = sizes.channels
    skips = [channels]
    resizes = len(sizes.widths) - 1
    for level, width in enumerate(sizes.widths):
        for left in reversed(range(sizes.blocks)):
            resize = level if not left and level < resizes else None
            down.append(UnetBlock(level, inputs=channels, outputs=width, resize=resize))
            skips += [width] * (1 if resize is None else 2)
            channels = width
    for level, width in reversed(list(enumerate(sizes.widths))):
        for left in reversed(range(sizes.blocks + 1)):
            resize = resizes - level if not left and level else None
            skip = skips.pop()
            up.append(UnetBlock(level, channels + skip, width, resize=resize, skip=skip))
            channels = width
    return down, up


def odd_key(key_size: int) -> list[str]:
    """The offence of a key that has no pairs to rotate, if it is one."""
    return [f"key_size={key_size} is odd, rotary embeddings need pairs"] if key_size % 2 else []
