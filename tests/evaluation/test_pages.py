"""Tables of pages, and parts that are made anew between their marks."""

from __future__ import annotations

import pytest

from evaluation.pages import table, with_part


def test_columns_are_aligned_by_their_names() -> None:
    assert table(("name", ">ms", ""), [("a", 1.5, ""), ("b", 2, "why")]) == [
        "| name | ms |  |",
        "|---|--:|---|",
        "| a | 1.5 |  |",
        "| b | 2 | why |",
    ]


def test_only_what_is_between_the_marks_changes() -> None:
    page = "before\n<!-- part: a command -->\nold\\1\n<!-- end of part -->\nafter\n"
    filled = with_part(page, "part", ["new \\1", "lines"])
    assert filled == page.replace("old\\1\n", "new \\1\nlines\n")
    assert with_part(filled, "part", ["old\\1"]) == page
    with pytest.raises(ValueError, match="0 parts are marked <!-- other -->"):
        with_part(page, "other", [])
