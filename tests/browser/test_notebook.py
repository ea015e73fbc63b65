"""``tl.explore`` and ``tl.views`` work inside a real JupyterLab."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from tests.processes import descendants, workers

# Imported by the server alone: it would cost every worker seconds
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="needs jupyterlab"),
]

SLOW = 120_000
CONFIG = """
c = get_config()
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
c.IdentityProvider.token = ""
c.ServerApp.disable_check_xsrf = True
c.ServerApp.root_dir = {root!r}
c.LabApp.check_for_updates_class = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
c.LabApp.news_url = None
"""
HERE = str(Path(__file__).parents[2])


def notebook(*sources: str) -> str:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"c{i}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for i, source in enumerate(sources)
    ]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


@pytest.fixture(scope="module")
def lab(served: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The URL and the folder of a running JupyterLab.

    All compiled kernels are prepared first: processes that compile them would count among its own.
    """
    subprocess.run([sys.executable, "-m", "toast_lab.prepare"], check=True, cwd=HERE)
    folder = tmp_path_factory.mktemp("lab")
    (folder / "config.py").write_text(CONFIG.format(root=str(folder)))
    words = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--config",
        str(folder / "config.py"),
        "--port",
        "{port}",
    ]
    folders = {"CONFIG_DIR": "", "DATA_DIR": "data", "RUNTIME_DIR": "run"}
    env = {"PYTHONPATH": HERE, **{f"JUPYTER_{k}": str(folder / v) for k, v in folders.items()}}
    return served(command=words, env=env), folder


class Outside:
    """Collects requests that leave this machine, and exceptions of the page."""

    def __init__(self, page: Page) -> None:
        self.found: list[str] = []
        page.on("request", lambda r: self.found.append(r.url) if self.leaves(r.url) else None)
        page.on("websocket", lambda s: self.found.append(s.url) if self.leaves(s.url) else None)
        page.on("pageerror", lambda error: self.found.append(str(error)))

    @staticmethod
    def leaves(url: str) -> bool:
        return re.match(r"(https?|wss?)://(?!127\.0\.0\.1)", url) is not None


@pytest.fixture
def outside(page: Page) -> Iterator[Outside]:
    watch = Outside(page)
    yield watch
    assert not watch.found, "\n".join(watch.found)


def opened(page: Page, lab: tuple[str, Path], name: str, *sources: str) -> None:
    url, folder = lab
    (folder / name).write_text(notebook(*sources))
    # In a shared workspace, the tabs of the last test would be restored
    page.goto(f"{url}/lab/workspaces/{name.partition('.')[0]}/tree/{name}")
    expect(page.locator(".jp-Cell").first).to_be_visible(timeout=SLOW)
    idle(page)


def idle(page: Page) -> None:
    """Wait until the kernel has nothing to do."""
    expect(page.get_by_text(re.compile("Python 3.*Idle")).first).to_be_visible(timeout=SLOW)


def run_cell(page: Page, number: int) -> None:
    """Run a cell; it is clicked first, since a frame may have the focus."""
    page.locator(f".jp-Cell[data-windowed-list-index='{number}'] .jp-InputPrompt").click()
    page.keyboard.press("Shift+Enter")


def status(pid: int) -> list[str]:
    """The fields of a process in /proc/PID/stat after its name: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def commands(pids: set[int]) -> list[str]:
    """The process number, state and command line of each process that has not ended."""
    lines = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            lines.append(f"{pid} {status(pid)[0]} {words}")
    return lines


def alive(pid: int) -> bool:
    try:
        return status(pid)[0] != "Z"
    except OSError:
        return False


def until(
    condition: Callable[[], Any],
    what: str,
    told: Callable[[], Any] = lambda: "nothing more is known",
    seconds: float = SLOW / 1000,
) -> Any:
    """Wait until a condition holds; ``told`` adds details to the message if it never does."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"gave up waiting for {what}: {told()}"
        time.sleep(0.1)
    return value


def test_explore_in_jupyterlab(lab: tuple[str, Path], page: Page, outside: Outside) -> None:
    opened(page, lab, "explore.ipynb", "import toast_lab as tl\ntl.explore('attention')")
    run_cell(page, 0)
    cell = page.frame_locator("iframe[title='TOAST Lab']")
    expect(cell.get_by_text("31 nodes")).to_be_visible(timeout=SLOW)
    cell.get_by_role("button", name=re.compile("4.*Use")).click()
    expect(cell.locator(".tabulator-row", has_text="unsharded").first).to_be_visible(timeout=SLOW)


SETUP = """
import os
import toast_lab as tl
analysis = tl.analyse(tl.load("attention"))
model = tl.load("transformer", layers=1, d_model=64, hidden=128, heads=4, key_size=16,\
 vocab=256, batch=8, sequence=32)
problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
print("kernel", os.getpid())
"""
START = (
    'run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))\ntl.views.search(run)'
)
BUSY = (
    'import pathlib, time\nwhile not pathlib.Path("wake").exists():\n    time.sleep(0.1)\n'
    'print("slept")'
)
AFTER = (
    'found = run.result(60)\nprint(f"simulations {len(found.trace.simulations)} '
    '{found.status.name}")'
)


def test_views_are_live_in_jupyterlab(lab: tuple[str, Path], page: Page, outside: Outside) -> None:
    """A graph reacts to clicks, a search is operated from its cell, and no process is left behind.

    The search is watched, paused and stopped while the kernel is busy.
    """
    opened(page, lab, "views.ipynb", SETUP, "tl.views.graph(analysis)", START, BUSY, AFTER)
    run_cell(page, 0)
    output = page.locator(".jp-OutputArea-output", has_text=re.compile(r"kernel \d+"))
    expect(output).to_be_visible(timeout=SLOW)
    kernel = int(output.inner_text().split()[1])
    run_cell(page, 1)
    graph = page.frame_locator("iframe[title='TOAST Lab graph']")
    expect(graph.get_by_text("31 nodes")).to_be_visible(timeout=SLOW)
    come_to_rest(page.locator("iframe[title='TOAST Lab graph']"))
    line = graph.locator(".listing .row", has_text="a : [")
    line.click()
    expect(graph.locator("h2", has_text="3 names")).to_be_visible(timeout=SLOW)
    click_name(graph, "S#3")
    expect(graph.locator(".listing .row.on", has_text="q : [")).to_be_visible(timeout=SLOW)
    run_cell(page, 2)
    search = page.frame_locator("iframe[title='TOAST Lab search']")
    expect(search.get_by_text("searching")).to_be_visible(timeout=SLOW)
    at_work = until(lambda: workers(kernel), "the process of the search")
    run_cell(page, 3)  # the kernel is busy now, but the frame goes on
    shown = search.locator("dt", has_text="simulations").locator("xpath=following-sibling::dd[1]")
    seen: set[str] = set()
    until(lambda: seen.add(shown.inner_text()) or len(seen) > 3, "a growing number of simulations")
    expect(page.get_by_text("slept", exact=True)).not_to_be_visible()
    lab[1].joinpath("wake").touch()
    search.get_by_role("button", name="Pause").click()
    expect(search.get_by_text("paused")).to_be_visible(timeout=SLOW)
    search.get_by_role("button", name="Go on").click()
    expect(search.get_by_text("searching")).to_be_visible(timeout=SLOW)
    search.get_by_role("button", name="Stop").click()
    expect(search.get_by_text("done")).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("slept", exact=True)).to_be_visible(timeout=SLOW)
    run_cell(page, 4)
    ended = page.locator(".jp-OutputArea-output", has_text="CANCELLED")
    expect(ended).to_be_visible(timeout=SLOW)
    n = int(ended.inner_text().split()[1])
    expect(shown).to_have_text(f"{n:,}")
    until(lambda: not any(map(alive, at_work)), f"the end of {at_work}")
    until(
        lambda: not workers(kernel),
        "the end of every process of the kernel",
        lambda: commands(workers(kernel)),
    )


def come_to_rest(frame: Locator) -> None:
    """Wait until JupyterLab has finished scrolling, so that a click hits its target."""
    places: list[Any] = []

    def rests() -> bool:
        places.append(frame.bounding_box())
        return len(places) > 5 and all(place == places[-1] for place in places[-5:])

    until(rests, "a frame that stays where it is")


def click_name(frame: FrameLocator, name: str) -> None:
    """Click a marker of the graph, located by the scales of its plot."""
    body = frame.locator("body")
    position = body.evaluate(POSITION, name)
    assert position is not None, f"no marker is called {name}"
    body.click(position={"x": position[0], "y": position[1]})


POSITION = """(body, name) => {
  const all = []
  const walk = (v) => { all.push(v); for (const c of (v.child_views || [])) walk(c) }
  for (const root of Object.values(Bokeh.index)) walk(root)
  const plot = all.find((v) => v.model.name === 'dimension graph')
  const data = plot.model.renderers.find((r) => r.name === 'names').data_source.data
  const i = [...data.title].findIndex((t) => t.startsWith(name + ' ') || t === name)
  if (i < 0) return null
  const box = plot.canvas_view.el.getBoundingClientRect(), own = body.getBoundingClientRect()
  return [box.left - own.left + plot.frame.x_scale.compute(data.x[i]),
          box.top - own.top + plot.frame.y_scale.compute(data.y[i])]
}"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_kernel_that_ends_takes_its_search_along(
    lab: tuple[str, Path], page: Page, outside: Outside
) -> None:
    """An interrupt ends a search that a cell waits for.

    Killing the kernel ends one in the background, even if it is paused.
    """
    waits = START.partition("\n")[0] + "\nrun.pause() or run.result()"
    opened(page, lab, "ends.ipynb", SETUP, START.partition("\n")[0] + "\nrun.result()", waits)
    run_cell(page, 0)
    output = page.locator(".jp-OutputArea-output", has_text=re.compile(r"kernel \d+"))
    expect(output).to_be_visible(timeout=SLOW)
    kernel = int(output.inner_text().split()[1])
    run_cell(page, 1)
    first = until(lambda: workers(kernel), "the process of the search")
    page.wait_for_timeout(500)
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("Interrupt Kernel")).click()
    expect(page.locator(".jp-OutputArea-output", has_text="KeyboardInterrupt").first).to_be_visible(
        timeout=SLOW
    )
    until(lambda: not any(map(alive, first)), f"the end of {first}")
    # A kernel drops requests that arrive while it still reports the interrupt
    idle(page)
    run_cell(page, 2)
    until(
        lambda: workers(kernel) - first,
        "the process of the second search",
        lambda: (commands(workers(kernel)), page.locator(".jp-Cell").all_inner_texts()),
    )
    second = [pid for pid, _ in descendants(kernel)]
    os.kill(kernel, 9)
    until(lambda: not any(map(alive, second)), f"the end of {second}")


NOTEBOOKS = sorted((Path(HERE) / "notebooks").glob("*.ipynb"))
#: Its search and race run beside the kernel that the browser talks to, so it is run again and again
OFTEN = "03_search_and_rivals"
RUNS = [
    pytest.param(
        path,
        f"{path.stem}-{run}.ipynb",
        id=f"{path.stem}-{run}",
        # The first of them is a test of every day
        marks=[] if (path.stem, run) == (OFTEN, 1) else [pytest.mark.slow],
    )
    for path in NOTEBOOKS
    for run in range(1, 11 if path.stem == OFTEN else 2)
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("source", "name"), RUNS)
def test_all_of_a_notebook_runs_while_a_browser_draws_its_frames(
    lab: tuple[str, Path], strict_page: Page, source: Path, name: str
) -> None:
    """Each run has a kernel of its own, which ends with it."""
    url, folder = lab
    page = strict_page
    page.set_viewport_size({"width": 1280, "height": 800})
    cells = json.loads(source.read_text())["cells"]
    opened(page, lab, name, *["".join(c["source"]) for c in cells if c["cell_type"] == "code"])
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def counts() -> list[Any]:
        page.keyboard.press("Control+s")
        page.wait_for_timeout(1000)
        try:
            saved = json.loads((folder / name).read_text())["cells"]
        except json.JSONDecodeError:  # it is just being written
            return [None]
        errors = [
            output
            for cell in saved
            for output in cell["outputs"]
            if output["output_type"] == "error"
        ]
        assert not errors
        return [cell["execution_count"] for cell in saved]

    until(lambda: all(counts()), "all cells of the notebook", seconds=1200)
    idle(page)
    assert counts() == [*range(1, len(counts()) + 1)]
    read(page)
    # A page whose kernel goes would complain in its console
    page.goto("about:blank")
    for kernel in page.request.get(f"{url}/api/kernels").json():
        page.request.delete(f"{url}/api/kernels/{kernel['id']}")


def read(page: Page) -> None:
    """Scroll through a notebook, so that JupyterLab draws all its outputs; each frame has words."""
    panel = page.locator(".jp-WindowedPanel-outer")
    panel.evaluate("panel => panel.scrollTo(0, 0)")
    moved = True
    while moved:
        page.wait_for_timeout(500)
        for frame in page.locator("iframe[title^='TOAST Lab']").all():
            words = frame.content_frame.get_by_text(re.compile(r"\w{3}")).filter(visible=True)
            expect(words.first).to_be_visible(timeout=SLOW)
        moved = panel.evaluate(
            """panel => {
              const before = panel.scrollTop
              panel.scrollBy(0, panel.clientHeight / 2)
              return panel.scrollTop > before
            }"""
        )
