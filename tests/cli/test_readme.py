"""What README.md shows is what comes out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from toast_lab import cli

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def comparable(text: str) -> list[str]:
    """Lines without the seconds that a search took and without spaces at the ends."""
    return [re.sub(r"in [\d.]+ s\.", "in ... s.", line.rstrip()) for line in text.strip().splitlines()]


def test_the_python_example_prints_what_is_shown() -> None:
    (code,) = blocks("python")
    shown = next(block for block in blocks("") if block.startswith("transformer:"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    printed, wanted = comparable(done.stdout), comparable(shown)
    assert len(printed) == len(wanted)
    if f"With jax {jax.__version__} this prints" in README:  # another jax writes another program
        assert printed == wanted


@pytest.mark.parametrize("command", ["analyse", "price"])
def test_the_commands_print_what_is_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in blocks("") if "$ toast-lab" in block]
    (part,) = [part for part in block.split("$ toast-lab ") if part.startswith(f"{command} ")]
    line, _, shown = part.partition("\n")
    assert cli.main(shlex.split(line)) == 0
    wanted = [text for text in comparable(shown) if text != "..."]
    assert comparable(capsys.readouterr().out)[: len(wanted)] == wanted
