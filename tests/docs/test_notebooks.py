"""The notebooks are kept with outputs: small, without widgets, without this machine's paths.

`make notebooks` makes them; nothing is executed here.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
BYTES = 400_000  #: of a notebook
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
