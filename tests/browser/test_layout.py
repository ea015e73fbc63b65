"""Nothing on any page is cut, covered, overlapped or out of reach, at any size and in both themes.

One check covers all states of the explorer (`page_states.py`), based on the geometry that the
browser has laid out (`geometry.js`). Leaving things out does not satisfy it: each state lists what
it must show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Page

from tests.browser.page_states import STATES, SUBJECTS, PageState

pytestmark = pytest.mark.browser

GEOMETRY = Path(__file__).with_name("geometry.js").read_text()
LONG = 40  #: letters; a longer text may be cut if a tooltip has all of it
LEAST_CONTRAST = 3.0  #: of text; WCAG's limit for large letters and for parts of an interface
SETTLES_MS, PATIENCE = 400, 6


class Screen(NamedTuple):
    """A window's size and theme; 960 px is the width of a notebook cell."""

    width: int
    height: int
    theme: str

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {self.theme}"


SIZES = ((1280, 720), (1440, 900), (1920, 1080), (900, 900), (960, 900))
ALL = [Screen(*size, theme) for size in SIZES for theme in ("light", "dark")]
FIRST = 5  #: number of states that every run checks


def measured(page: Page, state: PageState | None = None) -> dict[str, Any]:
    """The report of `geometry.js` on the visible part of the page."""
    promised = {"shows": [], "fields": [], "figures": []}
    if state is not None:
        promised = {
            "shows": list(state.shows),
            "fields": list(state.fields),
            "figures": list(state.figures),
        }
    settings = {
        "longText": LONG,
        "minContrast": LEAST_CONTRAST,
        "isApp": page.url.startswith("http"),
        **promised,
    }
    result: dict[str, Any] = page.evaluate(GEOMETRY, settings)
    return result


def windows(page: Page) -> Iterator[int]:
    """Scroll through the page one window at a time, and give the scroll positions."""
    height, step = page.evaluate("[document.scrollingElement.scrollHeight, innerHeight]")
    for top in range(0, max(1, int(height) - 40), int(step) - 80):
        page.evaluate("(top) => scrollTo(0, top)", top)
        yield top
    page.evaluate("scrollTo(0, 0)")


def wrong(page: Page, state: PageState) -> list[str]:
    """Everything that is wrong with a state at the current window size."""
    promises = measured(page, state)
    messages = [f"cannot be read or used: {promise}" for promise in promises["missing"]]
    rows = page.locator(".tabulator-row:visible").count()
    if rows < state.rows:
        messages.append(f"{rows} rows of tables, not {state.rows}")
    for _ in windows(page):
        messages += measured(page)["offences"]
    return list(dict.fromkeys(messages))


def settled(page: Page, state: PageState) -> list[str]:
    """What is still wrong after the page has had time to lay itself out again."""
    # Away from buttons, whose tooltips would cover the page
    page.mouse.move(1, 1)
    messages: list[str] = []
    for _ in range(PATIENCE):
        page.wait_for_timeout(SETTLES_MS)
        messages = wrong(page, state)
        if not messages:
            break
    return messages


def offences(
    page: Page,
    subject: str,
    screens: Iterable[Screen],
    url: str,
    states: Sequence[PageState] = STATES,
) -> list[str]:
    """Walk through the states in order, on every screen, and collect what is wrong."""
    messages: list[str] = []
    start = {"width": 1280, "height": 720}
    page.set_viewport_size(start)
    page.goto(SUBJECTS[subject].link(url))
    for state in states:
        state.reach(page, SUBJECTS[subject])
        for screen in screens:
            page.set_viewport_size({"width": screen.width, "height": screen.height})
            page.emulate_media(color_scheme=screen.theme)  # type: ignore[arg-type]
            messages += [f"{state.name}, {screen}: {words}" for words in settled(page, state)]
        page.set_viewport_size(start)
    return messages


def test_all_is_in_its_place_until_a_conflict_is_selected(
    served: Callable[..., str], strict_page: Page
) -> None:
    """Only the first states, at a laptop's size: all states at every size take minutes."""
    messages = offences(strict_page, "attention", [ALL[0]], served(), STATES[:FIRST])
    assert not messages, "\n".join(messages)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_all_is_in_its_place_at_every_size(
    subject: str, served: Callable[..., str], strict_page: Page
) -> None:
    messages = offences(strict_page, subject, ALL, served())
    assert not messages, "\n".join(messages)


# -- the check itself ------------------------------------------------------------------------------
SHEET = "<style>body { margin: 8px; font: 14px sans-serif } * { box-sizing: border-box }</style>"
BAD = {
    "page scrolls sideways": "<div style='width: 4000px'>wide</div>",
    "text cut": "<p style='width: 30px; overflow: hidden; white-space: nowrap'>1.0123456789</p>",
    "text cut at its top or foot": "<p style='height: 9px; overflow: hidden'>half of a row</p>",
    "text covered": (
        "<p>below</p><div style='position: absolute; inset: 0; background: white'></div>"
    ),
    "texts overlap": "<p>first words</p><p style='margin-top: -26px'>second words</p>",
    "text too faint": "<p style='color: #ddd'>pale</p>",
    "control outside the window": (
        "<button style='position: absolute; left: 98vw; width: 90px'>go</button>"
    ),
    "control cut across": "<div style='width: 40px; overflow: hidden'><button>press this</button>",
    "control covered": (
        "<button>go</button><i style='position: absolute; left: 0; top: 0; width: 90px; "
        "height: 90px; background: red'></i>"
    ),
    "words cut in a field": "<input style='width: 60px' placeholder='name of the kept plan'>",
    "pane scrolls sideways": "<div style='width: 90px; overflow: auto'><p style='width: 300px'>a",
    "too low to scroll in": "<div style='height: 24px; overflow: auto'>a<br>b<br>c<br>d",
    "empty room beside a scrollbar": (
        "<div><div style='height: 60px; overflow: auto'>a<br>b<br>c<br>d<br>e<br>f<br>g</div>"
        "<div style='height: 300px; width: 400px'>one line</div></div>"
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_out_of_place_is_found(kind: str, page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 700})
    page.set_content(f"{SHEET}{BAD[kind]}")
    assert [words for words in measured(page)["offences"] if words.startswith(f"{kind}:")]


#: what `geometry.js` reads of Bokeh's figures, drawn as boxes that each begin below the last
FIGURES = """
<div id=charts></div>
<script>
  const views = %s.map(([height, shift]) => {
    const el = document.createElement('div')
    el.style.cssText = `height: ${height}px; width: 400px; margin-top: ${shift}px`
    document.getElementById('charts').append(el)
    const model = { name: `chart of ${height} px`, below: [], left: [], above: [] }
    return { el, model, frame: { bbox: { width: 300, height: 100 } }, canvas_view: { el } }
  })
  window.Bokeh = { index: { root: { child_views: views } } }
</script>"""


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        ("[[110, 0], [120, 0]]", ""),
        ("[[110, 0], [120, -60]]", "figures overlap"),
        ("[[110, 0], [1, 0]]", "figure too low"),
    ],
)
def test_charts_that_overlap_or_have_no_height_are_found(
    figures: str, kind: str, page: Page
) -> None:
    page.set_content(SHEET + FIGURES % figures)
    assert [words.split(":")[0] for words in measured(page)["offences"]] == [kind][: bool(kind)]


@pytest.mark.parametrize("part", [40, 90])
def test_letters_of_a_mixed_colour_are_judged_as_they_are_shown(part: int, page: Page) -> None:
    page.set_content(
        f"{SHEET}<p style='color: color-mix(in srgb, black {part}%, white)'>letters</p>"
    )
    is_faint = any(words.startswith("text too faint") for words in measured(page)["offences"])
    assert is_faint == (part == 40)


def test_what_is_in_its_place_is_not_accused(page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 700})
    page.set_content(
        f"{SHEET}<h1>Title</h1><p>first</p><p>second</p><button>press this</button>"
        "<label>size <input value='4'></label><select><option>one</option></select>"
        "<div style='height: 100px; overflow: auto'>" + "<p>row</p>" * 20 + "</div>"
    )
    assert measured(page)["offences"] == []


@pytest.mark.parametrize(
    "hidden",
    ["display: none", "visibility: hidden", "opacity: 0", "position: fixed; left: -900px"],
)
def test_hiding_what_is_promised_is_found(hidden: str, page: Page) -> None:
    state = PageState("one", lambda *_: None, ("press this", "some words"), fields=("size",))
    parts = "<button>press this</button><p>some words</p><label>size <input></label>"
    page.set_content(f"{SHEET}<div>{parts}</div>")
    assert wrong(page, state) == []
    page.set_content(f"{SHEET}<div style='{hidden}'>{parts}</div>")
    missing = [words for words in wrong(page, state) if re.match("cannot be read or used", words)]
    assert len(missing) == 3
