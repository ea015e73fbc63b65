"""Pictures of every step of the explorer: ``python -m tests.browser.screens [FOLDER] [STEP ...]``.

Each step is taken at 1280x720 and 1440x900, light and dark, as a person would come there; pictures
are made half as wide, which keeps text readable and files small.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.serving import launch_arguments, serving

SIZES = ((1280, 720), (1440, 900))
THEMES = ("light", "dark")
SLOW = 90_000
SHARE = 0.5  #: of the width that is kept
QUALITY = 60  #: of WebP; fewer colours in a PNG would take the red from the conflicts


def load(page: Page) -> None:
    """The gallery."""
    expect(page.get_by_role("button", name=re.compile("^attention"))).to_be_visible(timeout=SLOW)


def graph(page: Page) -> None:
    """A Transformer's graph, one conflict picked in the table."""
    _load(page, "transformer")
    _go(page, "2 Graph & conflicts")
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row", has_text="scores_1").locator("visible=true").first.click()


def attention(page: Page) -> None:
    """Attention's names, its compatibility set outlined."""
    _go(page, "2 Graph & conflicts")
    expect(page.get_by_text("31 nodes")).to_be_visible(timeout=SLOW)


def hand(page: Page) -> None:
    """Attention with its sequence on one axis, side 1."""
    _go(page, "3 By hand")
    page.locator(
        ".tabulator-row:visible", has=page.get_by_role("gridcell", name="S", exact=True)
    ).first.click()
    page.get_by_role("button", name=re.compile("^data, side 1")).first.click()
    expect(page.get_by_text("manual plan: S@1->data").first).to_be_visible(timeout=SLOW)


def tour(page: Page) -> None:
    """A step of the guided tour."""
    page.get_by_role("button", name="Tour", exact=True).click()
    page.get_by_role("button", name="Figures", exact=True).click()
    page.locator(".tabulator-row:visible", has_text="Figure 2b").first.click()
    page.get_by_role("button", name="Do it for me").click()


def search(page: Page) -> None:
    """Curves of a search of five seconds."""
    _load(page, "transformer")
    _go(page, "4 Search")
    field = page.get_by_label("seconds", exact=True)
    field.fill("5")
    field.press("Enter")
    page.get_by_role("button", name="Run the search").click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)


def tree(page: Page) -> None:
    """The tree of the same search."""
    search(page)
    page.get_by_role("button", name="Tree", exact=True).click()


def compare(page: Page) -> None:
    """What was found beside data parallel."""
    search(page)
    _go(page, "5 Compare & run")
    page.get_by_role("button", name="Add data parallel").click()
    expect(page.locator(".tabulator-row:visible", has_text="data parallel").first).to_be_visible(
        timeout=SLOW
    )


def _load(page: Page, model: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{model}")).click()
    expect(page.get_by_text(f"Loaded {model}").first).to_be_visible(timeout=SLOW)


def _go(page: Page, title: str) -> None:
    number, _, words = title.partition(" ")
    page.get_by_role("button", name=re.compile(rf"^{number}\s+{re.escape(words)}")).click()


STEPS: dict[str, Callable[[Page], None]] = {
    "load": load,
    "graph": graph,
    "attention": attention,
    "hand": hand,
    "tour": tour,
    "search": search,
    "tree": tree,
    "compare": compare,
}


def small(png: bytes) -> Image.Image:
    """The picture as it is kept."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    part = whole.resize(
        (int(whole.width * SHARE), int(whole.height * SHARE)), Image.Resampling.LANCZOS
    )
    return part


def main(folder: Path, names: list[str]) -> None:
    """Take the pictures of the steps named, all of them by default."""
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as url, sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        for name in names or list(STEPS):
            for theme in THEMES:
                for width, height in SIZES:
                    screen = {"width": width, "height": height}
                    page = browser.new_page(viewport=screen, color_scheme=theme)
                    page.goto(url)
                    STEPS[name](page)
                    # Away from buttons, whose tips would lie over the page
                    page.mouse.move(width - 2, height - 2)
                    # What moves has come to rest, and what is drawn late is there
                    page.wait_for_timeout(2500)
                    file = folder / f"{name}-{width}-{theme}.webp"
                    small(page.screenshot()).save(file, "WEBP", quality=QUALITY, method=6)
                    print(file, file.stat().st_size, flush=True)
                    page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screens"), sys.argv[2:])
