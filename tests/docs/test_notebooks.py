"""The notebooks run on a new machine, and print the outputs that are committed with them.

`make notebooks` makes the outputs: small, without widgets and without paths of a machine. A cell's
tag says how exactly its output must repeat: ``measured`` if a clock decides the numbers, and
``varies`` if a clock decides even what is found.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
import runpy
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: the jax whose outputs are kept; another version may produce another program and numbers
SHOWN_JAX = "0.10.2"
LIMIT_S = 900  #: to run one notebook
#: packages that a notebook needs to run: pip install "toast-lab[examples]"
NEEDS = {"02_shard_your_model": ("flax", "timesfm", "einshape")}
BYTES = 400_000  #: the most that a notebook may have
KINDS = {"text/plain", "image/png"}
ABSOLUTE = re.compile(
    r"(?<![\w.~/-])/(?:home|root|tmp|usr|var|opt|etc|mnt|srv|work|private|Users|Volumes)/\S+"
)


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells(path) for output in cell["outputs"]]


def texts(output: dict[str, Any]) -> str:
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "")))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_outputs(path: Path) -> None:
    executed = [cell["execution_count"] for cell in cells(path)]
    assert executed == [*range(1, len(executed) + 1)], "run `make notebooks`"
    printing = [
        cell for cell in cells(path) if re.search(r"^ *print\(", "".join(cell["source"]), re.M)
    ]
    assert printing
    assert all(cell["outputs"] for cell in printing)
    assert {output["output_type"] for output in outputs(path)} <= {
        "stream",
        "execute_result",
        "display_data",
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_small_text_and_pictures(path: Path) -> None:
    assert path.stat().st_size <= BYTES
    notebook = json.loads(path.read_text())
    assert "widgets" not in notebook["metadata"]
    for output in outputs(path):
        assert output.get("name", "stdout") == "stdout", "warnings of one machine"
        assert set(output.get("data", {})) <= KINDS
        assert "\x1b" not in texts(output), "colours of a terminal"
        if picture := output.get("data", {}).get("image/png"):
            assert base64.b64decode("".join(picture)).startswith(b"\x89PNG")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_name_no_place_of_a_machine(path: Path) -> None:
    assert not [hit for output in outputs(path) for hit in ABSOLUTE.findall(texts(output))]


def test_absolute_paths_are_recognised() -> None:
    assert ABSOLUTE.search('File "/ho' + 'me/someone/x.py"')
    assert ABSOLUTE.search("wrote /tmp/a" + "b/x.json")
    assert not ABSOLUTE.search("bytes/second, ./docs/x.md, op jit(f)/while/body, src/usr/x")


def comparable(cell: dict[str, Any]) -> list[list[str]]:
    """The reproducible part of a cell's outputs: for each output its kinds and its lines."""
    tags = cell["metadata"].get("tags", [])
    outcome = []
    for output in cell["outputs"]:
        lines = [" ".join(line.split()) for line in texts(output).splitlines()]
        lines = [re.sub(r"\bin [\d.]+ m?s\b", "in ... s", line) for line in lines if line]
        # If a command took longer than a minute, pytest also gives the time in minutes
        lines = [re.sub(r"s \(\d+:\d\d:\d\d\)", "s", line) for line in lines]
        if "measured" in tags:
            lines = [re.sub(r"-?\b\d[\d.,:e+-]*( [mun]?s\b)?", "#", line) for line in lines]
        if "varies" in tags:
            lines = ["..."] if lines else []
        outcome.append([*sorted(output.get("data", [output["output_type"]])), *lines])
    return outcome


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_is_kept_with(path: Path) -> None:
    needed = NEEDS.get(path.stem, ())
    if lacking := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed")
    notebook = script()["execute"](path, LIMIT_S, trial=True)
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(executed) == len(cells(path))
    for kept, fresh in zip(cells(path), executed, strict=True):
        if jax.__version__ == SHOWN_JAX:
            assert comparable(fresh) == comparable(kept), "".join(kept["source"])


@functools.cache
def script() -> dict[str, Any]:
    """The functions of the script that `make notebooks` runs."""
    return runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))


def cell(text: str, *tags: str) -> dict[str, Any]:
    """A cell with these tags that printed a text."""
    output = {"output_type": "stream", "name": "stdout", "text": text}
    return {"metadata": {"tags": list(tags)}, "outputs": [output]}


def test_numbers_of_a_clock_are_told_from_others() -> None:
    assert comparable(cell("a  1.5 ms\n")) == comparable(cell("a 1.5 ms"))
    assert comparable(cell("a 1.5 ms")) != comparable(cell("a 1.6 ms"))
    assert comparable(cell("done in 1.5 s")) == comparable(cell("done in 20.5 s"))
    measured = comparable(cell("7 passed in 80.1s (0:01:20)", "measured"))
    assert measured == comparable(cell("8 passed in 9.1s", "measured"))
    measured = comparable(cell("a 1.5 ms\nb -3", "measured"))
    assert measured == comparable(cell("a 812 us\nb 4e-05", "measured"))
    assert measured != comparable(cell("a 1.5 ms\nc 3", "measured"))
    assert measured != comparable(cell("a 1.5 ms", "measured"))
    assert comparable(cell("one", "varies")) == comparable(cell("a\nb", "varies"))
    assert comparable(cell("one", "varies")) != comparable(cell("", "varies"))


def test_what_a_kernel_sends_in_the_middle_of_a_line_is_one_line() -> None:
    # Imported here, since it takes five seconds, which every worker would spend to collect
    import nbformat

    def sent(text: str, name: str = "stdout") -> Any:
        return nbformat.v4.new_output("stream", name=name, text=text)

    outputs = [sent("10"), sent("a warning\n", "stderr"), sent(" actions: a b\n"), sent("next\n")]
    (kept,) = script()["joined"](outputs)
    assert kept.text == "10 actions: a b\nnext\n"
    assert outputs[0].text == "10", "what was sent stays as it is"
