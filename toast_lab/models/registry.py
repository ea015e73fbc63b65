"""The built-in models by name.

Each module has ``make(**sizes) -> Example`` and is imported on demand; its sizes are the fields of
a class of ``model_sizes``.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError, InvalidPlan, did_you_mean
from toast_lab.models.model_sizes import (
    AttentionSizes,
    CrossedSizes,
    GnsSizes,
    ItxSizes,
    MlpSizes,
    ModelSizes,
    T2bSizes,
    T7bSizes,
    TransformerSizes,
    UnetSizes,
    XxtSizes,
)


class Example(NamedTuple):
    """A model ready to trace.

    ``expert_plans`` are shardings that experts use for this model, by name, each a sequence of
    actions as ``Plan.from_actions`` takes them: ``(colour, axis)``, or ``(colour, axis, bits)``
    where a conflict is settled.  Colours are names of argument dims (``dim_names``).  Axes are
    roles: "data" cuts the examples, "model" the weights' inner dims, "seq" the positions.  A plan
    need not use all roles.  It fits a mesh whose axes have these names; for another one ``on_axes``
    renames them.  Order matters, as it does for every plan.
    Reference: TOAST section 5.1.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    dim_names: Mapping[str, tuple[str, ...]] = {}
    expert_plans: Mapping[str, tuple[tuple[Any, ...], ...]] = {}
    #: trained numbers, a shared one counted once
    parameter_count: int | None = None


class ModelFacts(NamedTuple):
    """What is known of a model of the paper at its default sizes."""

    parameter_count: int
    #: as the paper gives it, rounded
    paper_parameters: str
    #: names of ``Example.expert_plans``
    expert_plans: tuple[str, ...]


class BuiltIn(NamedTuple):
    """A built-in model: its maker as "module:function", its sizes, and what it is."""

    maker: str
    sizes: type[ModelSizes]
    about: str


MODELS: dict[str, BuiltIn] = {
    "mlp": BuiltIn(
        "toast_lab.models.mlp:make",
        MlpSizes,
        "two linear layers, the paper's first example",
    ),
    "xxt": BuiltIn(
        "toast_lab.models.xxt:make",
        XxtSizes,
        "x @ x.T, the smallest sharding conflict",
    ),
    "crossed": BuiltIn(
        "toast_lab.models.crossed:make",
        CrossedSizes,
        "conflicts with paths across the box, which are not compatible",
    ),
    "attention": BuiltIn(
        "toast_lab.models.attention:make",
        AttentionSizes,
        "the paper's simplified attention, five conflicts",
    ),
    "transformer": BuiltIn(
        "toast_lab.models.transformer:make",
        TransformerSizes,
        "Gemma-style Transformer: forward, gradient or Adam training step",
    ),
    "t2b": BuiltIn(
        "toast_lab.models.gemma:t2b",
        T2bSizes,
        "the paper's T2B, Gemma 1 with 2 billion parameters",
    ),
    "t7b": BuiltIn(
        "toast_lab.models.gemma:t7b",
        T7bSizes,
        "the paper's T7B, Gemma 1 with 7 billion parameters",
    ),
    "itx": BuiltIn(
        "toast_lab.models.itx:make",
        ItxSizes,
        "the paper's inference Transformer: prefill, or decoding step with a KV cache",
    ),
    "gns": BuiltIn(
        "toast_lab.models.gns:make",
        GnsSizes,
        "the paper's graph network simulator: 24 message-passing steps, 875M parameters",
    ),
    "unet": BuiltIn(
        "toast_lab.models.unet:make",
        UnetSizes,
        "the paper's diffusion U-Net: 9 blocks down, attention, 12 blocks up, 3.6B parameters",
    ),
}

#: Sizes at which sharding pays, of models whose defaults, the paper's, are too small for that; the
#: explorer begins with them.
WORTHWHILE_SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 2048, "inputs": 512, "hidden": 16384, "outputs": 512},
    "xxt": {"rows": 8192, "columns": 512},
    "crossed": {"rows": 4096, "columns": 1024},
    "attention": {"sequence": 4096, "d_model": 512, "key": 64, "value": 64},
}

TRANSFORMER_PLANS = (
    "data",
    "fsdp",
    "megatron",
    "megatron+sp",
    "data+megatron",
    "data+megatron+sp",
    "fsdp+megatron",
    "fsdp+megatron+sp",
    "fsdp+sequence",
    "fsdp+sequence+megatron",
)
#: The paper's models.  Written down, so that listing them imports no model; the tests hold it to
#: what ``make`` gives.
FACTS: dict[str, ModelFacts] = {
    "t2b": ModelFacts(2_506_434_560, "2B", TRANSFORMER_PLANS),
    "t7b": ModelFacts(8_538_074_112, "7B", TRANSFORMER_PLANS),
    "itx": ModelFacts(
        5_069_115_392,
        "5B",
        ("data", "megatron", "data+megatron", "multi-query+megatron", "data+multi-query+megatron"),
    ),
    "gns": ModelFacts(877_704_196, "875M", ("edge sharding", "edge sharding + Megatron")),
    "unet": ModelFacts(3_595_652_355, "3.6B", ("FSDP", "FSDP + Megatron")),
}


def on_axes(actions: Iterable[tuple[Any, ...]], axes: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """An expert plan's actions on a mesh whose axes have other names.

    For instance ``on_axes(plan, {"data": "x", "model": "y"})``.  Raises InvalidPlan listing the
    roles that ``axes`` leaves out.
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


def built_in(name: str) -> BuiltIn:
    """A built-in model by name.  Raises FrontendError with close names."""
    if name not in MODELS:
        raise FrontendError(
            f"no built-in model is called {name!r}{did_you_mean(name, MODELS)}; built in: "
            f'{", ".join(MODELS)}. Your own model is loaded as "package.module:make".'
        )
    return MODELS[name]


def sizes(name: str) -> dict[str, Any]:
    """Sizes of a built-in model with their defaults.  Raises FrontendError with close names."""
    return {field.name: field.default for field in dataclasses.fields(built_in(name).sizes)}


def choices(name: str) -> dict[str, tuple[str, ...]]:
    """What may be chosen for the sizes that are words; of element types, the usual ones."""
    fields = dataclasses.fields(built_in(name).sizes)
    words = {field.name: field.metadata.get("choices", ()) for field in fields}
    words["dtype"] = ("float32", "bfloat16", "float16")
    return {key: options for key, options in words.items() if options}


def make(name: str, **given: Any) -> Example:
    """Build a built-in model.

    Raises FrontendError for sizes that are unknown or impossible, and for a package that lacks.
    """
    defaults = sizes(name)
    if unknown := [size for size in given if size not in defaults]:
        listed = ", ".join(f"{size}={default}" for size, default in defaults.items())
        raise FrontendError(f"{name} has no parameter {', '.join(unknown)}; it has {listed}")
    module, _, function = MODELS[name].maker.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(**given)
    except ModuleNotFoundError as error:
        raise FrontendError(
            f"the built-in model {name!r} needs {error.name}, which is not installed: "
            'pip install "toast-lab[models]"'
        ) from None
    except (ValueError, TypeError) as error:
        raise FrontendError(str(error)) from None
