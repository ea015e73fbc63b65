"""``python -m evaluation ablation run|page``."""

from __future__ import annotations

import argparse

from evaluation.ablation import page, rows
from evaluation.corpus.targets import CLOCKED


def main(arguments: list[str]) -> int:
    """Make the rows that are missing, and the page."""
    parser = argparse.ArgumentParser(prog="python -m evaluation ablation", description=__doc__)
    parser.add_argument("command", choices=("run", "page"))
    parser.add_argument("--programs", nargs="*", help="by name; all by default")
    parser.add_argument("--targets", nargs="*", choices=CLOCKED, help="all by default")
    parser.add_argument("--rules", nargs="*", help="rules and sets by name; all by default")
    args = parser.parse_args(arguments)
    if args.command == "run":
        rows.generate(args.programs or (), args.targets or CLOCKED, args.rules or ())
    page.write()
    return 0
