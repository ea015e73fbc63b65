"""Five tasks that people have: their clicks, their seconds, and how soon the page answers a click.

``python -m evaluation benchmarks explorer_tasks [TASK ...]`` drives the explorer at 1280x720 in
headless Chromium, as one would who knows the way; ``--json FILE`` writes what was measured, and
``--pictures FOLDER`` keeps the last picture of each task. Clicks are counted beside typing, the
choice in a menu is one. An answer is the first change of what stands on the page after a click
(texts, and which buttons can be pressed); the slowest of a task is given. Status 1: a task took
more clicks than its limit, or an answer more than 0.5 s.

*why*: data parallelism of the transformer: its dearest collective, and why it is there.

*memory*: t2b's training step into a given memory (``LIMIT_GIB``), on 4x4 TPU v5e.

*race*: a race of four methods on the transformer, and its winner.

*own*: a model of one's own, which the server was started with, to a plan in its source.

*execute*: the plan of a search beside data parallelism, executed on virtual devices.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.browser.serving import launch_arguments, serving

SCREEN: Any = {"width": 1280, "height": 720}
ANSWER_TARGET_S = 0.5
PATIENCE_MS = 300_000
LIMIT_GIB = "8"
OWN = '''"""A small model of one's own."""

import jax
import jax.numpy as jnp


def step(weights, inputs):
    hidden = jnp.tanh(inputs @ weights["up"])
    outputs = hidden @ weights["down"]
    return jax.tree.map(jnp.negative, weights), (outputs**2).mean()


def make(width: int = 4096, rows: int = 8192):
    shape = jax.ShapeDtypeStruct
    weights = {
        "up": shape((width, 4 * width), jnp.float32),
        "down": shape((4 * width, width), jnp.float32),
    }
    return step, (weights, shape((rows, width), jnp.float32))
'''
#: Script that records, after each click, when what stands on the page changes for the first time.
WATCH = """
window.answers = []
const said = () => {
  const texts = []
  const walk = (root) => { for (const el of root.querySelectorAll('*')) {
    if (el.shadowRoot) walk(el.shadowRoot)
    if (!el.getClientRects().length) continue
    if (el.tagName === 'BUTTON') texts.push(el.textContent + el.disabled + el.className)
    else if (!el.firstElementChild) texts.push(el.textContent)
  } }
  walk(document)
  return texts.join('|')
}
addEventListener('pointerdown', () => {
  const before = said(), began = performance.now()
  const look = () => {
    if (said() !== before) answers.push((performance.now() - began) / 1000)
    else if (performance.now() - began < 20000) setTimeout(look, 30)
    else answers.push(20)
  }
  setTimeout(look, 0)
}, true)
"""


class Person:
    """Somebody who uses a page, and whose clicks are counted.

    Args:
        page: the explorer.
    """

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0

    def button(self, name: str | re.Pattern[str]) -> None:
        """Click a button once it can be pressed."""
        found = self.page.get_by_role("button", name=name, exact=isinstance(name, str))
        self.click(found.locator("visible=true").first)

    def click(self, target: Locator) -> None:
        """Click something."""
        target.click(timeout=PATIENCE_MS)
        self.clicks += 1

    def choose(self, label: str, option: str) -> None:
        """Choose in a menu, which is one click."""
        menu = self.page.get_by_label(label, exact=True).locator("visible=true").first
        menu.select_option(option, timeout=PATIENCE_MS)
        self.clicks += 1

    def type(self, label: str | re.Pattern[str], text: str) -> None:
        """Type into a field, which counts as typing."""
        exact = isinstance(label, str)
        field = self.page.get_by_label(label, exact=exact).locator("visible=true").first
        field.fill(text, timeout=PATIENCE_MS)
        field.press("Enter")

    def sees(self, text: str | re.Pattern[str]) -> None:
        """Wait until a text is visible."""
        shown = self.page.get_by_text(text).locator("visible=true").first
        expect(shown).to_be_visible(timeout=PATIENCE_MS)


def why(person: Person) -> None:
    """The dearest collective of data parallelism, and why it is there."""
    person.button(re.compile("^transformer"))
    person.sees("Loaded transformer")
    person.button(re.compile("^4 .*Use"))
    person.button("Add data parallel")
    person.button("Collectives")
    rows = person.page.locator(".tabulator-row:visible", has_text="all_reduce")
    person.click(rows.nth(1))
    person.sees("cheapest change that removes it")


def memory(person: Person) -> None:
    """The training step of t2b into a given memory."""
    person.button("See a 2-billion-parameter model sharded")
    person.sees(re.compile("^Loaded t2b"))
    person.button(re.compile("^3 .*Search"))
    person.type(re.compile("^memory limit"), LIMIT_GIB)
    person.button("Run the search")
    person.sees(re.compile(rf"^mcts \(seed 0\): .*, fits: .* of {LIMIT_GIB}.00 GiB"))


def race(person: Person) -> None:
    """A race of four methods, and its winner."""
    person.button(re.compile("^transformer"))
    person.sees("Loaded transformer")
    person.button(re.compile("^3 .*Search"))
    person.button("Race")
    person.click(person.page.get_by_label("exhaustive", exact=True).locator("visible=true").first)
    person.button("Run the race")
    person.sees("The race is over")


def own(person: Person) -> None:
    """A model of one's own to a plan in its source."""
    person.button(re.compile("^.*own_model.py:make"))
    person.sees(re.compile("^Loaded "))
    person.button(re.compile("^3 .*Search"))
    person.type(re.compile("^mesh"), "data=4,model=2")
    person.type("seconds", "5")
    person.button("Run the search")
    person.sees(re.compile(r"^mcts \(seed 0\): "))
    person.button(re.compile("^Compare with other plans"))
    person.choose("export as", "Patch of the source")
    with person.page.expect_download(timeout=PATIENCE_MS):
        person.button("Export")


def execute(person: Person) -> None:
    """The plan of a search beside data parallelism, executed."""
    person.page.goto(f"{person.page.url.partition('?')[0]}?model=attention&step=search")
    person.type("seconds", "5")
    person.button("Run the search")
    person.sees(re.compile(r"^mcts \(seed 0\): "))
    person.button(re.compile("^Compare with other plans"))
    person.button("Add data parallel")
    person.button(re.compile("^Execute 3 checked"))
    person.sees(re.compile("executed on cpu"))


class Task(NamedTuple):
    """What somebody wants.

    Attributes:
        do: does it.
        clicks: how many it may take.
    """

    do: Callable[[Person], None]
    clicks: int


TASKS = {
    "why": Task(why, 5),
    "memory": Task(memory, 4),
    "race": Task(race, 5),
    "own": Task(own, 6),
    "execute": Task(execute, 4),
}


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """A server that was started with a model of one's own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "own_model.py"
        file.write_text(OWN)
        with serving(f"{file}:make") as url:
            yield url


def main(arguments: list[str]) -> int:
    """Measure the named tasks, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m evaluation benchmarks explorer_tasks")
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], metavar="TASK")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args(arguments)
    measured: dict[str, dict[str, float]] = {}
    is_missed = False
    with serving() as plain, own_server() as with_own_model, sync_playwright() as play:
        browser = play.chromium.launch(**launch_arguments())
        for name in args.tasks or TASKS:
            url = with_own_model if name == "own" else plain
            page = browser.new_page(viewport=SCREEN)
            page.add_init_script(WATCH)
            page.goto(url)
            expect(page.get_by_role("button", name=re.compile("^mlp"))).to_be_visible(
                timeout=PATIENCE_MS
            )
            person, began_s = Person(page), time.monotonic()
            try:
                TASKS[name].do(person)
                time_s = time.monotonic() - began_s
                answer_s = max(page.evaluate("answers"))
            finally:
                if args.pictures is not None:
                    args.pictures.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=args.pictures / f"{name}.png")
                page.close()
            is_missed |= person.clicks > TASKS[name].clicks or answer_s > ANSWER_TARGET_S
            measured[name] = {"clicks": person.clicks, "time_s": time_s, "answer_s": answer_s}
            print(
                f"{name}: {person.clicks} clicks (at most {TASKS[name].clicks}), {time_s:.0f} s, "
                f"slowest answer {answer_s:.2f} s",
                flush=True,
            )
        browser.close()
    if args.json is not None:
        data = {"measured": measured, "load": os.getloadavg(), "screen": SCREEN}
        args.json.write_text(json.dumps(data, indent=2) + "\n")
    return int(is_missed)
