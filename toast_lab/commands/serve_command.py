"""``toast-lab serve``: open the explorer in a browser."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab serve``."""
    add_option = parser.add_argument
    add_option(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a built-in model or your own as package.module:make or file.py:make",
    )
    add_option(
        "--port", type=command_options.port, default=5006, help="port of the server (%(default)s)"
    )
    add_option(
        "--address", default="127.0.0.1", help="address that the server listens on (%(default)s)"
    )
    add_option(
        "--allow-origin",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a host and port under which browsers reach this server; may be repeated (needed with "
        "--address 0.0.0.0)",
    )
    command_options.flag(parser, "--show", "open a browser window")


def run(args: Namespace) -> int:
    """Serve until interrupted."""
    serve = importlib.import_module("toast_lab.app.app_server").serve
    serve(
        port=args.port,
        address=args.address,
        model=args.model,
        show=args.show,
        origins=tuple(args.allow_origin),
    )
    return 0
