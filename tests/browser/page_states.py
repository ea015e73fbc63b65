"""The states of the explorer that a person sees, how to reach each, and what each must show.

`STATES` is walked in order on one page: each state begins where the one before ended. What a state
`shows` is a promise: at every size it can be reached and read, and nothing covers it, so that the
check of the layout cannot be satisfied by leaving something out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page, expect

from toast_lab.models.registry import WORTHWHILE_SIZES

SLOW = 120_000


class Subject(NamedTuple):
    """A program with which all states are visited.

    Attributes:
        model: its name in the gallery.
        sizes: its sizes that differ from the gallery's.
        names: what the Load page says about its names.
        colour: a colour that can be sharded along `data`.
        conflict: a text in the row of one of its conflicts, empty if it has none.
    """

    model: str
    sizes: dict[str, int]
    names: str
    colour: str
    conflict: str = ""

    def link(self, url: str) -> str:
        """The address of the program on a server."""
        fields = {"model": self.model, **self.sizes, "mesh": "data=4,model=2", "step": "load"}
        return f"{url}/?{urlencode(fields, safe='=,')}"


ATTENTION = Subject(
    "attention", WORTHWHILE_SIZES["attention"], "31 of 31 names", "D", "attention.py"
)
#: a graph network, much smaller than the paper's: dozens of colours, and no conflict
GNS = Subject(
    "gns",
    {"steps": 2, "nodes": 256, "edges": 1024, "latent": 64, "hidden": 32, "features": 16},
    "of 5,954 names",
    "edges",
)
SUBJECTS = {"attention": ATTENTION, "gns": GNS}


class PageState(NamedTuple):
    """A state of the explorer, with what it must show.

    Attributes:
        name: its name in messages.
        reach: brings a page here from the state before.
        shows: texts and labels of buttons that must be readable at every size.
        fields: labels of the fields and menus.
        figures: names of the figures that are drawn.
        rows: the least number of table rows on the page.
    """

    name: str
    reach: Callable[[Page, Subject], None]
    shows: tuple[str, ...]
    fields: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    rows: int = 0


def go(page: Page, number: int) -> None:
    """Go to a step by its button in the header."""
    button = page.locator("button").filter(has_text=re.compile(rf"^\s*{number}\s"))
    button.first.click()


def row(page: Page, text: str) -> Locator:
    """The first visible table row that contains a text."""
    return page.locator(".tabulator-row", has_text=text).locator("visible=true").first


def tab(page: Page, title: str) -> None:
    """Open the tab with a title."""
    named = page.locator(".bk-tab").filter(has_text=re.compile(rf"^{re.escape(title)}$"))
    named.locator("visible=true").first.click()


def button(page: Page, name: str | re.Pattern[str]) -> Locator:
    """The first button with a name."""
    return page.get_by_role("button", name=name, exact=isinstance(name, str)).first


def _load(page: Page, subject: Subject) -> None:
    expect(page.get_by_text(re.compile(subject.names)).first).to_be_visible(timeout=SLOW)


def _which_mesh(page: Page, _: Subject) -> None:
    button(page, "Which mesh? …").click()
    fill(page, "devices at most", "4")
    fill(page, "search seconds", "2")
    button(page, "Look for the best mesh").click()
    expect(page.locator(".status")).to_contain_text(
        re.compile("^advising on .*: done in"), timeout=SLOW
    )
    expect(page.get_by_text("set-ups, the best first")).to_be_visible()


def _graph(page: Page, subject: Subject) -> None:
    go(page, 2)
    expect(page.get_by_text(re.compile(r"^\d+ nodes")).first).to_be_visible(timeout=SLOW)
    if subject.conflict:
        tab(page, "Conflicts")
        row(page, subject.conflict).click()
        why = page.get_by_text("Why both dims have one colour").first
        expect(why).to_be_visible(timeout=SLOW)
    else:
        _pick_colour(page, subject)


def _pick_colour(page: Page, subject: Subject) -> None:
    cell = page.get_by_role("gridcell", name=subject.colour, exact=True)
    page.locator(".tabulator-row", has=cell).locator("visible=true").first.click()
    heading = page.get_by_role("heading", name=re.compile(f"shard {subject.colour} on"))
    expect(heading.locator("visible=true").first).to_be_visible(timeout=SLOW)


def _names(page: Page, subject: Subject) -> None:
    page.get_by_label("level", exact=True).first.select_option("dimension names")
    tab(page, "Source")
    expect(page.get_by_text(re.compile(r"^[\d,]+ nodes")).first).to_be_visible(timeout=SLOW)


def _hand(page: Page, subject: Subject) -> None:
    button(page, "Conflict board").click()
    expect(page.get_by_text("One device's listing").first).to_be_visible(timeout=SLOW)
    _pick_colour(page, subject)
    offer = page.get_by_role("button", name=re.compile("^data: "))
    offer.locator("visible=true").first.click()
    expect(page.locator(".status")).to_contain_text("->data", timeout=SLOW)


def _board(page: Page, subject: Subject) -> None:
    if subject.conflict:
        row(page, "0: dim 0").click()
        expect(page.locator(".listing .row.on").locator("visible=true").first).to_be_visible()


def _opened(title: str, sign: str) -> Callable[[Page, Subject], None]:
    """A `reach` that opens a tab and waits until a text is visible in it."""

    def reach(page: Page, _: Subject) -> None:
        tab(page, title)
        expect(page.get_by_text(re.compile(sign)).locator("visible=true").first).to_be_visible(
            timeout=SLOW
        )

    return reach


def _search_idle(page: Page, _: Subject) -> None:
    go(page, 3)
    expect(button(page, "Run the search")).to_be_enabled(timeout=SLOW)


def _search(page: Page, _: Subject) -> None:
    fill(page, "seconds", "3")
    button(page, "Run the search").click()
    ended = page.get_by_text(re.compile(r"^mcts \(seed 0\): ")).first
    expect(ended).to_be_visible(timeout=SLOW)
    expect(button(page, "Run the search")).to_be_enabled(timeout=SLOW)


def fill(page: Page, label: str, value: str) -> None:
    """Fill in a field and press Enter."""
    field = page.get_by_label(label, exact=True).locator("visible=true").first
    field.fill(value)
    field.press("Enter")


def _pressed(name: str, sign: str) -> Callable[[Page, Subject], None]:
    """A `reach` that presses a button and waits until a text is visible."""

    def reach(page: Page, _: Subject) -> None:
        button(page, name).click()
        expect(page.get_by_text(re.compile(sign)).locator("visible=true").first).to_be_visible(
            timeout=SLOW
        )

    return reach


def _rules(page: Page, subject: Subject) -> None:
    """Asks, among the ops, which rules set the price of one."""
    row(page, "dot_general").click()
    _pressed("Which rules set its price?", "Without one rule:")(page, subject)


def _race(page: Page, subject: Subject) -> None:
    button(page, "Race").click()
    fill(page, "seconds each", "1")
    button(page, "Run the race").click()
    # The pane itself may still show the race before
    expect(page.locator(".status")).to_contain_text("The race is over", timeout=SLOW)
    expect(button(page, "Run the race")).to_be_enabled(timeout=SLOW)


def _compare(page: Page, _: Subject) -> None:
    go(page, 4)
    button(page, "Add data parallel").click()
    expect(row(page, "data parallel")).to_be_visible(timeout=SLOW)


def _forms(page: Page, _: Subject) -> None:
    for name in ("Type a plan", "settings"):
        button(page, name).click()
    expect(page.get_by_label("execute on").locator("visible=true")).to_be_visible(timeout=SLOW)


def _breakdown(page: Page, subject: Subject) -> None:
    for name in ("Type a plan", "settings"):
        button(page, name).click()
    _pressed("Where time goes", "together")(page, subject)


def _leave_for_tour(page: Page, _: Subject) -> None:
    button(page, "Tour").click()
    expect(page.locator(".words p").first).not_to_contain_text("One moment", timeout=SLOW)
    expect(button(page, "Next →")).to_be_visible(timeout=SLOW)


def _search_under_tour(page: Page, subject: Subject) -> None:
    go(page, 3)
    _search(page, subject)


def _tour_code(page: Page, _: Subject) -> None:
    button(page, "Figures").click()
    row(page, "Figure 2b").click()
    expect(page.locator(".title", has_text="Batch partitioning")).to_be_visible(timeout=SLOW)
    # After Back, the step before is already done
    do_it = button(page, "Do it for me")
    expect(do_it).to_be_visible(timeout=SLOW)
    do_it.click()
    expect(button(page, "✓ done")).to_be_visible(timeout=SLOW)


HEADER = ("1  Load", "2  Understand", "3  Search", "4  Use", "Tour")
UNDERSTAND = (*HEADER, "Graph", "Conflict board", "Undo", "Redo")
COMPARE = (
    *HEADER,
    "Add data parallel",
    "Type a plan",
    "data parallel",
    "unsharded",
    "Time & memory",
    "Where time goes",
    "Where memory goes",
)
COMPARE_FIELDS = ("compile for", "export as")
SEARCHED = (*HEADER, "Run the search", "Pause", "Step", "Round", "Stop and keep the best", "Resume")

STATES: tuple[PageState, ...] = (
    PageState(
        "load",
        _load,
        (*HEADER, "Load with these sizes", "Use this mesh and machine"),
        fields=("axes and sizes", "hardware"),
        figures=("dimension graph",),
    ),
    PageState(
        "which mesh",
        _which_mesh,
        (*HEADER, "Look for the best mesh", "Stop and keep", "Open this plan →", "Memory", "Cost"),
        fields=("hardware", "devices at most", "price an hour", "across", "upwards"),
        figures=("choices",),
        rows=3,
    ),
    PageState(
        "graph",
        _graph,
        (*UNDERSTAND, "Zoom to selection", "Reset view", "All rows", "Hide", "Conflicts"),
        fields=("level",),
        figures=("dimension graph",),
        rows=3,
    ),
    PageState(
        "graph of all names",
        _names,
        (*UNDERSTAND, "Zoom to selection", "Reset view", "All rows", "Hide", "Source", "Log"),
        fields=("level",),
        figures=("dimension graph",),
    ),
    PageState(
        "hand",
        _hand,
        (
            *UNDERSTAND,
            "One device's listing",
            "Plan by hand",
            "Collectives",
            "Devices",
            "collectives and changes only",
        ),
        rows=3,
    ),
    PageState("hand, conflict", _board, (*UNDERSTAND, "Beside the search"), rows=3),
    PageState(
        "hand, plan",
        _opened("Plan by hand", "actions taken"),
        (*UNDERSTAND, "Compare with other plans →", "Keep a copy"),
        rows=3,
    ),
    PageState(
        "hand, collectives",
        _opened("Collectives", "in plan"),
        (*UNDERSTAND, "in plan", "by action"),
    ),
    PageState(
        "hand, devices",
        _opened("Devices", "a whole copy|each|cut|over|whole"),
        UNDERSTAND,
        figures=("device tiles",),
    ),
    PageState(
        "hand, beside the search",
        _opened("Beside the search", "search"),
        UNDERSTAND,
    ),
    PageState(
        "search, nothing run",
        _search_idle,
        (*SEARCHED, "Curves", "Tree", "Race", "Confirm", "the search will be drawn here"),
        fields=("method", "seconds", "confirm with"),
    ),
    PageState(
        "search",
        _search,
        (*SEARCHED, "Curves", "Live", "log", "actions of the best plan", "step, estimated"),
        fields=("method", "seconds", "confirm with"),
        figures=("search curves",),
    ),
    PageState(
        "search, tree",
        _pressed("Tree", "selected step"),
        (*SEARCHED, "Tree", "selected step"),
        figures=("search tree",),
    ),
    PageState(
        "search, race",
        _race,
        (*HEADER, "Run the race", "the race as a table", "best of all", "mcts", "beam", "random"),
        fields=("seconds each", "seed"),
        figures=("race curves",),
        rows=3,
    ),
    PageState(
        "search, confirm",
        _pressed("Confirm", "judged plans"),
        (*SEARCHED, "Curve and verdicts", "Written plans", "judged plans"),
        figures=("confirmed curve",),
    ),
    PageState(
        "compare",
        _compare,
        (*COMPARE, "Execute", "settings"),
        fields=COMPARE_FIELDS,
        figures=("time against memory",),
        rows=3,
    ),
    PageState(
        "compare, forms",
        _forms,
        (*COMPARE, "Add typed plan", "repeats"),
        fields=(*COMPARE_FIELDS, "actions (colour->axis, ...)", "name of that plan", "execute on"),
        rows=3,
    ),
    PageState(
        "compare, breakdown",
        _breakdown,
        (*COMPARE, "Breakdown", "by mesh axis"),
        fields=COMPARE_FIELDS,
        rows=4,
    ),
    PageState("compare, timeline", _pressed("Timeline", "exposed, compiled"), COMPARE, rows=2),
    PageState(
        "compare, ops", _pressed("Ops", "ops and collectives that take time"), COMPARE, rows=4
    ),
    PageState("compare, rules", _rules, COMPARE, rows=2),
    PageState("compare, memory", _pressed("Where memory goes", "Click a peak"), COMPARE, rows=2),
    PageState(
        "compare, room", _pressed("What would make room?", "with one change more"), COMPARE, rows=2
    ),
    PageState("compare, A | B", _pressed("A | B", "collectives"), COMPARE, rows=2),
    PageState("compare, collectives", _pressed("Collectives", "all_reduce"), COMPARE, rows=3),
    PageState("tour", _leave_for_tour, (*HEADER, "Next →", "Leave", "Figures"), rows=0),
    # The strip of the tour leaves the page less height than anything else
    PageState(
        "search under the tour",
        _search_under_tour,
        (*SEARCHED, "Curves", "Live", "log", "Next →", "Leave"),
        figures=("curve cost", "curve time", "curve memory"),
    ),
    PageState(
        "race under the tour",
        _race,
        (*HEADER, "Run the race", "the race as a table", "Next →", "Leave"),
        figures=("race curves",),
    ),
    PageState(
        "tour, with code",
        _tour_code,
        (*HEADER, "Next →", "← Back", "Leave", "Figures", "✓ done"),
    ),
)
