"""``python -m evaluation corpus compile|search|price|fit|confirm|figures|list``."""

from __future__ import annotations

import argparse

from evaluation.corpus import compiled, confirmed, figures, fit, judged_plans, priced, programs
from evaluation.corpus.targets import TARGETS, target


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m evaluation corpus", description=__doc__)
    parser.add_argument(
        "command", choices=("compile", "search", "price", "fit", "confirm", "figures", "list")
    )
    parser.add_argument("--programs", nargs="*", help="by name; all by default")
    parser.add_argument("--targets", nargs="*", help="topologies; all by default")
    parser.add_argument("--plans", nargs="*", help="by name; all by default")
    parser.add_argument(
        "--again", action="store_true", help="compile: anew what an older version has read"
    )
    args = parser.parse_args(arguments)
    if args.command == "list":
        for family, members in programs.families().items():
            aside = " (held out)" if family in programs.HELD_OUT else ""
            listed = ", ".join(
                f"{program.name} [{program.package}]" if program.package else program.name
                for program in members
            )
            print(f"{family}{aside}: {listed}")
        return 0
    if args.command == "price":
        priced.generate(args.programs or ())
        return 0
    if args.command == "fit":
        print("\n".join(fit.table(judged_plans.pairs())))
        return 0
    if args.command == "figures":
        figures.write()
        return 0
    names = args.programs or programs.PROGRAMS
    targets = [target(name) for name in args.targets] if args.targets else TARGETS
    if args.again:
        compiled.again(names, targets)
    elif args.command == "search":
        compiled.search(names, targets)
    elif args.command == "confirm":
        confirmed.generate(names, targets)
    else:
        compiled.generate(names, targets, tuple(args.plans) if args.plans else None)
    return 0
