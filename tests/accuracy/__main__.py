"""``python -m tests.accuracy compile|report|links|tpu_links``: see the package."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; the exit status is 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.accuracy",
        description="Our prices against compilers and measured times.",
    )
    parser.add_argument(
        "command", nargs="?", choices=("compile", "report", "links", "tpu_links"), default="report"
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
        from tests.accuracy import dataset

        if args.again:
            dataset.again()
        else:
            dataset.generate(full=args.full)
        return 0
    if args.command == "links":
        from tests.accuracy import link_times

        print(link_times.toml_text() if args.fit else link_times.report())
        return 0
    if args.command == "tpu_links":
        from tests.accuracy import tpu_links

        print(tpu_links.report())
        return 0
    from tests.accuracy import report

    return report.run()


if __name__ == "__main__":
    sys.exit(main())
