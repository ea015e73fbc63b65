"""The sample of a day: what is long runs in part, another part each day.

``TOAST_LAB_SAMPLE`` is what the sample is drawn from: a date by default, or any other text, which
draws the same cases again wherever they are collected; ``all`` runs every case (``make test-all``).
A run says in its first lines which sample it has.

A parametrised test with many cases says how many of them prove enough for one day::

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_a_law(name): ...

Few tests take most of the time. ``tests/long_tests.txt`` names those of more than five seconds, and
a day draws a sixth of them. ``python -m tests.sampling FILE`` makes the list from what ``make
test-all`` has timed.

Of the folders in ``SHARES``, a run of all tests draws whole tests besides, and of those in
``SHARES_OF_FILES`` whole files. What the last change has touched is looked at more closely: its
test files run whole, and of the room with the most changed lines a quarter as many tests again
(``changes``). What is named on the command line runs whole, unless ``TOAST_LAB_SHARE`` says how
much of it is enough.
"""

from __future__ import annotations

import datetime
import functools
import math
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

import pytest

VARIABLE = "TOAST_LAB_SAMPLE"
#: Share of the tests in all folders and files that are named on the command line, as a number
SHARE_VARIABLE = "TOAST_LAB_SHARE"
ALL = "all"
ROOT = Path(__file__).parents[1]
LONG = ROOT / "tests" / "long_tests.txt"  #: seconds and names of long tests, case by case
LONG_S = 5.0  #: two cores, idle otherwise
SHARE_OF_LONG = 1 / 6
#: Share of the tests of a folder that are enough for one day. Tests with the mark ``sampled`` are
#: drawn by their cases alone.
SHARES = {"tests/browser": 1 / 5}
#: The same of its files, since the tests of a file share what takes long to make.
SHARES_OF_FILES = dict.fromkeys(
    (
        "tests/app",
        "tests/apply",
        "tests/cli",
        "tests/compare",
        "tests/evaluation",
        "tests/export",
        "tests/frontends",
        "tests/kernels",
        "tests/models",
        "tests/paper",
        "tests/runtime",
        "tests/search",
        "tests/sharding",
        "tests/sweep",
        "tests/written",
    ),
    1 / 2,
)
#: What runs whole every day in these folders, as beginnings of names: what everybody does first,
#: what must never be wrong even for a day, and the figures of the paper.
DAILY = (
    "tests/app/test_explorer.py",
    "tests/app/test_session.py",
    "tests/browser/test_explorer.py::test_a_new_user",
    "tests/browser/test_security.py",
    "tests/browser/test_strict_page.py",
    "tests/cli/test_readme.py",
    "tests/paper/test_fig",
    "tests/runtime/test_run.py",
    "tests/search/test_conformance.py",
)
CLOSER = 1.25  #: factor on the share of folders with the tests of the room that was changed most
#: Further folders with the tests of a room
ALSO_OF_ROOM = {"app": ("browser",), "views": ("browser",), "notebooks": ("docs",)}
Case = TypeVar("Case")


def begin() -> str:
    """Fix the sample for this process and its children, and say which it is."""
    # Midnight must not draw other cases in the workers than in the process that started them
    return os.environ.setdefault(VARIABLE, datetime.date.today().isoformat())


def drawn(cases: Sequence[Case], most: int, what: str) -> list[Case]:
    """At most so many of the cases, in their order; all of them if the sample is ``all``.

    Args:
        cases: what a law could be tested on.
        most: how many of them are enough.
        what: name of the test, so that two tests do not draw alike.
    """
    sample = begin()
    if sample == ALL or len(cases) <= most:
        return list(cases)
    chosen = random.Random(f"{sample} {what}").sample(range(len(cases)), most)
    return [cases[place] for place in sorted(chosen)]


def seed(what: str) -> int:
    """The seed of the day for a test that makes its own cases; ``all`` has one, too."""
    return random.Random(f"{begin()} {what}").randrange(2**31)


@functools.cache
def changes() -> tuple[frozenset[str], frozenset[str]]:
    """What the last change touched: files, and folders with the tests of its main room.

    The change is the last commit, compared with its first parent, and what is not yet committed. A
    change of many rooms would leave nothing to draw, so only the room counts in which it has most
    lines. Both are empty where git does not know.
    """
    lines: Counter[str] = Counter()
    for base in (["HEAD^1", "HEAD"], ["HEAD"]):
        command = ["git", "diff", "--numstat", "--no-renames", *base]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        for row in done.stdout.splitlines():
            added, removed, path = row.split("\t")
            lines[path] += sum(int(n) for n in (added, removed) if n.isdecimal())
    rooms: Counter[str] = Counter()
    for path, count in lines.items():
        top, _, rest = path.partition("/")
        room = top if top in ("notebooks", "evaluation") else rest.partition("/")[0]
        if top in ("toast_lab", "notebooks", "evaluation") and "/" in path and "." not in room:
            rooms[room] += count
    folders = {
        f"tests/{folder}"
        for room, _ in rooms.most_common(1)
        for folder in (room, *ALSO_OF_ROOM.get(room, ()))
    }
    return frozenset(lines), frozenset(folders)


def thin(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out the cases of sampled tests, and the tests of folders, that the day has not drawn.

    A case that is named on the command line runs always, and so does a file or folder with shares.
    The files with the longest tests come first, since two workers then end at about the same time.
    """
    time_s = {} if SHARE_VARIABLE in os.environ else long_tests()
    others = [item for item in items if item.nodeid not in time_s]
    left_out = (
        _cases_left_out(others, config.args)
        | _tests_left_out(others, config.args)
        | _long_left_out([item for item in items if item.nodeid in time_s], config.args)
    )
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    time_of_file_s: Counter[str] = Counter()
    for item in items:
        time_of_file_s[_file(item)] += round(time_s.get(item.nodeid, 0.0))
    items.sort(key=lambda item: -time_of_file_s[_file(item)])


@functools.cache
def long_tests() -> dict[str, float]:
    """Seconds of each long test, with the set-up that it was the first to need."""
    rows = [line.split(maxsplit=1) for line in LONG.read_text(encoding="utf-8").splitlines()]
    return {name: float(time_s) for time_s, name in rows}


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _long_left_out(items: Sequence[pytest.Item], arguments: Sequence[str]) -> set[pytest.Item]:
    if begin() == ALL:
        return set()
    changed_files, _ = changes()
    named = [os.path.relpath(argument, ROOT) for argument in arguments]
    named = [argument for argument in named if argument not in (".", "tests")]
    drawn_from = [
        item
        for item in items
        if not item.nodeid.startswith(DAILY)
        and _file(item) not in changed_files
        and not item.nodeid.startswith(tuple(named))
    ]
    most = math.ceil(SHARE_OF_LONG * len(drawn_from))
    return {*drawn_from} - {*drawn(drawn_from, most, "long tests")}


def _cases_left_out(items: Sequence[pytest.Item], arguments: Sequence[str]) -> set[pytest.Item]:
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    named = [argument for argument in arguments if "[" in argument]
    left_out: set[pytest.Item] = set()
    for name, group in cases.items():
        if any(argument.partition("[")[0].endswith(name) for argument in named):
            continue
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        kept = drawn(group, marker.args[0], name)
        left_out.update(item for item in group if item not in kept)
    return left_out


def _tests_left_out(items: Sequence[pytest.Item], arguments: Sequence[str]) -> set[pytest.Item]:
    """Tests and files of folders with shares, drawn with all of their cases."""
    if begin() == ALL:
        return set()
    changed_files, changed_folders = changes()
    shares = {
        folder: share * (CLOSER if folder in changed_folders else 1)
        for folder, share in {**SHARES, **SHARES_OF_FILES}.items()
        if not any(f"{folder}/" in f"{named.partition('::')[0]}/" for named in arguments)
    }
    if SHARE_VARIABLE in os.environ:
        shares = {"": float(os.environ[SHARE_VARIABLE])}
    named_tests = tuple(argument for argument in arguments if "::" in argument)
    left_out: set[pytest.Item] = set()
    for folder, share in shares.items():
        units: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            file = _file(item)
            is_of_file = folder in SHARES_OF_FILES
            if (
                file.startswith(f"{folder}/" if folder else "")
                and not item.nodeid.startswith(DAILY)
                and file not in changed_files
                and not item.nodeid.startswith(named_tests)
                and (is_of_file or item.get_closest_marker("sampled") is None)
            ):
                units[file if is_of_file else item.nodeid.partition("[")[0]].append(item)
        kept = drawn(sorted(units), math.ceil(share * len(units)), folder)
        left_out.update(*(units[name] for name in units.keys() - set(kept)))
    return left_out


def write_long_tests(report: Path) -> None:
    """Write the list of long tests.

    Args:
        report: the JUnit file of a run of all tests.
    """
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        time_s, module = float(case.attrib["time"]), case.attrib["classname"]
        if time_s >= LONG_S:
            rows.append((time_s, f"{module.replace('.', '/')}.py::{case.attrib['name']}"))
    lines = [f"{time_s:.0f} {name}\n" for time_s, name in sorted(rows, reverse=True)]
    LONG.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write_long_tests(Path(sys.argv[1]))
