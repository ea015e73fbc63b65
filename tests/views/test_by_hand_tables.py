"""The tables of the plan by hand, and its listing with changes marked."""

from __future__ import annotations

import pytest

import toast_lab as tl
from tests.helpers import analysed, plan, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.explain.plan_by_hand import collective_changes, plans_after_actions
from toast_lab.lowering.listing import listing, listing_lines
from toast_lab.text import line_text
from toast_lab.views.by_hand_tables import (
    CHOSEN_MARK,
    board_frame,
    collectives_frame,
    costs_rows,
    option_text,
    sent_text,
    taken_frame,
)
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.local_lines import CHANGED, MAX_LINES, local_lines

MESH = {"d": 2, "m": 4}


@pytest.fixture(scope="module")
def problem():
    return Problem(analysed("attention"), MESH, "tpu-v3")


@pytest.fixture(scope="module")
def train():
    return Problem(small_transformer(layers=3, mode="train"), MESH, "tpu-v3")


def test_the_board_has_a_row_a_side_and_a_column_an_axis(train):
    board = tl.conflicts(train)
    frame = board_frame(board, {(0, "m"): 1})
    assert frame.columns.tolist() == ["colour", "tensor", "side", "d", "m"]
    assert len(frame) == 2 * len(board.disputes)
    first = board.disputes[0]
    others = f"+{len(first.tensors) - 1}, ×{len(first.sets)} layers"
    assert frame["tensor"].tolist()[:2] == [f"{first.tensors[0].value} [8, 32, 32, 4]", others]
    assert frame["colour"].tolist()[:2] == [first.colour, line_text(first.tensors[0].where)]
    assert [frame["side"][i] for i in (0, 1)] == [
        f"{i}: dim {first.tensors[0].dims[i]}" for i in (0, 1)
    ]
    for o in first.options:
        mark = CHOSEN_MARK if (o.axis, o.bit) == ("m", 1) else ""
        assert frame[o.axis][o.bit] == mark + (
            f"{seconds_text(o.time_s)}, {bytes_text(o.peak_bytes)}"
        )
    tight = Problem(train.analysis, MESH, "tpu-v3", memory_limit_bytes=1000.0)
    assert all(option_text(o).endswith("✗") for o in tl.conflicts(tight).disputes[0].options)


def test_an_option_that_does_not_divide_is_said_to_be_none():
    board = tl.conflicts(Problem(analysed("attention"), {"d": 3, "m": 4}, "tpu-v3"))
    frame = board_frame(board)
    assert frame["d"].tolist() == ["not possible"] * 2
    assert "not possible" not in frame["m"].tolist()


def test_rows_of_actions_say_what_came_and_went(problem):
    steps = plans_after_actions(problem, ("S@0->d", "S@1->m"))
    frame = taken_frame(steps)
    assert frame["action"].tolist() == ["unsharded", "S@0->d", "S@1->m"]
    assert frame["step"].tolist() == [seconds_text(s.time_s) for s in steps]
    n = steps[1].sent.total()
    assert n > 0
    assert frame["collectives"][0] == "–"
    assert frame["collectives"][1].startswith("+")
    words = sent_text(collective_changes(steps[0].sent, steps[1].sent).items())
    assert sum(int(w[1:]) for w in words.replace(",", " ").split() if w.startswith("+")) == n
    assert sent_text(()) == "no collectives added or removed"


def test_collectives_stand_by_line_and_add_up(train):
    actions = plan(train, *_two(train)).actions
    steps, cost = plans_after_actions(train, actions), price(train, plan(train, *actions))
    frame = collectives_frame(train, cost, steps[-2].sent, steps[-1].sent)
    assert frame["number"].sum() == len(cost.collectives) > 0
    new = sum(int(w[1:]) for text in frame["action"] for w in text.split() if w[0] == "+")
    gone = sum(int(w[1:]) for text in frame["action"] for w in text.split() if w[0] == "−")
    assert (new, gone) == (
        (steps[-1].sent - steps[-2].sent).total(),
        (steps[-2].sent - steps[-1].sent).total(),
    )
    assert len(frame) < len(cost.collectives), "repeated layers are one row"


def _two(problem):
    dispute = tl.conflicts(problem).disputes[0]
    return [
        o.action for o in dispute.options if o.possible and (o.axis, o.bit) in (("d", 0), ("m", 1))
    ]


def test_costs_stand_side_by_side(problem):
    steps = plans_after_actions(problem, ("S@0->d",))
    best = price(problem, plan(problem, "S@1->m"))
    rows = {name: cells for name, *cells in costs_rows(steps[-1], steps[0], best)}
    assert rows["step"] == [seconds_text(x.time_s) for x in (steps[1], steps[0], best)]
    assert rows["collectives"] == [seconds_text(x.comm_s) for x in (steps[1], steps[0], best)]
    assert rows["peak"] == [bytes_text(x.peak_bytes) for x in (steps[1], steps[0], best)]
    assert rows["their number"] == [str(steps[1].sent.total()), "0", str(len(best.collectives))]
    assert rows["speed"][1] == "1.00×"
    assert {cells[2] for _, *cells in costs_rows(steps[-1], steps[0], None)} == {""}


def test_lines_are_those_of_the_listing(problem):
    by_hand = plan(problem, "S@1->d")
    lines = listing_lines(problem, by_hand)
    whole = " ".join(listing(problem, by_hand).split())
    for line in lines[problem.analysis.program.n_arguments :]:
        assert " ".join(line.text.split()) in whole
    assert sum(line.collective for line in lines) == len(price(problem, by_hand).collectives) > 0
    cut = {line.name: line.dims for line in lines if line.right == "argument"}
    for path, spec in by_hand.argument_specs().items():
        axes = [a for dim in spec for a in dim]
        assert ("{" in cut[path]) == bool(axes)
        assert all(a in cut[path] for a in axes)


def test_what_changed_since_the_listing_before_is_marked(problem):
    whole = listing_lines(problem, plan(problem))
    cut = listing_lines(problem, plan(problem, "S@1->d"))
    first = local_lines(problem.analysis, whole)
    assert not any(line.changed for line in first.lines)
    assert CHANGED.strip() not in first.note
    shown = local_lines(problem.analysis, cut, whole)
    assert len(shown.lines) == len(cut)
    known = {line.text for line in whole}
    assert [line.changed for line in shown.lines] == [line.text not in known for line in cut]
    assert all((line.segments[0].text == CHANGED) == line.changed for line in shown.lines)
    short = local_lines(problem.analysis, cut, whole, short=True)
    assert 0 < len(short.lines) < len(cut)
    again = local_lines(problem.analysis, cut, cut)
    assert "0 lines are new" in again.note


def test_long_listings_are_cut_and_say_so(train):
    lines = listing_lines(train, plan(train))
    many = lines * (MAX_LINES // len(lines) + 1)
    shown = local_lines(train.analysis, many)
    assert len(shown.lines) == MAX_LINES
    assert f"the first {MAX_LINES:,} of {len(many):,} are shown" in shown.note
