"""``toast-lab models``: list the built-in models, without importing them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import output
from toast_lab.models import registry
from toast_lab.text import JsonObject


def add_options(parser: ArgumentParser) -> None:
    """Add nothing: ``toast-lab models`` has no options of its own."""


def run(args: Namespace) -> int:
    """Print the built-in models with their sizes."""
    report = {"models": [_describe(name) for name in registry.MODELS]}
    return output.emit(args, report, lambda console: _show(console, report["models"]))


def _describe(name: str) -> JsonObject:
    facts = registry.FACTS.get(name)
    return {
        "name": name,
        "about": registry.MODELS[name].about,
        "sizes": registry.sizes(name),
        "parameter_count": facts.parameter_count if facts else None,
        "paper_parameters": facts.paper_parameters if facts else None,
        "expert_plans": list(facts.expert_plans) if facts else [],
    }


def _show(console: output.Out, models: list[JsonObject]) -> None:
    rows = [
        (
            model["name"],
            model["about"],
            " ".join(f"{size}={default}" for size, default in model["sizes"].items()),
        )
        for model in models
    ]
    console.table(
        "Built-in models", ("name", "~what it is", "~sizes for --set, with their defaults"), rows
    )
    parameter_rows = [
        (
            model["name"],
            f"{model['parameter_count']:,}",
            model["paper_parameters"],
            ", ".join(model["expert_plans"]),
        )
        for model in models
        if model["parameter_count"] is not None
    ]
    if parameter_rows:
        console.table(
            "The paper's models at their default sizes",
            ("name", ">parameters", ">in the paper", "~expert plans"),
            parameter_rows,
        )
    console.print(
        'Your own: "package.module:make" or "file.py:make", where make(**sizes) returns '
        "(fn, args); or a StableHLO file."
    )
