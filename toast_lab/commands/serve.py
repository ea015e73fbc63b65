"""``toast-lab serve``: the explorer in a browser."""

from __future__ import annotations

import argparse
import importlib


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    serve = importlib.import_module("toast_lab.app.serve").serve
    serve(
        port=args.port,
        address=args.address,
        model=args.model,
        show=args.show,
        origins=tuple(args.allow_origin),
    )
    return 0
