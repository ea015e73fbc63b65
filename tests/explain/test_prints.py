"""The printed forms of results.

They are short at a prompt; reports are bounded and costliest first; no arrays are printed.
"""

from __future__ import annotations

import pytest

import toast_lab as tl
from toast_lab.conflicts.coverage import coverage
from toast_lab.explain import why as module


@pytest.fixture(scope="module")
def found():
    problem = tl.Problem(tl.analyse(tl.load("transformer", layers=1)), "4x2")
    budget = tl.Budget(seconds=None, evaluations=40)
    return problem, [tl.search(problem, "random", seed, budget=budget) for seed in (0, 1)]


def test_reprs_are_short_and_hold_no_arrays(found):
    problem, (one, two) = found
    reasons = tl.why(problem, one.plan, [0, 1])
    for thing in (
        problem.analysis,
        problem.analysis.program,
        problem.analysis.names,
        problem.space,
        one,
        one.plan,
        one.cost,
        tl.conflicts(problem),
        tl.diff(problem, one.plan, two.plan),
        coverage(problem.analysis),
        problem.divisibility(one.plan),
        reasons,
        reasons[0],
        reasons[0].undoing,
        [one, two],
    ):
        assert len(repr(thing)) < 1000, type(thing)
        assert "array(" not in repr(thing)
    program = problem.analysis.program
    assert f"of {program.name} on data=4,model=2" in one.plan.in_brief()
    assert str(one.plan).startswith(f"{program.name} on data=4,model=2, not written yet: ")
    assert f"{len(one.cost.collectives)} collectives" in str(one.cost)


def test_reasons_print_the_most_costly_collectives_first_and_count_the_others(found):
    problem, (one, _) = found
    n = min(module.SHOWN_REASONS + 4, len(one.cost.collectives))
    assert n > module.SHOWN_REASONS
    reasons = tl.why(problem, one.plan, list(range(n)))
    assert isinstance(reasons, list)
    assert [r.collective for r in reasons] == list(one.cost.collectives[:n])
    text = str(reasons)
    costly = sorted(reasons, key=lambda r: -r.collective.time_s)
    assert text.startswith(str(costly[0]))
    assert text.count("  because ") == module.SHOWN_REASONS
    assert f"... and {n - module.SHOWN_REASONS} more, " in text
    assert "print(reasons.text(None)) shows all" in text
    assert len(text) < 20_000
    assert reasons.text(None).count("  because ") == n
    html = reasons._repr_html_()
    assert html.startswith("<pre style=")
    assert "&lt;" in html or "<pre" in html
    assert repr(reasons).startswith(f"<Reasons for {n} collectives, ")


def test_a_long_listing_is_cut_at_the_prompt_and_whole_where_it_is_asked_for(found, monkeypatch):
    from toast_lab.conflicts import analysis as stage
    from toast_lab.conflicts.analysis import annotated_listing

    analysis = found[0].analysis
    monkeypatch.setattr(stage, "MOST_LINES", 10)
    lines = str(analysis).split("\n")
    all_lines = annotated_listing(analysis).split("\n")
    assert lines[:10] == all_lines[:10]
    assert lines[10:] == [
        f"... and {len(all_lines) - 10} more lines: "
        f"{stage.__name__}.annotated_listing(analysis) gives all of them"
    ]


def test_a_long_board_counts_what_it_leaves_out():
    problem = tl.Problem(tl.analyse(tl.load("attention")), "4x2")
    board = tl.conflicts(problem)
    all_lines = board.text(None).split("\n")
    assert str(board).split("\n") == all_lines
    assert board.text(1).split("\n")[-1] == (
        f"... and {len(all_lines) - 3} more rows: print(board.text(None)) shows all"
    )
