"""Each how-to guide is a program that prints the outputs it shows.

``python tests/docs/test_guides.py [PAGE ...]`` writes the current output into the pages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
#: page -> the packages that it needs to run
GUIDES: dict[str, tuple[str, ...]] = {
    "bring_a_model": ("optax", "flax", "equinox", "haiku", "torch", "torchax"),
    "read_a_conflict": (),
    "fit_into_memory": ("optax",),
    "pad_sizes": (),
    "confirm_a_plan": (),
    "explain_collectives": (),
    "audit": (),
    "take_a_plan_home": (),
    "sweep_on_a_cluster": ("distributed",),
    "extend": (),
}
#: the jax whose outputs the pages show
SHOWN_JAX = "0.10.2"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Each block is written to a file, so that errors and source lines have a place, and its output is
# captured separately.
CHILD = """
import contextlib, io, json, linecache, sys
space, printed = {"__name__": "guide"}, []
for number, code in enumerate(json.load(open(sys.argv[1]))):
    name = f"guide_{number}.py"
    open(name, "w").write(code)
    caught = io.StringIO()
    with contextlib.redirect_stdout(caught):
        exec(compile(code, name, "exec"), space)
    printed.append(caught.getvalue())
json.dump(printed, open(sys.argv[2], "w"))
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """The code blocks of a page and the outputs that it shows, in order, as (kind, text)."""
    return BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())


def printed(page: str) -> list[str]:
    """The output of each Python block of a page; they run in order in one process."""
    code = [text for kind, text in blocks(page) if kind == "python"]
    with tempfile.TemporaryDirectory() as folder:
        blocks_file, output = Path(folder) / "code.json", Path(folder) / "printed.json"
        blocks_file.write_text(json.dumps(code))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), folder]),
            "TOAST_LAB_RUNS": f"{folder}/runs.sqlite",
            "TOAST_LAB_COMPILED": f"{folder}/compiled.sqlite",
            "JAX_PLATFORMS": "cpu",
        }
        argv = [sys.executable, "-c", CHILD, str(blocks_file), str(output)]
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, f"{page}: {done.stderr[-3000:]}"
        # Remove the frames of this test below those of the page
        own_frames = r" < <string>:\d+"
        return [re.sub(own_frames, "", text) for text in json.loads(output.read_text())]


def comparable(text: str) -> list[str]:
    """The lines of a text that are not empty, without measured seconds."""
    lines = (re.sub(r"in [\d.]+ s\b", "in ... s", line.rstrip()) for line in text.splitlines())
    return [line for line in lines if line]


def shown(page: str) -> dict[int, str]:
    """The outputs that a page shows, by the number of their Python block."""
    outputs: dict[int, str] = {}
    number = -1
    for kind, text in blocks(page):
        if kind == "python":
            number += 1
        else:
            outputs[number] = text
    return outputs


def test_every_guide_is_listed() -> None:
    section = (ROOT / "mkdocs.yml").read_text().partition("- How to:")[2].partition("- Ref")[0]
    assert set(re.findall(r": (\w+)\.md", section)) >= set(GUIDES)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_prints_what_it_shows(page: str) -> None:
    lacking = [name for name in GUIDES[page] if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} not installed")
    outputs, expected = printed(page), shown(page)
    assert len(outputs) >= 1
    assert all(text.strip() for text in expected.values()), "an output is empty"
    for number, text in expected.items():
        assert outputs[number].strip(), f"block {number} prints nothing"
        # Another version of jax may produce another program, with other numbers
        if jax.__version__ == SHOWN_JAX:
            assert comparable(outputs[number]) == comparable(text)


def update(page: str) -> None:
    """Write the current outputs into a page."""
    outputs = printed(page)
    file = ROOT / "docs" / f"{page}.md"
    number = -1

    def replaced(match: re.Match[str]) -> str:
        nonlocal number
        if match.group(1) == "python":
            number += 1
            return match.group()
        lines = [line.rstrip() for line in outputs[number].strip().splitlines()]
        return "```text\n" + "\n".join(lines) + "\n```"

    file.write_text(BLOCK.sub(replaced, file.read_text()))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or GUIDES:
        update(chosen)
        print(chosen, flush=True)
