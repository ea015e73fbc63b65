"""Run the notebooks and keep their outputs: ``python scripts/notebooks.py [NAME ...]``.

Each notebook runs in a temporary folder. Only text and small PNG pictures are kept: the views of
``tl.views``, which talk to a server while a kernel runs, become pictures of their static form,
drawn by Chromium. Widgets, execution times and paths of this machine are left out. A notebook that
fails or runs out of time stays as it was.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
WIDTH = 960  #: width of a picture, in pixels
HEIGHT = 1200  #: most pixels; a longer table is cut off, and only the live view has all of it
COLOURS = 64  #: number of colours in a picture's palette
TEXT_LINES = 120  #: most lines of one printed output
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Run in the kernel before the first cell: views show their static form instead of a frame.
PREPARE = "from toast_lab.app.cells.view import CellView\nCellView._repr_html_ = CellView.to_html"
STYLE = (
    "body { margin: 8px; font: 13px sans-serif; background: white; color: #222 }"
    "table { border-collapse: collapse } td, th { padding: 2px 10px 2px 0 }"
)


def execute(path: Path, limit_s: float, trial: bool = False) -> nbformat.NotebookNode:
    """Run all cells of a notebook within ``limit_s`` seconds, and return it with its outputs.

    A trial draws no pictures. After each cell it sets the variables in the cell's metadata
    ``trial`` to the values given there, for instance shorter time limits, which suffice for a test.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TOAST_LAB_RUNS": str(Path(folder) / "runs.sqlite"),
        }
        client = NotebookClient(
            notebook,
            timeout=int(limit_s),
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        deadline = time.monotonic() + limit_s
        with client.setup_kernel(env=environment):
            own_cells = notebook.cells
            notebook.cells = [hidden_cell(PREPARE)]
            for cell in own_cells:
                notebook.cells.append(cell)
                for name, value in cell.metadata.get("trial", {}).items() if trial else ():
                    notebook.cells.append(hidden_cell(f"{name} = {value!r}"))
            for index, cell in enumerate(notebook.cells):
                client.timeout = max(1, int(deadline - time.monotonic()))
                client.execute_cell(cell, index, store_history="hidden" not in cell.metadata)
            notebook.cells = own_cells
        own_places = (os.path.realpath(folder), folder, str(ROOT), os.path.dirname(os.__file__))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                part
                for output in joined(cell.outputs)
                for part in keep(output, own_places, draw=not trial)
            ]
            cell.metadata.pop("execution", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def hidden_cell(source: str) -> nbformat.NotebookNode:
    """A cell that is run, but neither numbered nor kept."""
    return nbformat.v4.new_code_cell(source, metadata={"hidden": True})


def keep(output: Any, own_places: tuple[str, ...], draw: bool = True) -> list[Any]:
    """The parts of one output to keep: printed text, or a picture with its text.

    Without ``draw``, pictures are empty.
    """

    def plain(text: str) -> str:
        for place in own_places:
            text = text.replace(f"{place}/", "").replace(place, ".")
        text = re.sub(r"/tmp/[\w.-]+/?", "", ANSI.sub("", text))
        lines = [line.rstrip() for line in text.splitlines()]
        if len(lines) > TEXT_LINES:
            lines = [*lines[:TEXT_LINES], f"... {len(lines) - TEXT_LINES} lines more"]
        return "\n".join(lines) + "\n"

    if output.output_type == "stream":
        return [nbformat.from_dict({**output, "text": plain(output.text)})]
    content = {}
    if "text/plain" in output.data:
        content["text/plain"] = plain(output.data["text/plain"]).rstrip("\n")
    if content.get("text/plain") == "" and output.output_type == "display_data":
        return []  # an empty line
    if "\n" in content.get("text/plain", ""):
        pass  # a table that is printed as text needs no picture
    elif "text/html" in output.data:
        content["image/png"] = picture(output.data["text/html"]) if draw else ""
    elif "image/png" in output.data:
        content["image/png"] = output.data["image/png"]
    return [nbformat.from_dict({**output, "data": content, "metadata": {}})]


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs without stderr, with successive pieces of printed text joined into one.

    A kernel may send text in the middle of a line. stderr has warnings and progress messages of
    libraries, which belong to this machine.
    """
    whole: list[Any] = []
    for output in outputs:
        if output.output_type != "stream":
            whole.append(output)
        elif output.name != "stderr":
            if whole and whole[-1].output_type == "stream":
                whole[-1].text += output.text
            else:
                whole.append(nbformat.from_dict(dict(output)))
    return whole


def picture(html: str) -> str:
    """A PNG of some HTML, with few colours, in base64."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT))
    from tests.browser.serving import launch_arguments

    with sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        page = browser.new_page(viewport={"width": WIDTH, "height": 100})
        # Without a doctype, tables would not take the page's font size
        page.set_content(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{html}")
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        browser.close()
    cut = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, HEIGHT)))
    stream = io.BytesIO()
    cut.quantize(COLOURS).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def main() -> int:
    """Run the notebooks that are named on the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="for instance 01")
    parser.add_argument("--limit-s", type=float, default=1200, help="seconds for each notebook")
    options = parser.parse_args()
    failed = []
    for path in sorted(FOLDER.glob("*.ipynb")):
        if options.names and not any(path.name.startswith(name) for name in options.names):
            continue
        started = time.monotonic()
        try:
            notebook = execute(path, options.limit_s)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed.append(path.name)
            print(f"{path.name}: {str(error)[-1500:]}", file=sys.stderr, flush=True)
            continue
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        kib = path.stat().st_size / 1024
        print(f"{path.name}: {time.monotonic() - started:.0f} s, {kib:.0f} KiB", flush=True)
    if failed:
        print(f"not kept: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
