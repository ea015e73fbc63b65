"""Every program of the certification: the zoo at small sizes, and programs for each family of ops.

A model that joins ``toast_lab.models.registry`` is certified from then on. It needs a row in
``SMALL`` (or a dict ``SMALL`` in its own module), in a forward and in a training form where it has
a ``mode``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.certification import (
    control_programs,
    fourier_programs,
    indexing_programs,
    network_programs,
    numeric_programs,
)
from evaluation.certification.case import Case, Maker, positive
from evaluation.kept_models import kept
from toast_lab import frontends
from toast_lab.models import registry

_TRANSFORMER = {
    "layers": 1,
    "d_model": 32,
    "hidden": 64,
    "heads": 4,
    "key_size": 8,
    "vocab": 64,
    "batch": 8,
    "sequence": 16,
}

_ITX = {
    "layers": 2,
    "d_model": 32,
    "hidden": 64,
    "heads": 4,
    "key_size": 8,
    "vocab": 64,
    "batch": 8,
    "prompt": 8,
    "sequence": 8,
}
_GNS = {
    "steps": 2,
    "nodes": 16,
    "edges": 32,
    "latent": 16,
    "hidden": 16,
    "hidden_layers": 1,
    "features": 8,
    "outputs": 4,
}
_UNET = {
    "channels": 8,
    "multipliers": (1, 2),
    "blocks": 1,
    "heads": 4,
    "groups": 4,
    "batch": 8,
    "image": 8,
}

#: Small sizes by model, one dict for each form of the model, with the form's suffix under "form".
SMALL: dict[str, list[dict[str, Any]]] = {
    "mlp": [{"batch": 32, "inputs": 8, "hidden": 16, "outputs": 8}],
    "xxt": [{"rows": 16, "columns": 8}],
    "crossed": [
        {"form": "row_sums", "mode": "row sums", "rows": 16, "columns": 8},
        {"form": "transpose", "mode": "transpose", "rows": 16, "columns": 8},
    ],
    "attention": [{"sequence": 16, "d_model": 8, "key": 8, "value": 8}],
    "transformer": [
        {"form": "forward", **_TRANSFORMER, "mode": "forward"},
        {"form": "train", **_TRANSFORMER, "mode": "train"},
        {"form": "train_bf16", **_TRANSFORMER, "mode": "train", "dtype": "bfloat16"},
        {"form": "scan", **_TRANSFORMER, "layers": 2, "mode": "train", "scan": True},
        {
            "form": "scan_remat",
            **_TRANSFORMER,
            "layers": 2,
            "mode": "train",
            "scan": True,
            "remat": True,
        },
    ],
    "t2b": [{**_TRANSFORMER, "layers": 2, "mode": "train"}],
    "t7b": [{**_TRANSFORMER, "kv_heads": 4, "mode": "train", "remat": True}],
    "itx": [
        {"form": "decode", **_ITX, "mode": "decode"},
        {"form": "prefill", **_ITX, "mode": "prefill"},
    ],
    "gns": [
        {"form": "forward", **_GNS, "mode": "forward"},
        {"form": "train", **_GNS, "mode": "train"},
    ],
    "unet": [
        {"form": "forward", **_UNET, "mode": "forward"},
        {"form": "train", **_UNET, "mode": "train"},
    ],
}

_INPUTS: dict[str, tuple[Mapping[str, Maker], str]] = {
    "attention": (
        {"x": positive, "wq": positive, "wk": positive, "wv": positive},
        "it divides by a plain sum: near zero, rounding alone moves the quotient at will",
    ),
}


def zoo() -> Iterator[Case]:
    """Every built-in model at its small sizes.

    Raises:
        LookupError: some models have no small sizes; the message names all of them.
    """
    unknown = []
    for name, entry in registry.MODELS.items():
        forms = SMALL.get(name) or getattr(
            importlib.import_module(entry.maker.partition(":")[0]), "SMALL", None
        )
        if forms is None:
            unknown.append(name)
            continue
        for sizes in [forms] if isinstance(forms, Mapping) else forms:
            yield _zoo_case(name, dict(sizes))
    if unknown:
        raise LookupError(
            f"give small sizes for {', '.join(unknown)} in evaluation/certification/programs.py"
        )


def _zoo_case(name: str, sizes: dict[str, Any]) -> Case:
    form = sizes.pop("form", "")
    own, why = _INPUTS.get(name, ({}, ""))
    return Case(
        f"{name}_{form}" if form else name, lambda: frontends.load(name, **sizes), (), own, why
    )


def programs() -> list[Case]:
    """All programs, the zoo first. A run of the tests traces each of them once."""
    cases = [
        *zoo(),
        *control_programs.CASES,
        *indexing_programs.CASES,
        *network_programs.CASES,
        *numeric_programs.CASES,
        *fourier_programs.CASES,
    ]
    return [
        dataclasses.replace(case, model=functools.partial(kept, f"case {case.name}", case.model))
        for case in cases
    ]
