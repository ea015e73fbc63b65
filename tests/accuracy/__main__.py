"""``python -m tests.accuracy compile|report``: see the package."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one of the two commands; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.accuracy", description="Our prices against the TPU compiler."
    )
    parser.add_argument("command", nargs="?", choices=("compile", "report"), default="report")
    parser.add_argument(
        "--full", action="store_true", help="compile all plans of each case, not the first 6"
    )
    args = parser.parse_args(arguments)
    if args.command == "compile":
        from tests.accuracy import dataset

        dataset.generate(full=args.full)
        return 0
    from tests.accuracy import report

    return report.run()


if __name__ == "__main__":
    sys.exit(main())
