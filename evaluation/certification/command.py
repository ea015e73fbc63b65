"""Run the certification.

``python -m evaluation certification rules|plans|searched|oracle|all [--full]`` exits with status 1
on failures.
"""

from __future__ import annotations

import argparse
import importlib
import platform
from pathlib import Path

PARTS = ("rules", "plans", "searched", "oracle")


def main(arguments: list[str]) -> int:
    """Run one part or all parts, and print their tables and every failure."""
    parser = argparse.ArgumentParser(prog="python -m evaluation certification", description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--full", action="store_true", help="everything, not the short seeded form")
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="file for results as they come; a run cut off goes on there (all: PART-FILE)",
    )
    parser.add_argument("--only", nargs="*", default=(), help="names of programs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    import jax

    print(f"{platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}")
    failures = []
    for part in PARTS if options.part == "all" else (options.part,):
        failures += run_part(part, options, several=options.part == "all")
    for line in failures:
        print(f"FAILED  {line}")
    return 1 if failures else 0


def run_part(part: str, options: argparse.Namespace, *, several: bool) -> list[str]:
    """Run one part and give its failures."""
    module = importlib.import_module(f"evaluation.certification.{part}")
    if part == "rules":
        return list(module.run(options.full))
    file = options.rows
    if file and several:
        file = file.with_name(f"{part}-{file.name}")
    return list(module.run(options.full, file, options.only, options.seed))
