"""Run the certification: ``python -m tests.certification rules|plans|oracle [--full]``.  Exit status 1 on failures."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys

PARTS = ("rules", "plans", "oracle")


def main(arguments: list[str]) -> int:
    """Run one part, print its table and every failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.certification", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--full", action="store_true", help="everything, not the short seeded form")
    parser.add_argument("--csv", default="", help="file for results as they come; a run cut off goes on from there")
    parser.add_argument("--only", nargs="*", default=(), help="names of programs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        module = importlib.import_module(f"tests.certification.{options.part}")
    except ModuleNotFoundError as error:
        if error.name != f"tests.certification.{options.part}":
            raise
        print(f"there is no certification of {options.part} here", file=sys.stderr)
        return 2
    import jax

    print(f"{platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}")
    if options.part == "rules":
        failures = module.run(options.full)
    else:
        failures = module.run(options.full, csv_path=options.csv, only=options.only, seed=options.seed)
    for line in failures:
        print(f"FAILED  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
