"""Source can be parsed from several threads at once."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import typing

import pytest

from toast_lab import syntax


def test_a_tree_that_python_gives_up_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [SystemError("AST constructor recursion depth mismatch (before=51, after=171)")] * 2
    parse = ast.parse

    def refusing(source: str) -> ast.Module:
        if refusals:
            raise refusals.pop()
        return parse(source)

    monkeypatch.setattr(ast, "parse", refusing)
    assert ast.dump(syntax.parse("a = b")) == ast.dump(parse("a = b"))
    assert not refusals


def test_what_is_no_python_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SyntaxError):
        syntax.parse("a = = b")

    def refusing(source: str) -> ast.Module:
        raise SystemError("for another reason")

    monkeypatch.setattr(ast, "parse", refusing)
    with pytest.raises(SystemError, match="for another reason"):
        syntax.parse("a = b")


def test_many_threads_parse_at_once() -> None:
    source = inspect.getsource(typing)
    expected = ast.dump(ast.parse(source))
    errors: list[Exception] = []

    def parse(depth: int) -> None:
        if depth:
            parse(depth - 1)
            return
        try:
            assert ast.dump(syntax.parse(source)) == expected
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=parse, args=(20 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
