"""Takes the pictures of docs/explorer.md: ``python -m tests.browser.screens [FOLDER] [STEP ...]``.

Each step of the explorer is reached as a person would reach it. The places that the page describes
get a frame and a number; the text below the picture says what the numbers stand for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.browser.marked import around, marked
from tests.browser.serving import launch_arguments, serving

ROOT = Path(__file__).parents[2]
SCREEN = {"width": 1280, "height": 720}
SLOW = 90_000
QUALITY = 70  #: of WebP; a PNG with fewer colours would lose the red of the conflicts
#: For each number, the parts of the page that its frame encloses.
Places = list[list[Locator]]


def load(page: Page) -> Places:
    """Show the first page."""
    solved = page.get_by_role("button", name=re.compile("^Solved: "))
    expect(solved.first).to_be_visible(timeout=SLOW)
    return [
        [
            page.get_by_role("button", name="Learn in five minutes"),
            page.get_by_role("button", name="See a 2-billion-parameter model sharded"),
        ],
        solved.all(),
        [
            page.get_by_label("axes and sizes"),
            page.get_by_role("button", name="Use this mesh and machine"),
        ],
    ]


def hand(page: Page) -> Places:
    """Shard attention's sequence on one axis, side 1, and select its row of the board."""
    go(page, "2 Understand")
    page.get_by_role("button", name="Conflict board").click()
    page.locator(
        ".tabulator-row:visible", has=page.get_by_role("gridcell", name="S", exact=True)
    ).first.click()
    page.get_by_role("button", name=re.compile("^side 1: ")).first.click()
    expect(page.get_by_text("manual plan: S@1->data").first).to_be_visible(timeout=SLOW)
    sides = _rows(page, "dim 0") + _rows(page, "dim 1")
    sides[0].click()
    switches = page.get_by_role("button", name=re.compile("^side [01]: "))
    expect(switches.first).to_be_visible(timeout=SLOW)
    return [
        sides,
        switches.all(),
        [
            page.get_by_role("heading", name=re.compile("plan by hand")).last,
            page.get_by_role("button", name="Redo").last,
            page.get_by_text(re.compile("× unsharded speed")).last,
        ],
        [page.get_by_text("One device's listing"), *page.locator(".listing:visible").all()],
    ]


def search(page: Page) -> Places:
    """Show the curves of a search of five seconds."""
    _searched(page)
    return [
        [page.get_by_label("seconds", exact=True), page.get_by_role("button", name="Round")],
        [*page.locator(".bk-Figure:visible").all(), page.get_by_role("button", name="Live")],
        [page.get_by_role("button", name="Improvements"), *_rows(page, "->")],
        [
            page.get_by_text("state", exact=True),
            page.get_by_role("button", name="Compare with other plans →"),
        ],
    ]


def tree(page: Page) -> Places:
    """Show the tree of such a search, with its best first action selected."""
    _searched(page)
    page.get_by_role("button", name="Tree", exact=True).click()
    expect(page.get_by_text("actions at unsharded")).to_be_visible(timeout=SLOW)
    _rows(page, "->")[0].click()
    expect(page.get_by_text("actions at unsharded")).to_be_hidden(timeout=SLOW)
    page.wait_for_timeout(1000)
    return [
        [page.locator(".bk-Figure:visible")],
        _rows(page, "->"),
        [
            page.get_by_text("selected step"),
            page.get_by_role("button", name="Go on by hand in the graph →"),
        ],
    ]


def compare(page: Page) -> Places:
    """Compare the plan found with data parallelism."""
    _searched(page)
    go(page, "4 Use")
    page.get_by_role("button", name="Add data parallel").click()
    expect(page.locator(".tabulator-row:visible", has_text="data parallel").first).to_be_visible(
        timeout=SLOW
    )
    return [
        _rows(page, "free"),
        [
            page.get_by_role("button", name="Time & memory"),
            page.get_by_role("button", name="Collectives").locator("visible=true"),
        ],
        page.get_by_role("button", name=re.compile("^Execute")).all(),
        [
            page.get_by_label("compile for").locator("visible=true"),
            page.get_by_role("button", name="Compile", exact=True),
        ],
        [
            page.get_by_label("export as"),
            page.get_by_role("button", name="Export", exact=True),
        ],
    ]


def _rows(page: Page, text: str) -> list[Locator]:
    """The visible table rows that contain a text."""
    return page.locator(".tabulator-row:visible", has_text=text).all()


def _searched(page: Page) -> None:
    """Run a search of five seconds to its end."""
    page.get_by_role("button", name=re.compile("^transformer")).click()
    expect(page.get_by_text("Loaded transformer").first).to_be_visible(timeout=SLOW)
    go(page, "3 Search")
    field = page.get_by_label("seconds", exact=True)
    field.fill("5")
    field.press("Enter")
    page.get_by_role("button", name="Run the search").click()
    expect(page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first).to_be_visible(timeout=SLOW)


def go(page: Page, title: str) -> None:
    """Go to a step by its number and title."""
    number, _, words = title.partition(" ")
    page.get_by_role("button", name=re.compile(rf"^{number}\s+{re.escape(words)}")).click()


STEPS: dict[str, Callable[[Page], Places]] = {
    "load": load,
    "hand": hand,
    "search": search,
    "tree": tree,
    "compare": compare,
}


def main(folder: Path, names: list[str]) -> None:
    """Take the pictures of the named steps, or of all steps if none is named."""
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as url, sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        for name in names or list(STEPS):
            page = browser.new_page(viewport=SCREEN, color_scheme="light")
            page.goto(url)
            places = STEPS[name](page)
            # Away from buttons, whose tooltips would cover the page
            page.mouse.move(SCREEN["width"] - 2, SCREEN["height"] - 2)
            # Until animations have ended and figures that are drawn late are there
            page.wait_for_timeout(2500)
            boxes = [around(*parts) for parts in places]
            picture = marked(browser, page.screenshot(), boxes)
            file = folder / f"{name}.webp"
            picture.save(file, "WEBP", quality=QUALITY, method=6)
            print(file, f"{file.stat().st_size / 1024:.0f} KiB", flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/screens", sys.argv[2:])
