"""Every public name has an example in its docstring, and every example prints its output."""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import toast_lab as tl
from toast_lab import frontends

#: names that the reference documents as a whole module
MODULES = {"charts": "toast_lab.charts", "views": "toast_lab.app.cells"}
NAMES = sorted(set(tl.__all__) - {"__version__"})
#: names whose example needs a package of an extra
NEEDS = {"from_torch": "torchax", "charts": "holoviews", "views": "panel", "report": "bokeh"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SERVES = "explore"  #: does not return; its example runs in a process of its own


def documented(name: str) -> Any:
    """The object behind a public name, whose docstring the reference shows."""
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    module, _, attribute = tl._NAMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def examples(name: str) -> doctest.DocTest:
    """The examples behind ``>>>`` in the docstring of a name."""
    text = documented(name).__doc__ or ""
    return doctest.DocTestParser().get_doctest(text, {}, f"tl.{name}", None, 0)


@pytest.fixture
def quiet_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder in which examples run and keep their results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOAST_LAB_RUNS", str(tmp_path / "runs.sqlite"))
    monkeypatch.setenv("TOAST_LAB_COMPILED", str(tmp_path / "compiled.sqlite"))
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def _loaded_once() -> Iterator[None]:
    """Load each built-in model once for all examples, not in a new process for each."""
    load: Callable[..., Any] = frontends.load

    @functools.cache
    def kept(which: str, sizes: str) -> Any:
        return load(which, **json.loads(sizes))

    @functools.wraps(load)
    def load_once(which: str, **sizes: Any) -> Any:
        return kept(which, json.dumps(sizes))

    # Only ``tl.load``, which examples call: modules imported meanwhile get the original
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl, "load", load_once)
        yield
    assert tl.load is load


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_has_an_example(name: str) -> None:
    shown = examples(name).examples
    assert shown, f"tl.{name} has no example"
    assert any(re.search(rf"\btl\.{name}\b", example.source) for example in shown) or isinstance(
        documented(name), type
    ), f"the example of tl.{name} does not use it"


@pytest.mark.sampled(60)
@pytest.mark.parametrize("name", [name for name in NAMES if name != SERVES])
def test_the_example_does_what_it_shows(name: str, quiet_folder: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    test = examples(name)
    assert not any(doctest.SKIP in example.options for example in test.examples)
    printed: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
    assert outcome.attempted == len(test.examples)
    assert not outcome.failed, "".join(printed)


def test_a_wrong_example_is_found() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test, out=lambda text: None).failed == 1


def test_the_example_of_the_explorer_serves(quiet_folder: Path) -> None:
    pytest.importorskip("panel")
    code = "".join(example.source for example in examples(SERVES).examples)
    log = quiet_folder / "log"
    root = str(Path(tl.__file__).parents[1])
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": root},
        )
    try:
        for _ in range(1200):
            if "http://127.0.0.1:" in log.read_text() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert "http://127.0.0.1:" in log.read_text(), log.read_text()
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
