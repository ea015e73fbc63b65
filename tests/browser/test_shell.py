"""Features that all pages share, tested in the browser.

These are themes, links, keys, and the isolation of sessions from each other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

pytestmark = pytest.mark.browser

SLOW = 90_000
expect.set_options(timeout=30_000)  # a busy machine is slow
FIELD = {
    "Load": "axes and sizes",
    "Graph": "find a value",
    "Search": "memory limit",
    "Compare": "name of that plan",
}


def contrast(page: Page, target: Locator) -> float:
    """The contrast of an element's text against the first background behind it.

    The search for the background crosses shadow roots.
    """
    end = time.monotonic() + SLOW / 1000
    # A table that is being filled replaces its cells, and a removed cell has no colour.
    while (ratio := target.evaluate(CONTRAST)) is None:
        assert time.monotonic() < end, f"{target} is never there for long"
    return float(ratio)


CONTRAST = """(element) => {
  if (!element.isConnected) return null
  const parse = (text) => text.match(/[\\d.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
  const ink = parse(getComputedStyle(element).color)
  let behind = element, paper = [255, 255, 255]
  while (behind) {
    const found = parse(getComputedStyle(behind).backgroundColor)
    if (found.length < 4 || found[3] > 0.5) { paper = found; break }
    behind = behind.assignedSlot ?? behind.parentElement ?? behind.getRootNode().host
  }
  const [a, b] = [light(ink), light(paper)]
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
}"""


def theme(page: Page) -> str:
    return str(page.evaluate("document.documentElement.dataset.tlTheme"))


def loaded(page: Page, url: str, text: str = "31 of 31 names") -> None:
    page.goto(url)
    expect(page.get_by_text(text).first).to_be_visible(timeout=SLOW)
    # The page and its server are now connected
    expect(page).to_have_url(re.compile("state="), timeout=SLOW)


def act(page: Page, key: str) -> None:
    """Press a key while no field has the focus."""
    page.keyboard.press(key)


def on(page: Page, name: str) -> Locator:
    """The active button of the navigation, if its page is the one named."""
    return page.locator(".bk-btn.bk-active", has_text=name)


# -- themes ----------------------------------------------------------------------------------------


def test_the_theme_follows_the_system_until_it_is_chosen_and_then_stays(
    served: Callable[..., str], browser: Browser, strict_page: Page
) -> None:
    page, url = strict_page, served()
    page.emulate_media(color_scheme="dark")
    loaded(page, url)
    assert theme(page) == "dark"
    sent: list[Any] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    page.get_by_role("button", name=re.compile("^theme: as the system, dark")).click()
    assert theme(page) == "light"
    page.get_by_role("button", name=re.compile("^theme: light")).click()
    assert theme(page) == "dark"
    page.emulate_media(color_scheme="light")
    assert theme(page) == "dark"
    assert not sent, "no round trip"
    # the next document is dark before it has drawn anything
    page.add_init_script(
        "document.addEventListener('DOMContentLoaded', () => { window.first = "
        "document.documentElement.dataset.tlTheme"
        " + getComputedStyle(document.documentElement).backgroundColor })"
    )
    page.reload()
    expect(page.get_by_text("31 of 31 names").first).to_be_visible(timeout=SLOW)
    assert page.evaluate("window.first") == "darkrgb(13, 17, 23)"
    expect(page.get_by_role("button", name=re.compile("^theme: dark"))).to_be_visible()
    act(page, "t")
    assert theme(page) == "light"  # follows the system again


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_texts_can_be_read_on_every_page(
    served: Callable[..., str], strict_page: Page, scheme: Any
) -> None:
    page = strict_page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1280, "height": 720})
    loaded(page, served())
    # The first page has tables once a model has been chosen
    page.get_by_role("button", name=re.compile("^attention")).click()
    for number, name in enumerate(("Load", "Understand", "Search", "Use"), 1):
        act(page, str(number))
        expect(on(page, name)).to_be_visible(timeout=SLOW)
        if name == "Search":
            # There is a table only once there is something to list
            page.get_by_role("button", name="Step", exact=True).click()
        expect(page.locator(".tabulator-col-title:visible").first).to_be_visible(timeout=SLOW)
        targets = [
            page.locator("h2:visible").first,
            page.locator(".status:visible"),
            page.locator(".tabulator-col-title:visible").first,
            page.locator(".bk-btn:visible:not([disabled])").last,
            on(page, name),
        ]
        if page.locator(".tabulator-cell:visible").count():
            targets.append(page.locator(".tabulator-cell:visible").first)
        if name in FIELD:
            field = page.get_by_label(re.compile(f"^{FIELD[name]}"))
            targets.append(field.locator("visible=true").first)
        for target in targets:
            ratio = contrast(page, target)
            assert ratio >= 4.4, f"{ratio:.2f} on {name}: {target}"


# -- links -----------------------------------------------------------------------------------------


def test_a_link_reopens_model_mesh_step_selection_and_plan(
    served: Callable[..., str], strict_page: Page, browser: Browser
) -> None:
    page, url = strict_page, served()
    loaded(page, f"{url}/?model=attention&sequence=128&mesh=a%3D2,b%3D4")
    act(page, "]")
    expect(page.get_by_text("Conflict 1 of 5.").first).to_be_visible()
    act(page, "b")
    page.get_by_role("button", name=re.compile("^side 1")).last.click(timeout=SLOW)
    expect(page.get_by_text("manual plan: S@1->b").first).to_be_visible()
    expect(page).to_have_url(re.compile("act=S@1-%3Eb"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name=re.compile("^copy a link")).click()
    expect(page.get_by_text("link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "state=" not in link
    assert link.startswith(f"{url}/?model=attention&sequence=128&mesh=")

    other = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    other.goto(link)
    expect(on(other, "Conflict board")).to_be_visible(timeout=SLOW)
    expect(other.get_by_text("a=2,b=4 · ").first).to_be_visible()
    expect(other.locator(".tabulator-row:visible", has_text="1: dim 1")).to_contain_text("●")
    expect(
        other.locator(".tabulator-row.tabulator-selected:visible", has_text="0: dim 0")
    ).to_be_visible()
    expect(other.get_by_role("listitem").filter(has_text="S@1->b").first).to_be_visible()
    act(other, "2")
    expect(other.get_by_role("heading", name="conflict", exact=True)).to_be_visible(timeout=SLOW)
    # The page is shown before the browser's history has an entry for it
    expect(other).to_have_url(re.compile("step=graph"))
    other.go_back()
    expect(on(other, "Conflict board")).to_be_visible()
    other.go_forward()
    expect(on(other, "Graph")).to_be_visible()
    other.context.close()


def test_a_level_of_the_graph_is_in_the_link(served: Callable[..., str], strict_page: Page) -> None:
    page = strict_page
    loaded(page, f"{served()}/?step=graph&level=lines")
    expect(page.get_by_label("level")).to_have_value("source lines, layers folded")
    page.get_by_label("level").select_option("dimension names")
    expect(page).to_have_url(re.compile("level=names"))


def test_a_hostile_address_does_nothing_and_says_so(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    query = (
        "model=tests.browser.evil:make&load=/etc/passwd&mesh=data%3D0"
        "&level=%3Cimg%20src%3Dx%3E&act=a-%3Eb"
    )
    loaded(page, f"{served()}/?{query}")
    expect(page.get_by_text("Ignored in the address").first).to_be_visible()
    expect(page.locator(".status")).to_contain_text("built-in models only")
    expect(page.locator(".status")).to_contain_text("load")
    assert page.locator("img[src=x]").count() == 0
    expect(page.get_by_text("data=4,model=2 · ").first).to_be_visible()
    expect(page.locator(".status")).to_contain_text("Press Esc to dismiss")
    act(page, "Escape")
    expect(page.locator(".status")).to_have_text("")
    expect(page.locator(".status")).to_be_hidden()


# -- keys ------------------------------------------------------------------------------------------


def test_keys_do_the_main_things_and_are_left_alone_in_fields(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    loaded(page, served())
    act(page, "?")
    sheet = page.get_by_role("dialog", name="shortcuts")
    expect(sheet).to_be_visible()
    for words in (
        "next conflict",
        "undo the last change by hand",
        "copy a link to this view",
        "Ctrl+z",
    ):
        expect(sheet.get_by_text(words)).to_be_visible()
    act(page, "Escape")
    expect(sheet).to_be_hidden()

    act(page, "/")
    field = page.get_by_label(re.compile("^find"))
    expect(field).to_be_focused(timeout=SLOW)
    page.keyboard.type("3 tanh ] t")
    expect(field).to_have_value("3 tanh ] t")
    expect(on(page, "Graph")).to_be_visible()
    act(page, "Escape")

    act(page, "]")
    expect(page.get_by_text("Conflict 1 of 5.").first).to_be_visible()
    act(page, "[")
    expect(page.get_by_text("Conflict 5 of 5.").first).to_be_visible()
    act(page, "b")
    page.get_by_role("button", name=re.compile("^side 0")).first.click(timeout=SLOW)
    expect(page.get_by_text("manual plan: S@0->data").first).to_be_visible()
    act(page, "u")
    expect(page.get_by_text("manual plan: no action").first).to_be_visible()
    act(page, "Control+y")
    expect(page.locator(".status")).to_contain_text("S@0->data")
    act(page, "Control+z")
    expect(page.locator(".status")).to_contain_text("no action")


def test_the_search_is_run_held_stepped_and_cancelled_by_keys(
    served: Callable[..., str], strict_page: Page
) -> None:
    page = strict_page
    loaded(page, f"{served()}/?model=transformer", "of 3,040 names")
    act(page, "s")
    expect(on(page, "Search")).to_be_visible(timeout=SLOW)
    expect(page.get_by_text("1 simulations", exact=True).first).to_be_visible(timeout=SLOW)
    act(page, "s")
    expect(page.get_by_text("2 simulations", exact=True).first).to_be_visible(timeout=SLOW)
    act(page, "Space")
    expect(page.get_by_text("Resumed.").first).to_be_visible()
    act(page, "Space")
    expect(page.get_by_text("Paused.").first).to_be_visible()
    act(page, "Escape")
    expect(page.get_by_text("no job is running")).to_be_visible(timeout=SLOW)


# -- sessions --------------------------------------------------------------------------------------


def test_two_browsers_see_nothing_of_each_other(
    served: Callable[..., str], strict_page: Page, browser: Browser
) -> None:
    page, url = strict_page, served()
    loaded(page, f"{url}/?step=graph")
    other = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    loaded(other, f"{url}/?step=graph")
    act(page, "]")
    expect(page.get_by_role("heading", name="conflict", exact=True)).to_be_visible()
    act(page, "1")
    page.get_by_role("button", name=re.compile("^mlp")).click()
    expect(page.get_by_text("Loaded mlp").first).to_be_visible(timeout=SLOW)
    act(page, "s")
    expect(page.get_by_text("1 simulations", exact=True).first).to_be_visible(timeout=SLOW)
    act(other, "3")
    expect(other.get_by_text("0 simulations").first).to_be_visible(timeout=SLOW)
    expect(other.get_by_text("no job is running")).to_be_visible()
    expect(other.get_by_text("attention", exact=True).first).to_be_visible()
    act(other, "2")
    expect(other.get_by_role("heading", name="nothing selected")).to_be_visible()
    assert "job=" not in other.url
    assert "conflicts=" not in other.url
    act(page, "Escape")
    expect(page.get_by_text("no job is running")).to_be_visible(timeout=SLOW)
    other.context.close()
