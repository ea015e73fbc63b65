"""``python -m evaluation measured divide|measure|keep|tell|figures``: see the package."""

from __future__ import annotations

import argparse
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run one of the commands.

    ``measure`` runs where there is a GPU and no package but JAX, so each command imports its own.
    """
    if arguments[:1] == ["measure"]:
        from evaluation.measured import measure

        return measure.main(arguments[1:])
    from evaluation.corpus import programs
    from evaluation.measured import figures, rows, shares, told

    parser = argparse.ArgumentParser(prog="python -m evaluation measured", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    divide = commands.add_parser("divide", help="write programs of one device into a folder")
    divide.add_argument("folder", type=Path)
    divide.add_argument(
        "--shares", nargs="*", help=f"programs of the corpus, or {', '.join(shares.SINGLE)}"
    )
    commands.add_parser("measure", help="run them on an attached GPU; measure --help has more")
    keep = commands.add_parser("keep", help="put what came back into measured.jsonl")
    keep.add_argument("files", type=Path, nargs="+")
    keep.add_argument(
        "--tuned", choices=rows.TUNED, default="all", help="products that XLA tried out"
    )
    commands.add_parser("tell", help="price the single ops and have XLA's cost model time them")
    commands.add_parser("figures", help="write docs/measured.md")
    args = parser.parse_args(arguments)
    if args.command == "divide":
        shares.generate(args.folder, args.shares or [*shares.SINGLE, *programs.PROGRAMS])
    elif args.command == "keep":
        rows.keep(args.files, tuned=args.tuned)
    elif args.command == "tell":
        told.generate()
    else:
        figures.write()
    return 0
