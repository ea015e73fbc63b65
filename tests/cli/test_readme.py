"""The examples in README.md and some pages of docs print what the pages show.

``python tests/cli/test_readme.py`` writes the current output into the pages.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
#: pages whose first Python example is followed by its output
EXAMPLES = ("README.md", "docs/python.md", "docs/which_mesh.md")
COMMANDS = "docs/commands.md"


def blocks(page: str) -> list[tuple[str, str]]:
    """The code blocks of a page, as (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def comparable(text: str) -> list[str]:
    """The lines of a text without the seconds of a search and without trailing spaces."""
    return [
        re.sub(r"in [\d.]+ s\.", "in ... s.", line.rstrip()) for line in text.strip().splitlines()
    ]


def python_example(page: str) -> tuple[str, str]:
    """The output of a page's example, and the output that the page shows."""
    listed = blocks(page)
    place = next(i for i, (language, _) in enumerate(listed) if language == "python")
    language, shown = listed[place + 1]
    assert not language, f"{page} shows nothing after its example"
    with tempfile.TemporaryDirectory() as folder:
        example = Path(folder) / "example.py"
        example.write_text(listed[place][1])
        argv = [sys.executable, str(example)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout, shown


def command_example(command: str) -> tuple[str, str]:
    """The output of a command of docs/commands.md, and the output that the page shows."""
    (block,) = [text for _, text in blocks(COMMANDS) if "$ toast-lab" in text]
    (part,) = [part for part in block.split("$ toast-lab ") if part.startswith(f"{command} ")]
    line, _, shown = part.partition("\n")
    argv = [sys.executable, "-m", "toast_lab.cli", *shlex.split(line)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout, shown


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_python_example_prints_what_is_shown(page: str) -> None:
    printed, shown = map(comparable, python_example(page))
    assert len(printed) == len(shown)
    # another version of jax may produce another program
    if f"With jax {jax.__version__} this prints" in (ROOT / page).read_text():
        assert printed == shown


@pytest.mark.parametrize("command", ["analyse", "price"])
def test_the_commands_print_what_is_shown(command: str) -> None:
    printed, shown = map(comparable, command_example(command))
    wanted = [line for line in shown if line != "..."]
    assert printed[: len(wanted)] == wanted


def update() -> None:
    """Replace the outputs that the pages show by the current ones."""
    outputs = [(page, *python_example(page)) for page in EXAMPLES]
    outputs += [(COMMANDS, *command_example(command)) for command in ("analyse", "price")]
    for page, printed, shown in outputs:
        lines = [line.rstrip() for line in printed.strip().splitlines()]
        if "\n..." in shown:
            # Keep as many paragraphs as the page shows now.
            ends = [i for i, line in enumerate(lines) if not line]
            lines = [*lines[: ends[shown.strip().count("\n\n")]], "..."]
        file = ROOT / page
        file.write_text(file.read_text().replace(shown.strip(), "\n".join(lines)))


if __name__ == "__main__":
    update()
