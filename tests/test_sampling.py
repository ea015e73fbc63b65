"""The sample of a day is the same wherever it is drawn, and leaves out nothing for good."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling


class Item:
    """A collected test with the mark ``sampled(2)``, or without any."""

    def __init__(self, nodeid: str, is_sampled: bool = True) -> None:
        self.nodeid, self.is_sampled = nodeid, is_sampled

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=(2,)) if self.is_sampled else None


def kept(monkeypatch: pytest.MonkeyPatch, sample: str, *arguments: str) -> list[str]:
    """The cases that a sample keeps, of twenty of one test, of one of another, and of a third."""
    monkeypatch.setenv(sampling.VARIABLE, sample)
    items: list[Any] = [Item(f"tests/a.py::test_law[{number}]") for number in range(20)]
    items += [Item("tests/a.py::test_few[0]"), Item("tests/a.py::test_plain", is_sampled=False)]
    config: Any = SimpleNamespace(
        args=list(arguments), hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    sampling.thin(items, config)
    return [item.nodeid for item in items]


def test_a_day_draws_the_same_cases_again_and_another_day_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monday = kept(monkeypatch, "2026-11-30")
    assert monday == kept(monkeypatch, "2026-11-30")
    assert len(monday) == 2 + 2
    assert monday[2:] == ["tests/a.py::test_few[0]", "tests/a.py::test_plain"]
    days = [frozenset(kept(monkeypatch, f"day {day}")[:2]) for day in range(100)]
    assert len(frozenset.union(*days)) == 20, "some case never runs"


def test_all_and_what_is_named_run_always(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(kept(monkeypatch, sampling.ALL)) == 22
    assert len(kept(monkeypatch, "2026-11-30", "tests/a.py::test_law[3]")) == 22
    assert len(kept(monkeypatch, "2026-11-30", "tests/a.py")) == 4


FOLDER = "tests/browser"


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppose that the last change touched nothing, and that a third of a folder is enough."""
    monkeypatch.setattr(sampling, "changes", lambda: (frozenset(), frozenset()))
    monkeypatch.setattr(sampling, "SHARES", {FOLDER: 1 / 3})
    monkeypatch.setattr(sampling, "SHARES_OF_FILES", {"tests/search": 1 / 2})
    monkeypatch.setattr(sampling, "DAILY", (f"{FOLDER}/test_daily.py",))


def of_folder(monkeypatch: pytest.MonkeyPatch, sample: str, *arguments: str) -> list[str]:
    """What is kept of thirty tests of the folder with two cases each, and of two other files."""
    monkeypatch.setenv(sampling.VARIABLE, sample)
    names = [f"{FOLDER}/test_a.py::test_{n}[{case}]" for n in range(30) for case in "ab"]
    names += [f"{FOLDER}/test_daily.py::test_it", "tests/ir/test_b.py::test_it"]
    items: list[Any] = [Item(name, is_sampled=False) for name in names]
    config: Any = SimpleNamespace(
        args=list(arguments), hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    sampling.thin(items, config)
    return [item.nodeid for item in items]


@pytest.mark.usefixtures("unchanged")
def test_a_day_draws_whole_tests_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monday = of_folder(monkeypatch, "2026-11-30", "tests")
    assert monday == of_folder(monkeypatch, "2026-11-30", "tests")
    assert len(monday) == 10 * 2 + 2
    assert monday[-2:] == [f"{FOLDER}/test_daily.py::test_it", "tests/ir/test_b.py::test_it"]
    assert [name[:-3] for name in monday[0:20:2]] == [name[:-3] for name in monday[1:20:2]]
    days = [frozenset(of_folder(monkeypatch, f"day {day}", "tests")) for day in range(50)]
    assert len(frozenset.union(*days)) == 62, "some test never runs"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("sample", "argument"),
    [
        (sampling.ALL, "tests"),
        ("2026-11-30", FOLDER),
        ("2026-11-30", f"./{FOLDER}/"),
        ("2026-11-30", f"{FOLDER}/test_a.py"),
        ("2026-11-30", f"{FOLDER}/test_a.py::test_1"),
    ],
)
def test_all_and_a_folder_that_is_named_run_whole(
    monkeypatch: pytest.MonkeyPatch, sample: str, argument: str
) -> None:
    assert len(of_folder(monkeypatch, sample, argument)) == 62


@pytest.mark.usefixtures("unchanged")
def test_what_is_named_is_drawn_from_if_a_share_of_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(sampling.SHARE_VARIABLE, "0.5")
    kept_names = of_folder(monkeypatch, "2026-11-30", FOLDER, "tests/ir/test_b.py::test_it")
    assert len(kept_names) == 15 * 2 + 2
    assert kept_names[-1] == "tests/ir/test_b.py::test_it", "named one by one"
    assert len(of_folder(monkeypatch, sampling.ALL, FOLDER)) == 62


LONG = ("tests/ir/test_c.py", "tests/ir/test_d.py")


@pytest.fixture
def long_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve long tests in two files, a quarter of which is enough, and one of every day."""
    names = [f"{file}::test_{number}" for file in LONG for number in range(6)]
    time_s = dict.fromkeys([*names, f"{FOLDER}/test_daily.py::test_it"], 10.0)
    monkeypatch.setattr(sampling, "long_tests", lambda: time_s)
    monkeypatch.setattr(sampling, "SHARE_OF_LONG", 1 / 4)


def of_long_tests(monkeypatch: pytest.MonkeyPatch, sample: str, *arguments: str) -> list[str]:
    """What is kept of the long tests and of two short ones of another file, which comes first."""
    monkeypatch.setenv(sampling.VARIABLE, sample)
    names = ["tests/ir/test_b.py::test_1", "tests/ir/test_b.py::test_2", *sampling.long_tests()]
    items: list[Any] = [Item(name, is_sampled=False) for name in names]
    config: Any = SimpleNamespace(
        args=list(arguments), hook=SimpleNamespace(pytest_deselected=lambda items: None)
    )
    sampling.thin(items, config)
    return [item.nodeid for item in items]


@pytest.mark.usefixtures("unchanged", "long_tests")
def test_a_day_draws_some_long_tests_and_runs_their_files_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monday = of_long_tests(monkeypatch, "2026-11-30", "tests")
    assert monday == of_long_tests(monkeypatch, "2026-11-30", "tests")
    assert len(monday) == 3 + 1 + 2
    assert monday[-2:] == ["tests/ir/test_b.py::test_1", "tests/ir/test_b.py::test_2"]
    days = [frozenset(of_long_tests(monkeypatch, f"day {day}", "tests")) for day in range(50)]
    assert len(frozenset.union(*days)) == 15, "some test never runs"
    assert all(f"{FOLDER}/test_daily.py::test_it" in day for day in days)


@pytest.mark.usefixtures("unchanged", "long_tests")
@pytest.mark.parametrize(
    ("sample", "argument", "n_kept"),
    [
        (sampling.ALL, "tests", 15),
        ("2026-11-30", "tests/ir", 15),
        ("2026-11-30", "./tests/ir/", 15),
        ("2026-11-30", "tests/ir/test_c.py", 6 + 2 + 1 + 2),
        ("2026-11-30", "tests/ir/test_c.py::test_1", 1 + 3 + 1 + 2),
    ],
)
def test_long_tests_that_are_named_run(
    monkeypatch: pytest.MonkeyPatch, sample: str, argument: str, n_kept: int
) -> None:
    assert len(of_long_tests(monkeypatch, sample, argument)) == n_kept


@pytest.mark.usefixtures("unchanged", "long_tests")
def test_long_tests_that_were_changed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "changes", lambda: (frozenset(LONG), frozenset()))
    assert len(of_long_tests(monkeypatch, "2026-11-30", "tests")) == 15


def test_the_list_of_long_tests_is_made_from_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.ir.test_c" name="test_1[a b]" '
        'time="7.6"/><testcase classname="tests.ir.test_c" name="test_2" time="30.2"/>'
        '<testcase classname="tests.test_d" name="test_3" time="4.9"/></testsuite></testsuites>'
    )
    monkeypatch.setattr(sampling, "LONG", tmp_path / "long_tests.txt")
    sampling.write_long_tests(report)
    assert sampling.long_tests.__wrapped__() == {
        "tests/ir/test_c.py::test_2": 30.0,
        "tests/ir/test_c.py::test_1[a b]": 8.0,
    }


def test_long_tests_are_tests() -> None:
    for name in sampling.long_tests():
        path, _, test = name.partition("[")[0].partition("::")
        assert f"def {test}(" in (sampling.ROOT / path).read_text(encoding="utf-8"), name


@pytest.mark.usefixtures("unchanged")
def test_a_day_draws_whole_files_of_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def day(sample: str) -> list[str]:
        monkeypatch.setenv(sampling.VARIABLE, sample)
        items: list[Any] = [
            Item(f"tests/search/{folder}test_{file}.py::test_{number}", is_sampled=number == 0)
            for folder in ("", "gap/")
            for file in "abcde"
            for number in range(3)
        ]
        config: Any = SimpleNamespace(
            args=["tests"], hook=SimpleNamespace(pytest_deselected=lambda items: None)
        )
        sampling.thin(items, config)
        return [item.nodeid for item in items]

    monday = day("2026-11-30")
    files = [name.partition("::")[0] for name in monday]
    assert [files.count(file) for file in dict.fromkeys(files)] == [3] * 5
    assert len(frozenset().union(*(day(f"day {number}") for number in range(50)))) == 30


@pytest.mark.usefixtures("unchanged")
def test_a_change_is_looked_at_more_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = frozenset({FOLDER}), frozenset[str]()
    monkeypatch.setattr(sampling, "changes", lambda: touched[::-1])
    monkeypatch.setattr(sampling, "CLOSER", 1.5)
    assert len(of_folder(monkeypatch, "2026-11-30", "tests")) == 15 * 2 + 2
    touched = frozenset({f"{FOLDER}/test_a.py"}), frozenset()
    monkeypatch.setattr(sampling, "changes", lambda: touched)
    assert len(of_folder(monkeypatch, "2026-11-30", "tests")) == 62


def test_the_last_change_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, lines: int) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)

    monkeypatch.setattr(sampling, "ROOT", tmp_path)
    changes = sampling.changes.__wrapped__
    assert changes() == (frozenset(), frozenset()), "no repository"
    git("init")
    for count in (1, 2):
        write("toast_lab/cost/kernel.py", 3 * count)
        write("toast_lab/text.py", 50 * count)
        write("tests/ir/test_read.py", count)
        git("add", "-A")
        git("commit", "-m", f"commit {count}")
    assert changes() == (
        frozenset({"toast_lab/cost/kernel.py", "toast_lab/text.py", "tests/ir/test_read.py"}),
        frozenset({"tests/cost"}),
    )
    write("toast_lab/app/shell.py", 9)
    git("add", "-A")
    files, folders = changes()
    assert "toast_lab/app/shell.py" in files
    assert folders == {"tests/app", "tests/browser"}, "the room with most changed lines"


def test_shares_and_files_of_every_day_are_of_this_folder() -> None:
    shares = {**sampling.SHARES, **sampling.SHARES_OF_FILES}
    assert all((sampling.ROOT / folder).is_dir() for folder in shares)
    for place in sampling.DAILY:
        path, _, test = place.partition("::")
        files = list(sampling.ROOT.glob(f"{path}*"))
        assert any(f"def {test}" in file.read_text(encoding="utf-8") for file in files), place
    assert all(0 < share < 1 for share in shares.values())
