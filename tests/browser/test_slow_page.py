"""Changes that the server sends while a page is being built must not be lost."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.held_imports import hold_imports, release_imports

pytestmark = pytest.mark.browser

SLOW = 90_000
# Loading a model of four ops takes two seconds; after too short a wait the test proves nothing
LOAD_MS = 8000


def test_what_happens_while_the_page_is_built_is_not_lost(
    served: Callable[..., str], strict_page: Page
) -> None:
    """A load ends while the page is being built.

    A button is disabled, and the tables, plot and listing get the new model.
    """
    page = strict_page
    # The listing's module is imported while the views of the page are made, and all are made before
    # any is rendered: holding the imports keeps the page half built.
    hold_imports(page)
    command = [
        sys.executable,
        "-m",
        "toast_lab.cli",
        "serve",
        "--port",
        "{port}",
        "tests.browser.evil:make",
    ]
    page.goto(f"{served(command=command)}/?step=graph")
    page.wait_for_function("window.Bokeh?.documents?.length === 1", timeout=SLOW)
    page.wait_for_timeout(LOAD_MS)
    assert page.get_by_role("button", name="Cancel").count() == 0, (
        "the page was rendered all the same"
    )
    release_imports(page)
    expect(page.get_by_text("Loaded img_src_x").first).to_be_visible(timeout=SLOW)
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    # Hidden pages that were made ahead may contain both, too
    line = page.locator(".listing .row", has_text="tanh").filter(visible=True)
    expect(line).to_have_count(1)
    named = page.get_by_text("<img src=x onerror").filter(visible=True)
    expect(named.first).to_be_visible()
