"""``python -m evaluation benchmarks [part ...]``: seconds and bytes, and their targets.

Without parts all of ``PARTS`` run. Those of ``ALONE`` run by themselves and take arguments of their
own: ``python -m evaluation benchmarks explorer_speed --help``. The exit status is 1 if a target was
missed.
"""

from __future__ import annotations

import argparse
import importlib
import platform
from types import ModuleType

#: Modules with ``run()``, which prints a table and gives the missed targets.
PARTS = ("zoo", "speed", "memory", "scaling", "nested", "sessions", "cold", "children")
#: Modules with ``main(arguments)``, which gives an exit status; all but one drive the explorer.
ALONE = ("explorer_speed", "explorer_tasks", "graph_speed", "why")


def main(arguments: list[str]) -> int:
    """Run the named parts."""
    if arguments and arguments[0] in ALONE:
        return int(_module(arguments[0]).main(arguments[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m evaluation benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="part",
        help=f"any of {', '.join(PARTS)}, or one of {', '.join(ALONE)}",
    )
    parser.add_argument(
        "--layers", nargs="+", type=int, help="scaling: other numbers of layers, without targets"
    )
    args = parser.parse_args(arguments)
    names = args.parts or PARTS
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(
            f"no part that runs beside others is called {', '.join(unknown)}; there are: "
            f"{', '.join(PARTS)}; alone run {', '.join(ALONE)}"
        )
    print(f"{platform.machine()}, Python {platform.python_version()}")
    missed = []
    for name in names:
        options = {"layers": args.layers} if name == "scaling" and args.layers else {}
        missed += _module(name).run(**options)
    for line in missed:
        print(f"MISSED  {line}")
    return 1 if missed else 0


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"evaluation.benchmarks.{name}")
