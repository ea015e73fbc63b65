"""A link to a step opens that step even if the model takes long to load."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_shell import SLOW, on

pytestmark = pytest.mark.browser

# So many layers that the model is traced in a child process
ASKED = (
    "model=transformer&layers=3&d_model=64&hidden=128&heads=4&key_size=16&vocab=256&sequence=32"
    "&step=graph"
)


def test_a_link_with_a_step_arrives_there_when_its_model_is_loaded(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    page.goto(f"{served()}/?{ASKED}")
    notice = "Loading transformer; then “Understand” opens, as the link asks."
    expect(page.get_by_text(notice).first).to_be_visible(timeout=SLOW)
    # Meanwhile the address is still the link's, so that it can be copied or reloaded
    page.wait_for_url(re.compile("state="))
    assert re.search(r"model=transformer&layers=3.*step=graph", page.url), page.url
    page.reload()
    expect(page.get_by_text("Loaded transformer").first).to_be_visible(timeout=SLOW)
    expect(on(page, "Understand")).to_be_visible(timeout=SLOW)
    expect(page).to_have_url(re.compile(r"model=transformer&layers=3.*step=graph"), timeout=SLOW)


def test_the_first_click_on_a_table_sends_the_click_alone(
    served: Callable[..., str], strict_page: Page
) -> None:
    """The table's data, which has just come from the server, is not sent back with it."""
    page, sent = strict_page, list[str]()
    page.on(
        "websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame)))
    )
    page.goto(f"{served()}/?{ASKED.replace('step=graph', 'step=hand')}")
    row = page.locator(".tabulator-row", has_text="batch").filter(visible=True).first
    row.click(timeout=SLOW)
    expect(
        page.get_by_role("button", name=re.compile(r"^(data|model): .*, ")).first
    ).to_be_visible()
    assert any("cell-click" in frame or "table-edit" in frame for frame in sent), sent[-5:]
    assert not [frame for frame in sent if '"attributes"' in frame]
