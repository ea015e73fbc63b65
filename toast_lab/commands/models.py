"""``toast-lab models``: what can be loaded by name, without importing any of it."""

from __future__ import annotations

import argparse
import ast
import importlib.util
from pathlib import Path
from typing import Any

from toast_lab.commands import output
from toast_lab.models import registry


def run(args: argparse.Namespace) -> int:
    """Print the built-in models with their sizes."""
    data = {
        "models": [
            _describe(name, target, about) for name, (target, about) in registry.MODELS.items()
        ]
    }
    return output.emit(args, data, lambda out: _show(out, data["models"]))


def _describe(name: str, target: str, about: str) -> dict[str, Any]:
    facts = registry.FACTS.get(name)
    return {
        "name": name,
        "about": about,
        "sizes": sizes(target),
        "parameter_count": facts.parameter_count if facts else None,
        "paper_parameters": facts.paper_parameters if facts else None,
        "expert_plans": list(facts.expert_plans) if facts else [],
    }


def sizes(target: str) -> dict[str, Any]:
    """Parameters of ``"module:make"`` with their defaults, read from its source.

    Importing it would import JAX.
    """
    module, _, function = target.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            defaults = [ast.literal_eval(d) for d in node.args.defaults]
            return dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return {}


def _show(out: output.Out, models: list[dict[str, Any]]) -> None:
    rows = [
        (m["name"], m["about"], " ".join(f"{k}={v}" for k, v in m["sizes"].items())) for m in models
    ]
    out.table(
        "Built-in models", ("name", "~what it is", "~sizes for --set, with their defaults"), rows
    )
    counted = [
        (
            m["name"],
            f"{m['parameter_count']:,}",
            m["paper_parameters"],
            ", ".join(m["expert_plans"]),
        )
        for m in models
        if m["parameter_count"] is not None
    ]
    if counted:
        out.table(
            "The paper's models at their default sizes",
            ("name", ">parameters", ">in the paper", "~expert plans"),
            counted,
        )
    out.print(
        'Your own: "package.module:make", where make(**sizes) gives (fn, args); or a '
        "StableHLO file."
    )
