"""The command line: the verbs of the library as ``toast-lab VERB MODEL ...``.

Each command prints a table or, with ``--json``, one JSON object.  This module holds only the
arguments and the exit statuses, so that ``--help`` is quick; what a command does is in
``toast_lab/commands``, imported on demand.

Exit status: 0 done, 1 the work failed or a result could not be kept, 2 the input was wrong, 130
interrupted, 141 nobody reads the output, 143 stopped by SIGTERM (what was found is printed and
saved).  Start reading at ``main``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from toast_lab import checks, errors
from toast_lab.commands import keeping, stopping
from toast_lab.search.methods import methods_text, options_text

MODEL_HELP = (
    'a built-in model (see "toast-lab models"), your own as package.module:make, or a '
    "StableHLO file"
)
PIN_HELP = (
    'an action that every plan has, or how an argument or result is cut: "batch->data" '
    "\"params['w']=data,-\" "
    "(one entry a dim; -: whole, *: open, data+model: both)"
)
FORBID_HELP = (
    "an action that no plan has, or an axis that an argument or result is not cut "
    "over: \"params['w']->data\""
)
ACTIONS_HELP = (
    'actions in order, for instance "batch->data" "sequence@1->model"; none at all: '
    "the unsharded program"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Gives the exit status and never raises (``SystemExit`` of argparse apart).
    """
    args = make_parser().parse_args(argv)
    # XLA's notes on its devices, before it is loaded
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with stopping.listening():
        status = _run(args, bool(args.debug))
        failed = keeping.say_failures(args)
        return stopping.TERMINATED if stopping.terminated() else status or int(failed)


def _run(args: argparse.Namespace, debug: bool) -> int:
    try:
        command = importlib.import_module(f"toast_lab.commands.{args.module}")
        status = int(command.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read our output is gone.  Nothing more can be said, not even at exit, when Python
        # flushes.
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
        text = f"a defect of TOAST Lab, not of your input: {type(error).__name__}: {error}"
        return _fail(f"{text}. --debug shows where", 1, debug)


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    with contextlib.suppress(BrokenPipeError):
        print(f"toast-lab: {message}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="toast-lab",
        description="Shard machine-learning programs over a mesh of devices.",
        epilog="Start with: toast-lab analyse attention, then toast-lab search transformer "
        "--mesh 4x2.",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback behind an error")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    p = _command(commands, "analyse", "colours, conflicts and compatibility sets of a model")
    _model(p)
    p.add_argument(
        "--mesh", help='also tell which dims no axis of this mesh divides ("4x2", data=4,model=2)'
    )
    p.add_argument(
        "--listing", action="store_true", help="print the program, every dim with its colour"
    )
    p.add_argument(
        "--names", action="store_true", help="print the program, every dim with its own name"
    )
    p.add_argument("--all", action="store_true", help="print every row of long tables")

    p = _command(commands, "search", "search for the best plan; Ctrl-C keeps the best so far")
    _model(p)
    _problem(p)
    _pins(p)
    _search(p, seconds=30.0)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.epilog = options_text()
    _save(p)

    p = _command(
        commands, "race", "run several methods on one problem; Ctrl-C keeps what they found"
    )
    _model(p)
    _problem(p)
    p.add_argument(
        "--methods",
        metavar="METHOD,...",
        default="mcts,manual",
        help="by name, with commas (%(default)s); see search",
    )
    _pins(p)
    _budget(p, seconds=10.0)
    p.add_argument(
        "--parallel",
        type=_positive_int,
        default=1,
        metavar="N",
        help="methods at once; they share cores (%(default)s)",
    )
    p.add_argument(
        "--csv",
        metavar="FILE",
        help="write the anytime curves: a row at each improvement of each method",
    )
    _save(p)

    p = _command(
        commands,
        "sweep",
        "search models x meshes x machines x methods x seeds; resumable, Ctrl-C keeps rows",
    )
    p.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="the sweep as TOML or JSON, instead of the options up to --seeds",
    )
    p.add_argument(
        "--models", nargs="+", metavar="MODEL", help='such as mlp or "t2b:layers=2|4,sequence=2048"'
    )
    p.add_argument(
        "--meshes", nargs="+", metavar="MESH", help='such as 4x2 or "data=4,model=2" (4x2)'
    )
    p.add_argument(
        "--machines", nargs="+", metavar="MACHINE", help='see "toast-lab machines" (tpu-v5e)'
    )
    p.add_argument("--methods", nargs="+", metavar="METHOD", help="see search (mcts)")
    p.add_argument("--seeds", metavar="SEEDS", help='such as "0-4" or "0,3" (0)')
    p.add_argument(
        "--seconds",
        type=_not_negative,
        metavar="SECONDS",
        help="of each search (30 unless --evaluations)",
    )
    p.add_argument("--evaluations", type=_positive_int, help="of each search")
    _rows(p, "rows.jsonl and the tables")
    p.add_argument(
        "--retries", type=_retries, default=1, help="of a search whose process died (%(default)s)"
    )

    bench = commands.add_parser(
        "bench", help="evaluations", description="Evaluations by one command."
    )
    kinds = bench.add_subparsers(metavar="WHAT", required=True)
    p = _command(
        kinds,
        "paper",
        "the paper's section 5: step and search times, scaling; resumable, Ctrl-C keeps rows",
        "bench",
    )
    p.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="of models scaling goals depth devices (all of them), and compiled",
    )
    p.add_argument("--models", nargs="+", metavar="MODEL", help="of gns unet itx t2b t7b (all)")
    p.add_argument("--machines", nargs="+", metavar="MACHINE", help="(a100 p100 tpu-v3)")
    p.add_argument("--methods", nargs="+", metavar="METHOD", help="(the paper's and one more)")
    p.add_argument("--seconds", type=_positive, metavar="SECONDS", help="of each search (20)")
    p.add_argument(
        "--compile-seconds",
        type=_positive,
        metavar="SECONDS",
        help="of each search whose plan is compiled (--seconds)",
    )
    p.add_argument(
        "--quick", action="store_true", help="small sizes and 2 s: to try it out, not for numbers"
    )
    p.add_argument(
        "--compile",
        action="store_true",
        help="also compile reduced models for TPU v3 and v5e (needs libtpu)",
    )
    p.add_argument("--page", metavar="FILE", help="the page (evaluation.md in --out)")
    _rows(p, "rows, tables, charts and the page")

    p = _command(commands, "price", "estimate time and memory of a plan")
    _model(p)
    _problem(p)
    _pins(p)
    _plan(p)
    _save(p)

    p = _command(
        commands, "conflicts", "every conflict, with what each side costs on each mesh axis"
    )
    _model(p)
    _problem(p)

    p = _command(commands, "why", "why a plan has a collective, and what would remove it")
    _model(p)
    p.add_argument(
        "question",
        metavar="WHICH",
        help="a kind (all_gather), a kind of op, a value, part of a source line (model.py:31), "
        "or a number",
    )
    _problem(p)
    _plan(p)
    _search(p, seconds=10.0)
    _save(p)

    p = _command(
        commands, "diff", "two saved plans side by side: tensors, collectives, time, memory"
    )
    _model(p)
    p.add_argument("before", metavar="PLAN", help="a plan that --save wrote")
    p.add_argument("after", metavar="OTHER", help="another one")
    _problem(p)

    p = _command(
        commands,
        "list",
        "the device-local program of a plan; without a plan, of the one a search finds",
        "listing",
    )
    _model(p)
    _problem(p)
    _plan(p)
    _search(p, seconds=10.0)
    _save(p)

    p = _command(commands, "run", "compile and execute a plan (or a search's plan)")
    _model(p)
    _problem(p)
    _plan(p)
    _search(p, seconds=10.0)
    p.add_argument(
        "--devices",
        default=None,
        help='"cpu:8" (virtual devices), "gpu" or "tpu"; cpu:N for the mesh by default',
    )
    p.add_argument("--repeats", type=_positive_int, default=10, help="timed steps (%(default)s)")
    _save(p)

    p = _command(
        commands,
        "export",
        "a saved plan as your own code: its fewest constraints, Python, a patch, a test",
    )
    _model(p)
    p.add_argument("plan", metavar="PLAN", help="a plan that --save wrote")
    _problem(p)
    p.add_argument(
        "--python", metavar="FILE", help="Python that shards the function, with JAX alone"
    )
    p.add_argument(
        "--patch", metavar="FILE", help="a diff that puts the constraints into your source"
    )
    p.add_argument(
        "--test", metavar="FILE", help="a pytest file that fails when collectives or memory drift"
    )
    p.add_argument("--rules", metavar="FILE", help="logical-axis rules for flax")
    p.add_argument("--stablehlo", metavar="FILE", help="the program with Shardy's annotations")
    p.add_argument(
        "--proof",
        choices=("compiled", "propagated"),
        default="compiled",
        help="who judges that constraints suffice: the compiler, or propagation alone, which is "
        "quicker (%(default)s)",
    )
    p.add_argument(
        "--seconds",
        type=_positive,
        default=300.0,
        metavar="SECONDS",
        help="look at most so long (%(default)g)",
    )

    p = _command(
        commands, "compare", "measure saved plans side by side; Ctrl-C keeps what was measured"
    )
    _model(p)
    p.add_argument(
        "plans", metavar="PLAN", nargs="+", help="plans that --save wrote, each on its own mesh"
    )
    p.add_argument(
        "--devices",
        default="cpu",
        help='"cpu:8" (virtual devices), "gpu", "tpu", "auto", or "distributed" under srun or '
        "mpirun (%(default)s)",
    )
    p.add_argument(
        "--repeats", type=_positive_int, default=10, help="timed steps of each plan (%(default)s)"
    )
    p.add_argument(
        "--rounds", type=_positive_int, help="that they are divided into (5, and 3 on accelerators)"
    )
    p.add_argument(
        "--processes",
        type=_positive_int,
        default=1,
        metavar="P",
        help="divide virtual devices among processes",
    )
    p.add_argument(
        "--machine", help='also predict for this machine, see "toast-lab machines", or FILE.toml'
    )
    p.add_argument(
        "--apart",
        action="store_true",
        help="one plan at a time, where memory does not hold all at once",
    )
    p.add_argument(
        "--no-gradients",
        action="store_true",
        help="compare outputs only with the unsharded program",
    )
    p.add_argument("--seed", type=_seed, default=0, help="of inputs and order (%(default)s)")
    p.add_argument(
        "--plan-time-limit", type=_positive, metavar="SECONDS", help="for one plan (its share)"
    )
    p.add_argument("--csv", metavar="FILE", help="write a line for each plan")
    p.add_argument("--store", metavar="FILE", help='keep the results here, or "none" (see runs)')

    p = _command(commands, "replay", "time one device's share of a saved plan on one device")
    _model(p)
    p.add_argument("plan", metavar="PLAN", help="a plan that --save wrote, for a mesh of any size")
    _problem(p)
    p.add_argument("--device", default="cpu", help='"cpu", "gpu", "tpu" or "auto" (%(default)s)')
    p.add_argument("--repeats", type=_positive_int, default=10, help="timed steps (%(default)s)")
    p.add_argument("--seed", type=_seed, default=0, help="of the made-up inputs (%(default)s)")

    p = _command(commands, "runs", "what compare has measured and kept")
    p.add_argument("show", metavar="show ID", nargs="*", help="all of one row")
    p.add_argument("--model", help="rows of this model only")
    p.add_argument(
        "--limit", type=_positive_int, metavar="N", help="the newest ones (20; all with --csv)"
    )
    p.add_argument("--csv", metavar="FILE", help="write the rows")
    p.add_argument(
        "--store",
        metavar="FILE",
        help="($TOAST_LAB_RUNS, or runs.sqlite in the user's data folder)",
    )

    p = _command(
        commands,
        "compile",
        "compile a plan without running it, for a TPU slice or GPUs that need not be there, and "
        "compare prices",
    )
    _model(p)
    _problem(p, "the topology's")
    _plan(p)
    p.add_argument(
        "--topology",
        default="tpu:v5e:4x4",
        help='"tpu:v5e:4x4" (needs libtpu, no TPU), "gpu:h100:8" or "gpu:a100:2x8" (hosts x GPUs '
        "of each; also p100, h200, b200 or an own one, gpu:FILE.toml:8; needs the compiler that "
        '"toast-lab install-gpu-compiler" gets, no GPU), "cpu:8" (virtual devices) or "gpu" '
        "(attached; %(default)s)",
    )
    p.add_argument("--no-cache", action="store_true", help="compile anew and keep nothing")
    p.add_argument("--all", action="store_true", help="print every row of long tables")
    _save(p)

    p = _command(
        commands,
        "install-gpu-compiler",
        "get XLA's compiler for GPUs (about 200 MB), into a folder that only compiling looks at; "
        "no GPU and no CUDA are needed",
        "gpu_compiler",
    )
    p.add_argument(
        "--folder",
        metavar="FOLDER",
        help="where to; compiling looks into it if $TOAST_LAB_GPU_COMPILER names it "
        "($TOAST_LAB_GPU_COMPILER, or a folder beside the compiled results)",
    )

    p = _command(commands, "models", "the built-in models and their sizes")
    p = _command(
        commands, "machines", "the machines that plans can be priced on, with their sources"
    )
    p.add_argument(
        "machine",
        metavar="MACHINE",
        nargs="?",
        help="only this one, by name or as a machine file (.toml)",
    )
    p.add_argument(
        "--mesh", help='also show how this mesh is laid onto its links ("4x4x4", data=4,model=2)'
    )
    p = _command(
        commands,
        "calibrate",
        "measure attached devices and write a machine file; Ctrl-C keeps what it has",
    )
    p.add_argument(
        "--devices",
        default="cpu:8",
        help='"cpu:8" (virtual devices), "gpu", "tpu:4" or "auto" (%(default)s)',
    )
    p.add_argument(
        "--quick", action="store_true", help="few and small sizes: to try it out, not for numbers"
    )
    p.add_argument(
        "--output", default="machine.toml", metavar="FILE", help="the machine file (%(default)s)"
    )
    p.add_argument(
        "--time-limit", type=_positive, default=600.0, metavar="SECONDS", help="%(default)g"
    )
    p = _command(commands, "serve", "open the explorer in a browser")
    p.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a built-in model or your own as package.module:make",
    )
    p.add_argument("--port", type=_port, default=5006, help="%(default)s")
    p.add_argument("--address", default="127.0.0.1", help="%(default)s")
    p.add_argument(
        "--allow-origin",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a name under which browsers reach this server; repeat it for more (needed with "
        "--address 0.0.0.0)",
    )
    p.add_argument("--show", action="store_true", help="open a browser window")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    module: str = "",
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(module=module or name)
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    if name != "serve":
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object and nothing else"
        )
    return parser


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--set",
        metavar="SIZE=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="sizes, such as layers=2",
    )
    parser.add_argument(
        "--phases",
        choices=("joined", "separate"),
        default="joined",
        help="tie backward conflicts to forward ones or not",
    )
    parser.add_argument(
        "--time-limit",
        type=_positive,
        default=300.0,
        metavar="SECONDS",
        help="for loading your own model, and for running (%(default)g)",
    )


def _problem(parser: argparse.ArgumentParser, machine: str = "") -> None:
    parser.add_argument("--mesh", help='"4x2" or data=4,model=2 (4x2, or the mesh of --plan)')
    default = None if machine else "tpu-v5e"
    parser.add_argument(
        "--machine",
        default=default,
        help=f'see "toast-lab machines", or FILE.toml ({machine or default})',
    )
    parser.add_argument(
        "--memory-limit", type=_positive, metavar="GIB", help="per device (the machine's memory)"
    )


def _pins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pin", metavar="WHAT", nargs="+", action="extend", default=[], help=PIN_HELP
    )
    parser.add_argument(
        "--forbid", metavar="WHAT", nargs="+", action="extend", default=[], help=FORBID_HELP
    )
    parser.add_argument(
        "--keep-annotations",
        nargs="?",
        choices=("all", "possible"),
        const="all",
        help="pin the shardings that the program itself has: all of them, or those that this "
        "mesh can keep (all)",
    )


def _plan(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--actions", nargs="*", action="extend", default=None, metavar="ACTION", help=ACTIONS_HELP
    )
    which.add_argument("--plan", metavar="FILE", help="a plan that --save wrote")


def _search(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument("--method", default=None, metavar="METHOD", help=f"{methods_text()} (mcts)")
    _budget(parser, seconds)
    parser.add_argument(
        "--threads",
        type=_positive_int,
        default=None,
        help="threads of a method that can use several (all cores)",
    )
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help='options of the method, listed by "toast-lab search --help"',
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write all that the search did, to look at or to resume"
    )
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help="go on with the search that --trace wrote, of the same problem, for a new budget",
    )


def _budget(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument(
        "--seconds",
        type=_not_negative,
        default=None,
        help=f"search at most so long ({seconds:g} unless --evaluations)",
    )
    parser.add_argument(
        "--evaluations",
        type=_not_negative_int,
        default=None,
        help="price at most so many shardings",
    )
    parser.add_argument("--seed", type=_seed, default=None, help="of the random choices (0)")
    parser.set_defaults(default_seconds=seconds)


def _rows(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help=f"folder for {what}; what is there is not done again",
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of dask.distributed (workers of this machine)"
    )
    parser.add_argument(
        "--workers",
        type=_positive_int,
        default=1,
        help="processes on this machine; they share cores (%(default)s)",
    )
    parser.add_argument(
        "--retry-crashed", action="store_true", help="do again what crashed or failed"
    )


def _save(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--save", metavar="FILE", help="write the plan as JSON")


def _whole(least: int, most: int) -> Callable[[str], int]:
    """A type of arguments: whole numbers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # no number, or one of thousands of digits
            raise argparse.ArgumentTypeError(
                f"{_short(text)} is not a whole number from {least} to {most}"
            ) from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{_short(text)} is not from {least} to {most}")
        return value

    return parse


def _number(text: str, above: float | None) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a number") from None
    if wrong := checks.number_offence(value, 0.0, checks.MOST_SECONDS, above=above):
        raise argparse.ArgumentTypeError(f"it {wrong}")
    return value


def _positive(text: str) -> float:
    return _number(text, 0.0)


def _not_negative(text: str) -> float:
    return _number(text, None)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


_seed = _whole(0, checks.MOST_SEED)
_port = _whole(1, 65535)
_retries = _whole(0, 1000)
_positive_int = _whole(1, checks.MOST_COUNT)
_not_negative_int = _whole(0, checks.MOST_COUNT)


if __name__ == "__main__":
    sys.exit(main())
