"""``toast-lab check``: hold a plan's collectives, memory and time to a budget file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, output

EXCEEDED = 1  #: exit status


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab check``."""
    parser.add_argument("file", metavar="BUDGET.toml", help="model, mesh, plan and limits")
    command_options.flag(
        parser, "--compile", "also compile the plan for the topology of the budget"
    )
    command_options.flag(parser, "--update", "write what holds today into the file's limits")


def run(args: Namespace) -> int:
    """Compare, or write the limits anew; status 1 if a line is exceeded."""
    from toast_lab.advice.check import check, update

    checked = (update if args.update else check)(args.file, compiled=args.compile)
    report = {
        "file": checked.file,
        "plan": checked.plan,
        "passed": checked.passed,
        "rows": [{**row._asdict(), "is_exceeded": row.is_exceeded} for row in checked.rows],
    }
    output.emit(args, report, lambda console: print(checked))
    return 0 if checked.passed else EXCEEDED
