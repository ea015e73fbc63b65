"""The command line as a function that tests call."""

from __future__ import annotations

from typing import Any

import pytest

from toast_lab import cli


@pytest.fixture
def toast(capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs a command in this process and returns (status, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as stop:  # raised by argparse
            status = int(stop.code or 0)
        done = capsys.readouterr()
        return status, done.out, done.err

    return run
