"""The one table of commands, to which each page adds one that leads to it.

It decides what a key does, what the sheet of keys shows and what a button's tooltip says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command that can be given on any page."""

    id: str
    keys: tuple[str, ...]  #: as ``shell.js`` names them
    words: str
    group: str


COMMANDS = (
    Command("hand", ("b",), "Understand: the conflict board", "pages"),
    Command("search", ("/",), "find a value, op or colour in the graph", "selection"),
    Command("next_conflict", ("]",), "next conflict", "selection"),
    Command("previous_conflict", ("[",), "previous conflict", "selection"),
    Command("drawer", ("d",), "show or hide the listing below", "selection"),
    Command("undo", ("u", "Ctrl+z"), "undo the last change by hand", "plan by hand"),
    Command("redo", ("r", "Ctrl+y", "Ctrl+Shift+z"), "redo it", "plan by hand"),
    Command("run", ("Space",), "run, pause or resume the search", "search"),
    Command("step", ("s",), "run one simulation, then pause", "search"),
    Command("stop", ("x",), "stop and keep the best", "search"),
    Command(
        "cancel",
        ("Esc",),
        "close a message or table, leave a field, end the running job (a search keeps its best "
        "plan)",
        "everywhere",
    ),
    Command("theme", ("t",), "theme: as the system, light or dark", "everywhere"),
    Command("link", ("l",), "copy a link to this view", "everywhere"),
    Command("help", ("?",), "this table", "everywhere"),
)
_STEPS = {"search": "graph", "hand": "hand"}  #: where these lead
_TO_PAGE = "to page "  #: what the ids of commands that lead to a page begin with
IN_BROWSER = ("theme", "link", "help")  #: the browser does these by itself


def table(pages: Mapping[str, str]) -> list[list[Any]]:
    """The commands as ``Shell.commands`` takes them; ``pages`` are titles by step, in order."""
    to_pages = (
        Command(_TO_PAGE + step, (str(number),), title, "pages")
        for number, (step, title) in enumerate(pages.items(), 1)
    )
    return [
        [command.id, list(command.keys), command.words, command.group]
        for command in (*to_pages, *COMMANDS)
    ]


def tip(command: str) -> str:
    """A button's tooltip, with the keys that do the same.

    >>> tip("undo")
    'undo the last change by hand (u or Ctrl+z)'
    """
    chosen = next(candidate for candidate in COMMANDS if candidate.id == command)
    return f"{chosen.words} ({' or '.join(chosen.keys[:2])})"


def perform(command: str, explorer: Any) -> None:
    """Carry out the command of a key; an unknown command does nothing."""
    session = explorer.session
    if command in _STEPS or command.startswith(_TO_PAGE):
        session.step = _STEPS.get(command, command.removeprefix(_TO_PAGE))
    elif command in _DO:
        _DO[command](explorer)


def _turn(by: int) -> Callable[[Any], None]:
    def turn(explorer: Any) -> None:
        session = explorer.session
        conflict_count = (
            len(session.loaded.analysis.conflicts) if session.loaded.analysis is not None else 0
        )
        if not conflict_count:
            session.notices.say("This program has no conflicts.")
            return
        current = (
            session.selection.conflicts[0]
            if session.selection.conflicts
            else (-1 if by > 0 else conflict_count)
        )
        session.selection.select((), ((current + by) % conflict_count,))
        session.notices.say(f"Conflict {session.selection.conflicts[0] + 1} of {conflict_count}.")

    return turn


def _run(explorer: Any) -> None:
    """Space: run, pause or continue a search; never start one beside another job."""
    session = explorer.session
    if session.work.runs():
        if session.work.runs("search", "race"):
            session.searches.pause()
            session.notices.say("Paused." if session.work.paused else "Resumed.")
        return
    session.step = "search"
    explorer.page("search").controls.run_now()


def _step(explorer: Any) -> None:
    session = explorer.session
    if session.work.busy and session.work.job.kind != "search":
        return
    session.step = "search"
    explorer.page("search").controls.step_now()


def _cancel(explorer: Any) -> None:
    session = explorer.session
    if explorer.dismiss():
        return
    if session.job is not None:
        session.cancel()
    elif session.selection.names or session.selection.conflicts:
        session.selection.select((), ())


_DO: dict[str, Callable[[Any], None]] = {
    "next_conflict": _turn(1),
    "previous_conflict": _turn(-1),
    "drawer": lambda explorer: explorer.toggle_drawer(),
    "undo": lambda explorer: explorer.session.hand.undo(),
    "redo": lambda explorer: explorer.session.hand.redo(),
    "run": _run,
    "step": _step,
    "stop": lambda explorer: explorer.session.searches.stop(),
    "cancel": _cancel,
}
