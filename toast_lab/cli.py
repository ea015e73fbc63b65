"""The command line: the verbs of the library as ``toast-lab VERB MODEL ...``.

Each command prints a table or, with ``--json``, one JSON object. This module holds only the
commands' names and the exit statuses, so that ``--help`` is quick; the options and the work of each
command are in ``toast_lab/commands``, which is imported on demand.

Exit status: 0 done, 1 the work failed or a result could not be kept, 2 the input was wrong, 130
interrupted, 141 the reader of the output is gone, 143 stopped by SIGTERM (the results so far are
printed and saved). Start reading at ``main``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from toast_lab import errors
from toast_lab.commands import keeping, stopping
from toast_lab.commands.command_options import command_parser

#: (name, module in ``toast_lab/commands``, summary) of every command
COMMANDS = (
    ("analyse", "analyse", "show the colours, conflicts and compatibility sets of a model"),
    ("search", "search", "search for the best plan; Ctrl-C keeps the best so far"),
    ("race", "race", "run several methods on one problem; Ctrl-C keeps the results so far"),
    (
        "sweep",
        "sweep",
        "search every combination of models, meshes, machines, methods and seeds; resumable, "
        "Ctrl-C keeps the rows so far",
    ),
    (
        "advise",
        "advise",
        "say which slice, mesh shape, parts of a batch and recomputation to take; resumable, "
        "Ctrl-C keeps the rows so far",
    ),
    ("price", "price", "estimate time and memory of a plan"),
    ("conflicts", "conflicts", "list every conflict, with the cost of each side on each mesh axis"),
    ("choices", "choices", "rank what each action, side, rule or constraint of a plan saves"),
    ("why", "why", "explain why a plan has a collective, and what would remove it"),
    ("check", "check", "hold a plan's collectives, memory and time to a budget file, for CI"),
    ("why-not", "why_not", "say what fills memory, and which single changes make a plan fit"),
    (
        "audit",
        "audit",
        "find what a compiler makes of code that is sharded already, and the cheapest changes",
    ),
    ("diff", "diff", "compare two saved plans: tensors, collectives, time, memory"),
    (
        "report",
        "report",
        "write one self-contained HTML file that explains a plan",
    ),
    (
        "list",
        "listing",
        "print the device-local program of a plan, or of the best plan that a search finds",
    ),
    ("run", "run", "compile and execute a plan, or the best plan that a search finds"),
    (
        "export",
        "export",
        "turn a saved plan into code: the fewest constraints as Python or a patch, or a test",
    ),
    (
        "compare",
        "compare",
        "measure saved plans side by side; Ctrl-C keeps the measurements so far",
    ),
    ("replay", "replay", "time one device's share of a saved plan on one device"),
    ("runs", "runs", "list the measurements that compare has kept"),
    (
        "compile",
        "compile",
        "compile a plan without running it, even for TPUs or GPUs that are not attached, and "
        "compare the result with its price",
    ),
    ("compiled", "compiled", "list the results that compile has kept"),
    (
        "install-gpu-compiler",
        "install_gpu_compiler",
        "install XLA's compiler for GPUs (about 200 MB) into a folder that is used only for "
        "compiling; neither a GPU nor CUDA is needed",
    ),
    ("models", "models", "list the built-in models and their sizes"),
    ("machines", "machines", "list the machines that plans can be priced on, with their sources"),
    (
        "calibrate",
        "calibrate",
        "measure the attached devices and write a machine file; Ctrl-C keeps the "
        "measurements so far",
    ),
    ("serve", "serve", "open the explorer in a browser"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status.

    Raises nothing but the ``SystemExit`` of argparse.
    """
    arguments = sys.argv[1:] if argv is None else argv
    args = make_parser(arguments).parse_args(arguments)
    args.words = ["toast-lab", *arguments]
    # Hides XLA's notes on devices; must be set before XLA is loaded
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with stopping.listening():
        status = _run(args, bool(args.debug))
        failed = keeping.say_failures(args)
        return stopping.TERMINATED if stopping.terminated() else status or int(failed)


def _run(args: argparse.Namespace, debug: bool) -> int:
    try:
        command = importlib.import_module(f"toast_lab.commands.{args.module}_command")
        status = int(command.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of our output is gone. Nothing more can be printed, not even by Python's flush
        # at exit.
        keeping.silence()
        return 141
    except stopping.Terminated:
        return _fail("terminated", stopping.TERMINATED, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except (errors.RunFailed, errors.NotSaved) as error:
        return _fail(str(error), 1, debug)
    except errors.ToastError as error:
        return _fail(str(error), 1 if type(error).__name__ == "Cancelled" else 2, debug)
    except OSError as error:
        return _fail(
            f"{error.filename}: {error.strerror}" if error.filename else str(error), 1, debug
        )
    except Exception as error:
        message = f"a bug in TOAST Lab, not in your input: {type(error).__name__}: {error}"
        return _fail(f"{message}. --debug shows where", 1, debug)


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    with contextlib.suppress(BrokenPipeError):
        print(f"toast-lab: {message}", file=sys.stderr)
    return status


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of all commands, with the options of only those commands that are in ``words``."""
    parser = argparse.ArgumentParser(
        prog="toast-lab",
        description="Shard machine-learning programs over a mesh of devices.",
        epilog="Start with: toast-lab analyse attention, then toast-lab search transformer "
        "--mesh 4x2.",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback behind an error")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module, summary in COMMANDS:
        command = command_parser(commands, name, summary, module)
        if name in words:
            importlib.import_module(f"toast_lab.commands.{module}_command").add_options(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
