"""Texts that several tables and fields share are written and read correctly."""

from __future__ import annotations

import pytest

from toast_lab.text import history_text, read_gib


@pytest.mark.parametrize(
    ("text", "size_gib"),
    [
        ("8", 8.0),
        ("1e-6", 1e-6),
        (" 8 GiB ", 8.0),
        ("8gib", 8.0),
        ("0.5 TiB", 512.0),
        ("1,024 MiB", 1.0),
        ("80 GB", 80e9 / 2**30),
        ("-1", -1.0),
    ],
)
def test_a_size_of_memory_is_read(text: str, size_gib: float) -> None:
    assert read_gib(text) == pytest.approx(size_gib, rel=1e-12)


@pytest.mark.parametrize("text", ["", "GiB", "8 G", "8 gibs", "nan", "inf", "1e400", "8 GiB GiB"])
def test_what_is_no_size_of_memory_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size; give a number of GiB"):
        read_gib(text)


def test_how_a_plan_came_about() -> None:
    assert history_text(()) == ""
    assert history_text(("B->data", "U@1->model"), " › ") == "B->data › U@1->model"
    assert history_text(("B->data", "refined in 2 places")) == "B->data, refined in 2 places"
    chosen = ("roles: all axes free, optimal", "refined in 1 place")
    assert history_text(chosen) == (
        "no actions, everything was chosen at once "
        "(roles: all axes free, optimal, refined in 1 place)"
    )
