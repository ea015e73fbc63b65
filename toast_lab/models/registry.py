"""The built-in models by name.  Each module has ``make(**sizes) -> Example`` and is imported on demand."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError, InvalidPlan, did_you_mean


class Example(NamedTuple):
    """A model ready to trace.

    ``expert_plans`` are shardings that experts use for this model, by name, each a sequence of actions as
    ``Plan.from_actions`` takes them: ``(colour, axis)``, or ``(colour, axis, bits)`` where a conflict is settled.
    Colours are names of argument dims (``dim_names``).  Axes are roles: "data" cuts the examples, "model" the
    weights' inner dims, "seq" the positions.  A plan uses some of the roles only; on a mesh that calls its axes so
    it is used as it is, for another one ``on_axes`` renames them.  Order matters, as it does for every plan.
    Reference: TOAST section 5.1.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    dim_names: Mapping[str, tuple[str, ...]] = {}
    expert_plans: Mapping[str, tuple[tuple[Any, ...], ...]] = {}
    parameter_count: int | None = None  #: trained numbers, a shared one counted once


class Facts(NamedTuple):
    """What is known of a model of the paper at its default sizes."""

    parameter_count: int
    paper_parameters: str  #: as the paper gives it, rounded
    expert_plans: tuple[str, ...]  #: names of ``Example.expert_plans``


MODELS: dict[str, tuple[str, str]] = {
    "mlp": ("toast_lab.models.mlp:make", "two linear layers, the paper's first example"),
    "xxt": ("toast_lab.models.xxt:make", "x @ x.T, the smallest sharding conflict"),
    "crossed": ("toast_lab.models.crossed:make", "conflicts with paths across the box, which are not compatible"),
    "attention": ("toast_lab.models.attention:make", "the paper's simplified attention, five conflicts"),
    "transformer": (
        "toast_lab.models.transformer:make",
        "Gemma-style Transformer: forward, gradient or Adam training step",
    ),
    "t2b": ("toast_lab.models.gemma:t2b", "the paper's T2B, Gemma 1 with 2 billion parameters"),
    "t7b": ("toast_lab.models.gemma:t7b", "the paper's T7B, Gemma 1 with 7 billion parameters"),
    "itx": (
        "toast_lab.models.itx:make",
        "the paper's inference Transformer: prefill, or decoding step with a KV cache",
    ),
    "gns": (
        "toast_lab.models.gns:make",
        "the paper's graph network simulator: 24 message-passing steps, 875M parameters",
    ),
    "unet": (
        "toast_lab.models.unet:make",
        "the paper's diffusion U-Net: 9 blocks down, attention, 12 blocks up, 3.6B parameters",
    ),
}

#: The paper's models.  Written down, so that listing them imports no model; the tests hold it to what ``make`` gives.
TRANSFORMER_PLANS = (
    "data", "fsdp", "megatron", "megatron+sp", "data+megatron", "data+megatron+sp", "fsdp+megatron", "fsdp+megatron+sp",
    "fsdp+sequence", "fsdp+sequence+megatron",
)  # fmt: skip
FACTS: dict[str, Facts] = {
    "t2b": Facts(2_506_434_560, "2B", TRANSFORMER_PLANS),
    "t7b": Facts(8_538_074_112, "7B", TRANSFORMER_PLANS),
    "itx": Facts(
        5_069_115_392,
        "5B",
        ("data", "megatron", "data+megatron", "multi-query+megatron", "data+multi-query+megatron"),
    ),
    "gns": Facts(877_704_196, "875M", ("edge sharding", "edge sharding + Megatron")),
    "unet": Facts(3_595_652_355, "3.6B", ("FSDP", "FSDP + Megatron")),
}


def on_axes(actions: Iterable[tuple[Any, ...]], axes: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """An expert plan's actions on a mesh whose axes have other names: ``on_axes(plan, {"data": "x", "model": "y"})``.

    Raises InvalidPlan listing the roles that ``axes`` leaves out.
    """
    actions = list(actions)
    missing = sorted({role for _, role, *_ in actions} - set(axes))
    if missing:
        raise InvalidPlan(
            f"this expert plan needs a mesh axis for {', '.join(map(repr, missing))} too; given: "
            f"{', '.join(f'{role}={axis}' for role, axis in axes.items()) or 'none'}"
        )
    return [(colour, axes[role], *bits) for colour, role, *bits in actions]


def count_parameters(params: Any) -> int:
    """How many numbers the arrays or shapes of a pytree hold together."""
    import jax

    return sum(math.prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(params))


def maker(name: str) -> Callable[..., Example]:
    """The ``make`` function of a built-in model.  Raises FrontendError with close names."""
    if name not in MODELS:
        raise FrontendError(
            f"no built-in model is called {name!r}{did_you_mean(name, MODELS)}; built in: {', '.join(MODELS)}. "
            'Your own model is loaded as "package.module:make".'
        )
    module, _, function = MODELS[name][0].partition(":")
    return getattr(importlib.import_module(module), function)


def sizes(name: str) -> dict[str, Any]:
    """Parameters of a built-in model with their defaults."""
    return {k: p.default for k, p in inspect.signature(maker(name)).parameters.items()}


def choices(name: str) -> dict[str, tuple[str, ...]]:
    """What may be chosen for the parameters that are words: the module's ``MODES``, and the usual element types."""
    module = importlib.import_module(maker(name).__module__)
    words = {"mode": getattr(module, "MODES", ()), "dtype": ("float32", "bfloat16", "float16")}
    return {k: tuple(v) for k, v in words.items() if v and k in sizes(name)}


def make(name: str, **kwargs: Any) -> Example:
    """Build a built-in model; unknown sizes are refused by name."""
    known = sizes(name)
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        raise FrontendError(
            f"{name} has no parameter {', '.join(unknown)}; it has {', '.join(f'{k}={v}' for k, v in known.items())}"
        )
    try:
        return maker(name)(**kwargs)
    except (ValueError, TypeError) as error:
        raise FrontendError(str(error)) from None
