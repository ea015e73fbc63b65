"""``toast-lab bench paper``: the searches of the paper's evaluation, as a sweep."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, sweep_command


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab bench``."""
    evaluations = parser.add_subparsers(metavar="EVALUATION", required=True)
    summary = "run the searches of section 5; resumable, Ctrl-C keeps the rows so far"
    paper = command_options.command_parser(evaluations, "paper", summary, "bench")
    command_options.paper_cases(paper)
    command_options.rows(paper, "rows.jsonl and the tables")


def run(args: Namespace) -> int:
    """Run the searches of the paper that have no row yet, and show the table of all."""
    from toast_lab.sweep.paper_cases import Choice

    choice = Choice.make(
        parts=args.parts,
        models=args.models,
        machines=args.machines,
        methods=args.methods,
        seconds=args.seconds,
        quick=args.quick,
    )
    common.check_early(args)
    return sweep_command.run_tasks(args, [cell.task for cell in choice.cells()])
