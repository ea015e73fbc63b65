"""Every program of the certification: the zoo at small size and one or more programs for each family of ops.

A model that joins ``toast_lab.models.registry`` is certified from then on: it needs a row in ``SMALL`` (or a dict
``SMALL`` in its own module), in a forward and in a training form where it has a ``mode``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.certification import control_programs, indexing_programs, network_programs, numeric_programs
from tests.certification.case import Case, Maker, positive
from toast_lab import frontends
from toast_lab.models import registry

_TRANSFORMER = {
    "layers": 1, "d_model": 32, "hidden": 64, "heads": 4, "key_size": 8, "vocab": 64, "batch": 8, "sequence": 16,
}  # fmt: skip

#: Sizes by model; a list holds several forms of it, each with its suffix under "form".
SMALL: dict[str, list[dict[str, Any]]] = {
    "mlp": [{"batch": 32, "inputs": 8, "hidden": 16, "outputs": 8}],
    "xxt": [{"rows": 16, "columns": 8}],
    "attention": [{"sequence": 16, "d_model": 8, "key": 8, "value": 8}],
    "transformer": [
        {"form": "forward", **_TRANSFORMER, "mode": "forward"},
        {"form": "train", **_TRANSFORMER, "mode": "train"},
        {"form": "train_bf16", **_TRANSFORMER, "mode": "train", "dtype": "bfloat16"},
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
        LookupError: models without small sizes; all are named.
    """
    unknown = []
    for name, (where, _) in registry.MODELS.items():
        forms = SMALL.get(name) or getattr(importlib.import_module(where.partition(":")[0]), "SMALL", None)
        if forms is None:
            unknown.append(name)
            continue
        for sizes in [forms] if isinstance(forms, Mapping) else forms:
            yield _zoo_case(name, dict(sizes))
    if unknown:
        raise LookupError(f"give small sizes for {', '.join(unknown)} in tests/certification/programs.py")


def _zoo_case(name: str, sizes: dict[str, Any]) -> Case:
    form = sizes.pop("form", "")
    own, why = _INPUTS.get(name, ({}, ""))
    return Case(f"{name}_{form}" if form else name, lambda: frontends.load(name, **sizes), (), own, why)


def programs() -> list[Case]:
    """All programs, the zoo first."""
    return [
        *zoo(),
        *control_programs.CASES,
        *indexing_programs.CASES,
        *network_programs.CASES,
        *numeric_programs.CASES,
    ]
