"""What README.md shows is what comes out.

``python tests/cli/test_readme.py`` writes the present output into it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest

FILE = Path(__file__).parents[2] / "README.md"
README = FILE.read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def comparable(text: str) -> list[str]:
    """Lines without the seconds that a search took and without spaces at the ends."""
    return [
        re.sub(r"in [\d.]+ s\.", "in ... s.", line.rstrip()) for line in text.strip().splitlines()
    ]


def python_example() -> tuple[str, str]:
    """What the example prints, and what README.md shows."""
    (code,) = blocks("python")
    shown = next(block for block in blocks("") if block.startswith("transformer:"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout, shown


def command_example(command: str) -> tuple[str, str]:
    """The same for one of the commands."""
    (block,) = [block for block in blocks("") if "$ toast-lab" in block]
    (part,) = [part for part in block.split("$ toast-lab ") if part.startswith(f"{command} ")]
    line, _, shown = part.partition("\n")
    argv = [sys.executable, "-m", "toast_lab.cli", *shlex.split(line)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout, shown


def test_the_python_example_prints_what_is_shown() -> None:
    printed, shown = map(comparable, python_example())
    assert len(printed) == len(shown)
    if f"With jax {jax.__version__} this prints" in README:  # another jax writes another program
        assert printed == shown


@pytest.mark.parametrize("command", ["analyse", "price"])
def test_the_commands_print_what_is_shown(command: str) -> None:
    printed, shown = map(comparable, command_example(command))
    wanted = [line for line in shown if line != "..."]
    assert printed[: len(wanted)] == wanted


def update() -> None:
    """Put the present output in place of what README.md shows."""
    text = README
    for printed, shown in (python_example(), command_example("analyse"), command_example("price")):
        lines = [line.rstrip() for line in printed.strip().splitlines()]
        if "\n..." in shown:
            # As many parts, which blank lines part, as are shown now.
            ends = [i for i, line in enumerate(lines) if not line]
            lines = [*lines[: ends[shown.strip().count("\n\n")]], "..."]
        text = text.replace(shown.strip(), "\n".join(lines))
    FILE.write_text(text)


if __name__ == "__main__":
    update()
