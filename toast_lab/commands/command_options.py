"""Options that several commands share, and the types of their values.

Each command adds its own options in its own module (``add_options``); the groups in this module
mean the same in all commands.
"""

from __future__ import annotations

from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    _ActionsContainer,
    _SubParsersAction,
)
from collections.abc import Callable

from toast_lab import checks
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.search.methods import methods_text
from toast_lab.text import read_gib

MODEL_HELP = (
    'a built-in model (see "toast-lab models"), your own as package.module:make or file.py:make, '
    "or a StableHLO file"
)
PIN_HELP = (
    "an action that every plan must contain, or the sharding of an argument or result: "
    '"batch->data" "params[\'w\']=data,-" (one entry for each dim; -: whole, *: any axes, '
    "data+model: both axes)"
)
FORBID_HELP = (
    "an action that no plan may contain, or an axis that must not cut an argument or result: "
    "\"params['w']->data\""
)
ACTIONS_HELP = (
    'actions in order, such as "batch->data" "sequence@1->model"; without any, the unsharded '
    "program"
)
#: commands without ``--json``
WITHOUT_JSON = ("serve",)


def command_parser(
    commands: _SubParsersAction[ArgumentParser],
    name: str,
    summary: str,
    module: str,
) -> ArgumentParser:
    """The parser of one command, with the options that all commands have."""
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=description)
    parser.set_defaults(module=module)
    parser.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)
    if name not in WITHOUT_JSON:
        flag(parser, "--json", "print one JSON object and nothing else")
    return parser


def flag(parser: ArgumentParser, name: str, text: str) -> None:
    """An option without a value; ``text`` says what it does."""
    parser.add_argument(name, action="store_true", help=text)


def model(parser: ArgumentParser) -> None:
    """Options that select the model and how it is analysed."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--set",
        metavar="SIZE=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="sizes of the model, such as layers=2",
    )
    parser.add_argument(
        "--loop-rounds",
        metavar="N|LINE=N",
        nargs="+",
        action="extend",
        default=[],
        help="rounds of loops whose number the program does not state: of all, or of those at a "
        "source line, such as solve.py:12=40 (1)",
    )
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="lower a JAX function for this platform (that of the machine, else of this host)",
    )
    parser.add_argument(
        "--kernels",
        metavar="FILE.toml",
        help="rules of hand-written kernels, a table for each name (see the page on kernels)",
    )
    parser.add_argument(
        "--phases",
        choices=("joined", "separate"),
        default="joined",
        help="resolve conflicts of the backward pass jointly with those of the forward pass, or "
        "separately (%(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=300.0,
        metavar="SECONDS",
        help="time limit for loading your own model and for compiling and running plans "
        "(%(default)g)",
    )


def problem(parser: ArgumentParser, machine: str = "") -> None:
    """Options for mesh, machine and memory limit; ``machine`` describes the default machine."""
    parser.add_argument(
        "--mesh", help='such as "4x2" or data=4,model=2 (4x2, or the mesh of a given plan)'
    )
    priced_on(parser, machine)
    parser.add_argument(
        "--pad",
        type=padded_size,
        nargs="+",
        action="extend",
        default=[],
        metavar="COLOUR=SIZE",
        help="pad dims of a colour to a size that the mesh divides, such as vocabulary=50304",
    )


def priced_on(parser: ArgumentParser, machine: str = "") -> None:
    """Options for the machine, see ``problem``, and the memory of its devices."""
    default = None if machine else "tpu-v5e"
    parser.add_argument(
        "--machine",
        default=default,
        help=f'a name from "toast-lab machines", or FILE.toml ({machine or default})',
    )
    parser.add_argument(
        "--memory-limit",
        type=memory_gib,
        metavar="SIZE",
        help="memory limit of a device, in GiB or with a unit, such as 512MiB (the memory of the "
        "machine)",
    )


def padded_size(text: str) -> tuple[str, int]:
    """The colour and the size of ``--pad``."""
    colour, _, size = text.rpartition("=")
    if not colour or not size.isdigit():
        raise ArgumentTypeError(f"{text!r} is not COLOUR=SIZE, such as heads=32")
    return colour, int(size)


def pins(parser: ArgumentParser) -> None:
    """Options for pins: shardings that every plan, or no plan, has."""
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
        help="pin the shardings that are annotated in the program: all of them, or only those "
        "that this mesh allows (all)",
    )


def actions(parser: _ActionsContainer) -> None:
    """The option ``--actions``, which gives a plan."""
    parser.add_argument(
        "--actions", nargs="*", action="extend", default=None, metavar="ACTION", help=ACTIONS_HELP
    )


def plan(parser: ArgumentParser) -> None:
    """Options that give a plan, as actions or as a file."""
    group = parser.add_mutually_exclusive_group()
    actions(group)
    group.add_argument("--plan", metavar="FILE", help="a plan that --save wrote")


def search(parser: ArgumentParser, seconds: float) -> None:
    """Options of a search, which takes ``seconds`` by default."""
    add_option = parser.add_argument
    add_option("--method", default=None, metavar="METHOD", help=f"{methods_text()} (mcts)")
    budget(parser, seconds)
    add_option(
        "--threads",
        type=positive_int,
        default=None,
        help="number of threads, for methods that can use several (all cores)",
    )
    add_option(
        "--option",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help='options of the method, listed by "toast-lab search --help"',
    )
    add_option("--save-search", metavar="FILE", help="save the search, to resume it")
    add_option(
        "--resume",
        metavar="FILE",
        help="replay the search that --save-search saved of the same problem, and go on with a new "
        "budget",
    )


def judge(parser: ArgumentParser) -> None:
    """Options for the judge that confirms the plan."""
    parser.add_argument(
        "--judge",
        metavar="TOPOLOGY",
        help="compile good plans for tpu:v5e:4x4, gpu:h100:8 and so on, or execute them on "
        "attached devices (cpu:8), and search again with the corrected prices, until a plan is "
        "confirmed",
    )
    parser.add_argument(
        "--compiles",
        type=positive_int,
        default=12,
        help="maximum number of plans to judge, beside those that anybody gets for nothing, which "
        "are judged first (%(default)s)",
    )
    parser.add_argument(
        "--judge-limit",
        type=positive,
        default=None,
        metavar="SECONDS",
        help="time limit for searching and judging together; the best plan judged by then is given "
        "(none)",
    )
    parser.add_argument(
        "--compile-limit",
        type=positive,
        default=600.0,
        metavar="SECONDS",
        help="time limit for each judged plan (%(default)g)",
    )


def budget(parser: ArgumentParser, seconds: float) -> None:
    """Options for the budget and seed of a search, which takes ``seconds`` by default."""
    parser.add_argument(
        "--seconds",
        type=not_negative,
        default=None,
        help=f"time limit of the search ({seconds:g}; none with --evaluations)",
    )
    parser.add_argument(
        "--evaluations",
        type=not_negative_int,
        default=None,
        help="limit on the number of shardings that are priced",
    )
    parser.add_argument("--seed", type=seed, default=None, help="seed of the random choices (0)")
    parser.set_defaults(default_seconds=seconds)


def rows(parser: ArgumentParser, contents: str) -> None:
    """Options of searches on many workers; ``contents`` describes the files in their folder."""
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help=f"folder for {contents}; rows that it already holds are not computed again",
    )
    scheduler(parser)
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=1,
        help="number of processes on this machine; they share its cores (%(default)s)",
    )
    flag(parser, "--retry-crashed", "repeat searches that crashed or failed")
    parser.add_argument(
        "--retries",
        type=retries,
        default=1,
        help="how often to repeat a search whose process died (%(default)s)",
    )


def scheduler(parser: ArgumentParser) -> None:
    """The option ``--scheduler``, for work on many workers."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a dask.distributed scheduler (default: workers on this machine)",
    )


def planned(parser: ArgumentParser) -> None:
    """Options of a command about a plan: one that is given, or the best that a search finds."""
    problem(parser)
    plan(parser)
    search(parser, seconds=10.0)
    save(parser)


def timed(parser: ArgumentParser) -> None:
    """Options of a command that times steps on inputs of its own."""
    parser.add_argument(
        "--repeats", type=positive_int, default=10, help="timed steps of each plan (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of the random inputs (%(default)s)"
    )


def everything(parser: ArgumentParser) -> None:
    """The option ``--all``."""
    flag(parser, "--all", "print every row of long tables")


def save(parser: ArgumentParser) -> None:
    """The option ``--save``, which writes the plan to a file."""
    parser.add_argument("--save", metavar="FILE", help="write the plan as JSON")


# -- types of values -------------------------------------------------------------------------------


def _whole(least: int, most: int) -> Callable[[str], int]:
    """An argument type: whole numbers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            # Not a number, or a number with thousands of digits
            raise ArgumentTypeError(
                f"{_short(text)} is not a whole number from {least} to {most}"
            ) from None
        if not least <= value <= most:
            raise ArgumentTypeError(f"{_short(text)} is not between {least} and {most}")
        return value

    return parse


def _number(text: str, above: float | None) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{_short(text)} is not a number") from None
    return _checked(value, above)


def _checked(value: float, above: float | None) -> float:
    if offence := checks.number_offence(value, 0.0, checks.MOST_SECONDS, above=above):
        raise ArgumentTypeError(offence)
    return value


def positive(text: str) -> float:
    """An argument type: numbers above 0."""
    return _number(text, 0.0)


def memory_gib(text: str) -> float:
    """An argument type: memory sizes above 0, in GiB."""
    try:
        size_gib = read_gib(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{_short(text)} is not a number of GiB, nor a number with a unit, such as 512MiB"
        ) from None
    return _checked(size_gib, 0.0)


def bound(parser: ArgumentParser) -> None:
    """The option ``--bound``: how long to search for a proof of how good a plan is."""
    parser.add_argument(
        "--bound",
        type=not_negative,
        nargs="?",
        const=60.0,
        default=None,
        metavar="SECONDS",
        help="afterwards, spend at most this time (60) on proving how much better any plan could "
        "be",
    )


def not_negative(text: str) -> float:
    """An argument type: numbers that are at least 0."""
    return _number(text, None)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


seed = _whole(0, checks.MOST_SEED)
port = _whole(1, 65535)
retries = _whole(0, 1000)
positive_int = _whole(1, checks.MOST_COUNT)
not_negative_int = _whole(0, checks.MOST_COUNT)


def written(parser: ArgumentParser) -> None:
    """How much of a plan's gain the rules and constraints that are shown or exported may lose."""
    parser.add_argument(
        "--within",
        type=not_negative,
        default=5.0,
        metavar="PERCENT",
        help="write the plan with the fewest rules and constraints whose score is at most this "
        "percentage above the plan's (%(default)g)",
    )
    parser.add_argument(
        "--size",
        type=positive_int,
        default=None,
        metavar="COUNT",
        help="write the best plan of at most so many rules and constraints instead",
    )
