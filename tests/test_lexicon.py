"""The package keeps to the lexicon of toast_lab/README.md, and to limits on its statements.

Names are read from the syntax trees, banned ones from the table "Banned names". Each test collects
every offender with its place, so that one run shows them all. Kernels (``@compiled``, ``@helper``)
may have long lists of arguments, since Numba takes no objects.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "toast_lab"
#: Folders that keep to the lexicon. Most of the evaluation are programs that read like formulas.
FOLDERS = (PACKAGE, PACKAGE.parent / "evaluation" / "paper")
KERNEL_DECORATORS = {"compiled", "helper", "inlined"}
MOST_COLUMNS = 100
MOST_PARAMETERS = 8
MOST_POSITIONAL = 4
MOST_ONE_LETTER = 0.05
# The value when last checked: it may rise, but not fall
LEAST_MEAN_LENGTH = 5.85

#: functions that may be called with many positional arguments, with the reason
POSITIONAL_CALLS = {
    "zip": "as many as there are columns",
    "h": "an HTML element: its children",
    "pn.Row": "panel: its children",
    "plot.add_tools": "bokeh: as many as there are tools",
    "functools.partial": "a call for later: its arguments",
    "itertools.product": "as many as there are choices",
    "_jaxlib.sdy.ManualComputationOp": "MLIR: the operands of the op",
}
#: names that a library prescribes, as "file name", with the reason
FOREIGN_NAMES = {
    "_handle_msg": "panel: a method of components that receive messages",
    "__dir__": "Python",
    "what_if": "the usual words for a question that changes nothing",
    "what": "calibration: a column of the measured points, which stands in files",
}


class Definition(NamedTuple):
    """A name that a module defines, with its place."""

    name: str
    place: str
    node: ast.AST


@functools.cache
def modules(package: Path = PACKAGE) -> tuple[tuple[str, str, ast.Module], ...]:
    """(path, text, syntax tree) of every module of a package."""
    sources = [(path, path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))]
    return tuple(
        (path.relative_to(package.parent).as_posix(), text, ast.parse(text))
        for path, text in sources
    )


@functools.cache
def definitions(package: Path) -> tuple[Definition, ...]:
    """All names of classes, functions, parameters and variables in a package."""
    return tuple(_definitions(package))


def _definitions(package: Path) -> Iterator[Definition]:
    for path, _, tree in modules(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Definition(node.name, f"{path}:{node.lineno}", node)
            elif isinstance(node, ast.arg):
                yield Definition(node.arg, f"{path}:{node.lineno}", node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield Definition(node.id, f"{path}:{node.lineno}", node)


def banned_names(text: str) -> dict[str, str]:
    """Banned name -> the advice what to say instead, from the table."""
    table = text.partition("### Banned names")[2]
    banned = {}
    for row in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row[0]):
            banned[name] = row[1].replace("`", "")
    return banned


def is_kernel(node: ast.AST) -> bool:
    """Does a function have one of the decorators of kernels?"""
    if not isinstance(node, ast.FunctionDef):
        return False
    names = {
        name.id
        for line in node.decorator_list
        for name in ast.walk(line)
        if isinstance(name, ast.Name)
    }
    return bool(names & KERNEL_DECORATORS)


def check(offenders: Sequence[str]) -> None:
    """Fail with all offenders in one message."""
    assert not offenders, f"{len(offenders)} offenders:\n" + "\n".join(offenders)


def name_offenders(package: Path, banned: dict[str, str]) -> list[str]:
    """Definitions whose name, or a part of it, is banned."""
    return [
        f"{place} {name}: say {instead}"
        for name, place, _ in definitions(package)
        if name not in FOREIGN_NAMES
        for word, instead in banned.items()
        if f"_{word}_" in f"_{name.lower()}_"
    ]


def repeated_class_offenders(package: Path) -> list[str]:
    """Classes that share a name."""
    places = defaultdict(list)
    for name, place, node in definitions(package):
        if isinstance(node, ast.ClassDef):
            places[name].append(place)
    return [f"class {name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1]


def repeated_file_offenders(package: Path) -> list[str]:
    """Modules that share a file name."""
    paths = defaultdict(list)
    for path, _, _ in modules(package):
        if not path.endswith("__init__.py"):
            paths[Path(path).stem].append(path)
    return [f"{stem}.py: {', '.join(at)}" for stem, at in paths.items() if len(at) > 1]


def line_offenders(package: Path) -> list[str]:
    """Lines that are too long, and statements kept from the formatter, except data tables."""
    offenders = []
    for path, text, _ in modules(package):
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MOST_COLUMNS:
                offenders.append(f"{path}:{number} has {len(line)} columns")
            if re.search(r"#\s*fmt: ?(skip|off)", line) and not is_data_table(text, number):
                offenders.append(f"{path}:{number} keeps the formatter from code")
    return offenders


def is_data_table(text: str, line: int) -> bool:
    """Is the statement that ends at a line a constant made of literals alone?"""
    for node in ast.parse(text).body:
        if node.lineno <= line <= (node.end_lineno or 0):
            value = getattr(node, "value", None)
            return isinstance(node, ast.Assign | ast.AnnAssign) and not any(
                isinstance(part, ast.Call | ast.comprehension) for part in ast.walk(value or node)
            )
    return False


def parameter_offenders(package: Path) -> list[str]:
    """Functions with too many parameters, not counting ``self`` and ``cls``."""
    offenders = []
    for name, place, node in definitions(package):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node):
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            count = sum(parameter.arg not in ("self", "cls") for parameter in every)
            if count > MOST_PARAMETERS:
                offenders.append(f"{place} {name} has {count} parameters")
    return offenders


def open_calls(package: Path) -> set[str]:
    """The names of all kernels, and of functions that take any number of arguments."""
    return {
        name
        for name, _, node in definitions(package)
        if isinstance(node, ast.FunctionDef) and (is_kernel(node) or node.args.vararg is not None)
    }


def positional_offenders(package: Path) -> list[str]:
    """Calls with too many positional arguments, outside of kernels."""
    allowed = open_calls(package)
    offenders = []

    def visit(node: ast.AST, path: str) -> None:
        if is_kernel(node):
            return
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            called = ast.unparse(node.func)
            last = called.rpartition(".")[2]
            starred = any(isinstance(argument, ast.Starred) for argument in node.args)
            if not starred and called not in POSITIONAL_CALLS and last not in allowed:
                offenders.append(
                    f"{path}:{node.lineno} {called} is called with {len(node.args)} positional "
                    "arguments"
                )
        for child in ast.iter_child_nodes(node):
            visit(child, path)

    for path, _, tree in modules(package):
        visit(tree, path)
    return offenders


def length_offenders(package: Path) -> list[str]:
    """A message if too many names are short, with the modules that have most of them."""
    names = [(name, place) for name, place, _ in definitions(package) if name != "_"]
    short = [place for name, place in names if len(name.strip("_")) == 1]
    mean = sum(len(name) for name, _ in names) / len(names)
    by_module: dict[str, list[int]] = defaultdict(list)
    for name, place in names:
        by_module[place.partition(":")[0]].append(len(name))
    offenders = []
    if len(short) > MOST_ONE_LETTER * len(names):
        counts: dict[str, int] = defaultdict(int)
        for place in short:
            counts[place.partition(":")[0]] += 1
        worst = sorted(counts.items(), key=lambda pair: -pair[1])[:10]
        offenders.append(
            f"{len(short) / len(names):.1%} of the names have one letter, at most "
            f"{MOST_ONE_LETTER:.0%}: {', '.join(f'{path} {count}' for path, count in worst)}"
        )
    if mean < LEAST_MEAN_LENGTH:
        missing = {
            path: sum(LEAST_MEAN_LENGTH - length for length in lengths)
            for path, lengths in by_module.items()
        }
        worst_paths = sorted(missing, key=lambda path: -missing[path])[:10]
        offenders.append(
            f"the mean length of a name is {mean:.2f}, at least {LEAST_MEAN_LENGTH}; furthest "
            f"below: {', '.join(worst_paths)}"
        )
    return offenders


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    """A folder that keeps to the lexicon."""
    return Path(request.param)


def test_no_name_is_banned(folder: Path) -> None:
    banned = banned_names((PACKAGE / "README.md").read_text(encoding="utf-8"))
    assert {"found", "op_axis"} <= set(banned)
    check(name_offenders(folder, banned))


def test_class_names_are_unique(folder: Path) -> None:
    check(repeated_class_offenders(folder))


def test_file_names_are_unique(folder: Path) -> None:
    check(repeated_file_offenders(folder))


def test_lines_are_short_and_formatted(folder: Path) -> None:
    check(line_offenders(folder))


def test_functions_have_few_parameters(folder: Path) -> None:
    check(parameter_offenders(folder))


def test_calls_name_their_arguments(folder: Path) -> None:
    check(positional_offenders(folder))


def test_names_are_words(folder: Path) -> None:
    check(length_offenders(folder))


def test_every_exception_is_needed() -> None:
    called = {
        ast.unparse(node.func)
        for _, _, tree in modules(PACKAGE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL
    }
    assert set(POSITIONAL_CALLS) <= called
    assert set(FOREIGN_NAMES) <= {name for name, _, _ in definitions(PACKAGE)}


WRONG = {
    "banned": ("found = 1\n", "wrong/first.py:1 found: say what the value holds"),
    "banned part": ("def all_found_rows(): ...\n", "wrong/first.py:1 all_found_rows: say what"),
    "class": ("class Twin: ...\n", "class Twin: wrong/first.py:1, wrong/second.py:1"),
    "columns": ("x = " + "1 + " * 30 + "1\n", "wrong/first.py:1 has 125 columns"),
    "formatter": ("x = max([1,2])  # fmt: skip\n", "wrong/first.py:1 keeps the formatter"),
    "parameters": (
        "def g(a, b, c, d, e, f, g, h, i): ...\n",
        "wrong/first.py:1 g has 9 parameters",
    ),
    "positional": ("g(1, 2, 3, 4, 5)\n", "wrong/first.py:1 g is called with 5 positional"),
    "letters": ("a = 1\n", "100.0% of the names have one letter"),
    "length": ("abc = 1\n", "the mean length of a name is 3.00"),
}
RULES = {
    "class": repeated_class_offenders,
    "columns": line_offenders,
    "formatter": line_offenders,
    "parameters": parameter_offenders,
    "positional": positional_offenders,
    "letters": length_offenders,
    "length": length_offenders,
}


@pytest.mark.parametrize("rule", WRONG)
def test_each_rule_tells_its_offenders(rule: str, tmp_path: Path) -> None:
    source, message = WRONG[rule]
    package = tmp_path / "wrong"
    package.mkdir()
    (package / "first.py").write_text(source)
    if rule == "class":
        (package / "second.py").write_text(source)
    banned = {"found": "what the value holds"}
    offenders = RULES[rule](package) if rule in RULES else name_offenders(package, banned)
    assert message in "\n".join(offenders)


def test_what_is_allowed_is_no_offence(tmp_path: Path) -> None:
    package = tmp_path / "right"
    (package / "room").mkdir(parents=True)
    for name in ("__init__.py", "room/__init__.py"):
        (package / name).write_text("")
    (package / "kernels_of_it.py").write_text(
        "TABLE_OF_DATA = ((1,2), (3,4))  # fmt: skip\n"
        "@compiled\n"
        "def long_kernel(first, second, third, fourth, fifth, sixth, seventh, eighth, ninth): ...\n"
        "long_kernel(1, 2, 3, 4, 5, 6, 7, 8, 9)\n"
        "zip(1, 2, 3, 4, 5)\n"
        "anything(*[1, 2, 3, 4, 5])\n"
        "foundation = 1\n"
    )
    rules = (
        repeated_class_offenders,
        repeated_file_offenders,
        line_offenders,
        parameter_offenders,
        positional_offenders,
        length_offenders,
    )
    assert [offender for rule in rules for offender in rule(package)] == []
    assert name_offenders(package, {"found": "what the value holds"}) == []


def test_files_of_one_name_are_told(tmp_path: Path) -> None:
    package = tmp_path / "wrong"
    (package / "room").mkdir(parents=True)
    for name in ("twin.py", "room/twin.py"):
        (package / name).write_text("")
    assert repeated_file_offenders(package) == ["twin.py: wrong/room/twin.py, wrong/twin.py"]
