"""Takes the pictures of docs/report.md: ``python -m tests.browser.report_pictures [FOLDER]``.

They show a real report of a Transformer's training step, opened from the disk: its summary, and a
conflict selected in its graph.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

import toast_lab as tl
from tests.browser.serving import launch_arguments

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 4, "d_model": 1024, "hidden": 4096, "heads": 16, "key_size": 64, "batch": 16}
SCREEN = {"width": 1280, "height": 760}
QUALITY = 60  #: of the WebP files
SLOW = 90_000


def write_report(file: Path) -> None:
    """Write a report that compares the plan of a search with Megatron's."""
    model = tl.load("transformer", sequence=1024, **SIZES)
    problem = tl.Problem(tl.analyse(model), {"data": 4, "model": 2}, machine="tpu-v5e")
    searched = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=5_000))
    actions = ["batch->data", "heads->model", "hidden->model"]
    plans = {"found": searched, "megatron": tl.Plan.from_actions(problem, actions)}
    tl.report(problem, plans, file, kept=False)


def take(page: Page, file: Path) -> None:
    """Save a screenshot once the page has come to rest."""
    page.wait_for_timeout(1500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.save(file, "WEBP", quality=QUALITY, method=6)
    print(file, f"{file.stat().st_size / 1024:.0f} KiB")


def main(folder: Path) -> None:
    """Take both pictures and save them in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as play:
        report = Path(scratch) / "report.html"
        write_report(report)
        browser = play.chromium.launch(**launch_arguments())
        page = browser.new_page(viewport=SCREEN, color_scheme="light")
        page.goto(report.as_uri())
        for name in ("graph", "timeline"):
            drawn = page.locator(f"[data-figure={name}][data-drawn]")
            expect(drawn).to_be_attached(timeout=SLOW)
        take(page, folder / "report-summary.webp")
        page.locator("tr[data-pick^=conflict]").first.click()
        page.locator("[data-figure=graph]").evaluate("figure => figure.scrollIntoView()")
        take(page, folder / "report-conflict.webp")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures")
