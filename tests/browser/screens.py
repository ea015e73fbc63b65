"""Pictures of every step of the explorer: ``python -m tests.browser.screens [FOLDER] [STEP ...]``.

Each step is taken at 1280x720 and 1440x900, light and dark, as a person would come there; pictures are made half as
wide and reduced to 64 colours, which keeps text readable and files small.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.conftest import free_port, launch_arguments, wait_until_answers

SIZES = ((1280, 720), (1440, 900))
THEMES = ("light", "dark")
SLOW = 90_000
SHARE = 0.5  #: of the width that is kept
COLOURS = 64


def load(page: Page) -> None:
    """The gallery."""
    expect(page.get_by_role("button", name=re.compile("^attention"))).to_be_visible(timeout=SLOW)


def graph(page: Page) -> None:
    """A Transformer's graph, one conflict picked in the table."""
    _transformer(page)
    page.get_by_role("button", name=re.compile("Graph & conflicts")).click()
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row", has_text="scores_1").locator("visible=true").first.click()


def hand(page: Page) -> None:
    """Attention, sharded by hand along its sequence."""
    page.get_by_role("button", name=re.compile("^attention")).click()
    expect(page.get_by_text("Loaded attention").first).to_be_visible(timeout=SLOW)
    page.get_by_role("button", name=re.compile("By hand")).click()


def search(page: Page) -> None:
    """Curves of a search."""
    _transformer(page)
    page.get_by_role("button", name=re.compile("^4.*Search")).click()
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)


def tree(page: Page) -> None:
    """The tree of the same search."""
    search(page)
    page.get_by_role("button", name="Tree", exact=True).click()


def compare(page: Page) -> None:
    """What was found beside data parallel."""
    search(page)
    page.get_by_role("button", name=re.compile("Compare & run")).click()
    page.get_by_role("button", name="Add data parallel").click()


def _transformer(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^transformer")).click()
    expect(page.get_by_text("Loaded transformer").first).to_be_visible(timeout=SLOW)


STEPS: dict[str, Callable[[Page], None]] = {
    "load": load, "graph": graph, "hand": hand, "search": search, "tree": tree, "compare": compare,
}  # fmt: skip


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The explorer on a free port."""
    port, log = free_port(), folder / "server.log"
    with log.open("wb") as output:
        words = [sys.executable, "-m", "toast_lab.cli", "serve", "--port", str(port)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(os.environ))
    try:
        wait_until_answers(f"http://127.0.0.1:{port}", process, log, 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.unlink()


def small(png: bytes) -> Image.Image:
    """The picture as it is kept."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    part = whole.resize((int(whole.width * SHARE), int(whole.height * SHARE)), Image.Resampling.LANCZOS)
    return part.quantize(COLOURS, dither=Image.Dither.NONE)


def main(folder: Path, names: list[str]) -> None:
    """Take the pictures of the steps named, all of them by default."""
    folder.mkdir(parents=True, exist_ok=True)
    with served(folder) as url, sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        for name in names or list(STEPS):
            for theme in THEMES:
                for width, height in SIZES:
                    screen = {"width": width, "height": height}
                    page = browser.new_page(viewport=screen, color_scheme=theme)
                    page.goto(url)
                    STEPS[name](page)
                    page.wait_for_timeout(2500)  # what moves has come to rest, and what is drawn late is there
                    file = folder / f"{name}-{width}-{theme}.png"
                    small(page.screenshot()).save(file, optimize=True)
                    print(file, file.stat().st_size, flush=True)
                    page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screens"), sys.argv[2:])
