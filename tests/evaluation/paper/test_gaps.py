"""The table of gaps between plans and bounds; its rows are kept and not computed again."""

from __future__ import annotations

from pathlib import Path

from evaluation.paper import gaps
from evaluation.paper.paper_cases import Choice


def test_rows_are_kept_and_not_made_again(tmp_path: Path) -> None:
    choice = Choice.make(models=["itx"], machines=["a100"])

    def rows(search_seconds: float) -> list[gaps.GapRow]:
        return gaps.run_gaps(
            choice.cases,
            choice.machines,
            tmp_path,
            search_seconds=search_seconds,
            bound_seconds=8.0,
            quick=True,
        )

    (row,) = rows(1.0)
    assert row.fits
    assert row.bound is not None
    assert row.bound <= row.score
    with (tmp_path / gaps.ROWS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"model": "cut off')
    (again,) = rows(1.0)
    assert again.search_s == row.search_s
    (other,) = rows(1.5)
    assert other.search_s != row.search_s
    table, page = gaps.write_tables([row], tmp_path)
    assert table.read_text().startswith("model,machine,mesh,time_s")
    assert page.read_text().splitlines()[2].startswith("| ITX | a100 |")


def test_a_cancelled_run_keeps_nothing_that_is_not_done(tmp_path: Path) -> None:
    choice = Choice.make(models=["itx"], machines=["a100"])
    rows = gaps.run_gaps(
        choice.cases,
        choice.machines,
        tmp_path,
        search_seconds=1.0,
        bound_seconds=1.0,
        quick=True,
        cancel=lambda: True,
    )
    assert rows == []
    assert gaps.read_gaps(tmp_path / gaps.ROWS_FILE) == []
