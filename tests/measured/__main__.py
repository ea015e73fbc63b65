"""``python -m tests.measured divide|keep|tell|figures``: see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.corpus import programs
from tests.measured import figures, rows, shares, told


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.measured", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    divide = commands.add_parser("divide", help="write programs of one device into a folder")
    divide.add_argument("folder", type=Path)
    divide.add_argument(
        "--shares", nargs="*", help=f"programs of the corpus, or {', '.join(shares.SINGLE)}"
    )
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


if __name__ == "__main__":
    sys.exit(main())
