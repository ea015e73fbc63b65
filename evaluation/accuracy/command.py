"""``python -m evaluation accuracy compile|report|links|tpu_links|gpus``: see the package."""

from __future__ import annotations

import argparse


def main(arguments: list[str]) -> int:
    """Run one of the commands; the exit status is 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation accuracy",
        description="Our prices against compilers and measured times.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("compile", "report", "links", "tpu_links", "gpus"),
        default="report",
    )
    parser.add_argument(
        "--full", action="store_true", help="compile all plans of each case, not the first 6"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="compile: anew, for peaks, what older versions have read",
    )
    parser.add_argument(
        "--fit", action="store_true", help="links: print the fitted terms of the machine files"
    )
    args = parser.parse_args(arguments)
    if args.command == "compile":
        from evaluation.accuracy import dataset

        if args.again:
            dataset.again()
        else:
            dataset.generate(full=args.full)
        return 0
    if args.command == "links":
        from evaluation.accuracy import link_times

        print(link_times.toml_text() if args.fit else link_times.report())
        return 0
    if args.command == "gpus":
        from evaluation.accuracy import gpus

        return gpus.main()
    if args.command == "tpu_links":
        from evaluation.accuracy import tpu_links

        print(tpu_links.report())
        return 0
    from evaluation.accuracy import report

    return report.run()
