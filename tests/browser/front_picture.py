"""Takes the picture of README.md: ``python -m tests.browser.front_picture [FILE]``.

The explorer is driven to a selected conflict; the places of interest get a frame and a number, and
a strip below the screen explains them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.marked import HUE, Box, around, marked
from tests.browser.screens import SLOW, go
from tests.browser.serving import launch_arguments, serving
from tests.browser.test_explorer import pixel

ROOT = Path(__file__).parents[2]
SCREEN = {"width": 1440, "height": 900}
STRIP = 92  #: height of the strip with the sentences, in pixels
COLOURS = 200  #: in the palette of the PNG
SIZES = {"sequence": "8192", "d_model": "2048", "key": "128", "value": "128"}
MESH = "data=8"

SENTENCES = (
    "A conflict: both dims of a = k @ qt have one colour, S, and a mesh axis can cut only one of "
    "them. One bit settles all five.",
    "The line of your code where it happens.",
    "Why the two dims have one colour: the chain from one to the other through the program.",
    "The two sides, priced: step time and memory of a device if the left or the right dim is cut.",
)

# Makes the paths of this machine relative to the repository, in every shadow root.
SHORTEN = """(root) => {
  const walk = (node) => {
    if (node.nodeType === 3 && node.data.includes(root)) node.data = node.data.replace(root, '')
    if (node.shadowRoot) walk(node.shadowRoot)
    for (const child of node.childNodes) walk(child)
  }
  walk(document.body)
}"""


def select_conflict(page: Page) -> None:
    """Load attention at a size where both sides pay off, and select its first conflict."""
    expect(page.get_by_text("31 of 31 names").filter(visible=True)).to_be_visible(timeout=SLOW)
    # Without Enter, which would already apply the mesh
    page.get_by_label("axes and sizes").fill(MESH)
    page.get_by_role("button", name="Use this mesh and machine").click()
    expect(page.get_by_text(f"Mesh {MESH}").first).to_be_visible(timeout=SLOW)
    for name, size in SIZES.items():
        field = page.get_by_label(name, exact=True).first
        field.fill(size)
        field.press("Enter")
    page.get_by_role("button", name="Load with these sizes").click()
    expect(page.get_by_role("gridcell", name=f"f32[{SIZES['sequence']}, ").first).to_be_visible(
        timeout=SLOW
    )
    go(page, "2 Understand")
    expect(page.get_by_text("31 nodes")).to_be_visible(timeout=SLOW)
    page.get_by_text("Conflicts", exact=True).click()
    page.locator(".tabulator-row:visible", has_text="attention.py").first.click()
    expect(page.get_by_text("Why both dims have one colour")).to_be_visible(timeout=SLOW)
    page.get_by_text("Source", exact=True).click()
    expect(page.get_by_text("a = k @ qt").last).to_be_visible(timeout=SLOW)
    page.mouse.move(SCREEN["width"] - 2, SCREEN["height"] - 2)
    # Until animations have ended and figures that are drawn late are there
    page.wait_for_timeout(3000)
    page.evaluate(SHORTEN, f"{ROOT}/")


def places(page: Page) -> list[Box]:
    """The boxes that the sentences describe, in the same order."""
    x, y = pixel(page, "conflicts", 0)
    line = around(page.get_by_text("a = k @ qt").last)
    return [
        Box(x - 94, y - 16, x + 94, y + 16),
        line._replace(left=line.left - 60),
        around(
            page.get_by_text("Why both dims have one colour"),
            page.get_by_text("S#6 a = matmul(k, qt)").last,
        ),
        around(*page.get_by_role("button", name=f"{MESH.split('=')[0]}, side").all()),
    ]


def sentences() -> str:
    """The HTML of the strip below the screen."""
    rows = "".join(
        f'<p style="margin:0"><b style="color:{HUE}">{number}</b>&ensp;{sentence}</p>'
        for number, sentence in enumerate(SENTENCES, 1)
    )
    return (
        '<div style="padding:10px 20px;display:grid;grid-template-columns:1fr 1fr;gap:8px 36px;'
        f'box-sizing:border-box;height:{STRIP}px">{rows}</div>'
    )


def main(file: Path) -> None:
    """Take the picture and save it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with serving() as url, sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        page = browser.new_page(viewport=SCREEN, color_scheme="light")
        page.goto(url)
        select_conflict(page)
        boxes = places(page)
        picture = marked(browser, page.screenshot(), boxes, below=sentences(), strip=STRIP)
        browser.close()
    picture.quantize(COLOURS).save(file, "PNG", optimize=True)
    print(file, f"{file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures/conflict.png")
