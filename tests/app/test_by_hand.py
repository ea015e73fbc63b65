"""The plan by hand in the session, and the page that builds it, without a browser."""

from __future__ import annotations

import types

import pytest

pn = pytest.importorskip("panel")

from panel.models.tabulator import CellClickEvent  # noqa: E402

from toast_lab.app.items import MANUAL, PlanItem  # noqa: E402
from toast_lab.app.pages.compare_page import ComparePage  # noqa: E402
from toast_lab.app.pages.hand_page import HandPage  # noqa: E402
from toast_lab.app.pages.understand_page import UnderstandPage  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.app.tiles_pane import tensors_of  # noqa: E402
from toast_lab.app.trail import MAX_PAST, Trail  # noqa: E402
from toast_lab.cost.problem import price  # noqa: E402
from toast_lab.jobs.job import Registry  # noqa: E402
from toast_lab.plan_verbs import Plan  # noqa: E402
from toast_lab.views.by_hand_tables import CHOSEN_MARK  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture
def session() -> Session:
    session = Session(jobs=Registry())
    session.load("attention")
    return session


@pytest.fixture
def page(session: Session) -> HandPage:
    session.step = "hand"
    return HandPage(session)


def resolution(session: Session) -> int:
    return session.loaded.analysis.compatibility_sets[0].resolution


# -- the session -----------------------------------------------------------------------------------


def test_a_trail_undoes_and_redoes_whole_versions() -> None:
    trail = Trail().to(("a",)).to(("b", "c"))
    assert trail.undo().undo().undo() == trail.undo().undo()
    assert trail.undo().now == ("a",)
    assert trail.undo().redo() == trail
    assert trail.redo() is trail
    assert trail.to(("b", "c")) is trail
    assert trail.undo().to(("d",)).future == ()
    for i in range(2 * MAX_PAST):
        trail = trail.to((str(i),))
    assert len(trail.past) == MAX_PAST


def test_a_side_is_chosen_flipped_and_taken_off(session: Session) -> None:
    r = resolution(session)
    session.hand.choose_side(r, "data", 0)
    session.hand.choose_side(r, "model", 1)
    session.hand.choose_side(r, "data", 1)
    assert session.hand.actions[0] == "S@1->data"
    item = session.plans.named(MANUAL)
    assert item is not None
    assert item.plan.actions == session.hand.actions
    session.hand.choose_side(r, "data", None)
    assert session.hand.actions == ("S@1->model",)
    for wanted in (("S@1->data",), ("S@0->data", "S@1->model"), ("S@0->data",), ()):
        session.hand.undo()
        assert session.hand.actions[: len(wanted)] == wanted
    assert not session.hand.trail.past
    session.hand.redo()
    assert session.hand.actions == ("S@0->data",)


def test_what_a_flip_leaves_without_effect_is_left_out_and_told(session: Session) -> None:
    session.set_problem(mesh="data=64,model=2")
    r = resolution(session)
    session.hand.choose_side(r, "model", 0)
    n = len(session.notices.messages)
    session.hand.choose_side(r, "data", 0)
    assert session.notices.messages[n].level == "error"
    assert "changes nothing" in session.notices.messages[n].text
    assert session.hand.actions == ("S@0->model",)


def test_a_branch_keeps_the_plan_and_goes_on_from_an_earlier_action(session: Session) -> None:
    r = resolution(session)
    session.hand.choose_side(r, "data", 0)
    session.hand.choose_side(r, "model", 1)
    both = session.hand.actions
    session.hand.branch("mine", at=1)
    kept = session.plans.named("mine")
    assert kept is not None
    assert kept.plan.actions == both
    assert kept.cost.time_s == pytest.approx(
        price(session.loaded.problem, Plan.from_actions(session.loaded.problem, both)).time_s
    )
    assert session.hand.actions == both[:1]
    assert [p.name for p in session.hand.branches()] == ["mine"]
    session.hand.go_on_from("mine")
    assert session.hand.actions == both
    session.hand.undo()
    assert session.hand.actions == both[:1]
    session.hand.branch("mine")
    assert session.plans.named("mine 2") is not None
    session.hand.branch("unsharded")
    assert session.notices.messages[-1].level == "error"


def test_there_is_nothing_to_keep_of_an_empty_plan(session: Session) -> None:
    n = len(session.plans.items)
    session.hand.branch("mine")
    assert "no plan by hand to keep yet" in session.notices.messages[-1].text
    assert len(session.plans.items) == n


def test_another_machine_prices_the_plan_anew_and_another_mesh_has_its_own(
    session: Session,
) -> None:
    session.hand.choose_side(resolution(session), "data", 0)
    before = session.plans.named(MANUAL)
    session.set_problem(machine="a100")
    after = session.plans.named(MANUAL)
    assert before is not None
    assert after is not None
    assert after.problem is session.loaded.problem
    assert after.cost.time_s != before.cost.time_s
    session.set_problem(mesh="x=2")
    assert session.hand.actions == ()
    session.set_problem(mesh="data=4,model=2")
    assert session.hand.actions == ("S@0->data",)
    session.remove_plan(MANUAL)
    assert session.hand.actions == ()
    assert session.fork().hand.actions == ()


def test_a_reloaded_page_shows_what_was_shown_before(session: Session, page: HandPage) -> None:
    session.hand.choose_side(resolution(session), "data", 0)
    forked = session.fork()
    assert forked.plans.is_priced
    reloaded = HandPage(forked)
    assert reloaded._lines == page._lines
    assert len(reloaded.collectives.value) == len(page.collectives.value) > 0
    assert reloaded.board.height == page.board.height
    assert reloaded.history.pair() is not None


def test_axes_with_nothing_to_offer_say_why(session: Session) -> None:
    session.set_problem(mesh="data=4,model=3")
    session.selection.select((), (0,))
    offered = session.hand.action_prices()
    assert {row.axis for row in offered} == {"data"}
    (why,) = session.hand.refusals(offered)
    assert 'S has size 64, not divisible by mesh axis "model" = 3' in why


def test_the_best_that_a_search_found_is_of_this_mesh_and_fits(session: Session) -> None:
    assert session.hand.best_searched() is None
    for name, actions, origin in (
        ("slow", ["S@0->data"], "search"),
        ("fast", ["S@1->model"], "search"),
        ("x", [], "typed"),
    ):
        plan = Plan.from_actions(session.loaded.problem, actions)
        item = PlanItem(
            name, origin, plan, session.loaded.problem, price(session.loaded.problem, plan)
        )
        session.plans.items = [*session.plans.items, item]
    best = session.hand.best_searched()
    assert best is not None
    assert best.cost.time_s == min(
        p.cost.time_s for p in session.plans.items if p.origin == "search"
    )
    session.set_problem(mesh="x=2")
    assert session.hand.best_searched() is None


# -- the page --------------------------------------------------------------------------------------


def test_a_row_of_the_board_selects_its_names_and_a_name_its_row(page: HandPage) -> None:
    session, board = page.session, page.board
    board._clicked(types.SimpleNamespace(row=1))
    sets = board.board.disputes[0].sets
    assert session.selection.conflicts == tuple(
        k for s in sets for k in session.loaded.analysis.compatibility_sets[s].conflicts
    )
    assert board.table.selection == [0, 1]
    session.selection.select(())
    assert board.row is None
    assert board.table.selection == []
    session.selection.select((session.loaded.analysis.conflicts[3].sides[1],))
    assert board.row == 0
    quiet = next(
        n
        for n in range(session.loaded.analysis.names.n)
        if not any(n in c.sides for c in session.loaded.analysis.conflicts)
    )
    session.selection.select((quiet,))
    assert board.row is None


def test_flipping_a_switch_changes_board_listing_costs_and_collectives(session: Session) -> None:
    session.step = "hand"
    understand = UnderstandPage(session)
    page, switches = understand.make_board(), understand.graph.inspector.sides.switches
    board = page.board
    session.selection.select((), (0,))
    before, lines = page.history.costs.object, [line.text for line in page._lines]
    switches["data"].switch.value = "0"
    assert session.hand.actions == ("S@0->data",)
    assert board.table.value["data"][0].startswith(CHOSEN_MARK)
    first = page.history.costs.object
    assert first != before
    switches["data"].switch.value = "1"
    assert session.hand.actions == ("S@1->data",)
    assert board.table.value["data"][1].startswith(CHOSEN_MARK)
    assert not board.table.value["data"][0].startswith(CHOSEN_MARK)
    assert page.history.costs.object != first
    assert [line.text for line in page._lines] != lines
    item = session.plans.named(MANUAL)
    assert page.collectives.value["number"].sum() == len(item.cost.collectives) > 0
    assert sum(line.collective for line in page._lines) == len(item.cost.collectives)
    session.hand.undo()
    assert switches["data"].switch.value == "0"


def test_a_hidden_page_waits_until_it_is_shown(session: Session) -> None:
    session.step = "hand"
    page = HandPage(session)
    session.step = "graph"
    session.selection.select((), (0,))
    session.hand.add_action("data")
    assert page.history.table.value["action"].tolist() == ["unsharded"]
    session.step = "hand"
    assert page.history.table.value["action"].tolist() == ["unsharded", "S@0->data"]
    assert page.board.row == 0


def test_the_compare_page_takes_plans_in_when_it_is_shown(session: Session) -> None:
    page = ComparePage(session)
    session.selection.select((), (0,))
    session.hand.add_action("data")
    assert MANUAL not in page.table.value["plan"].tolist()
    session.step = "compare"
    assert MANUAL in page.table.value["plan"].tolist()


def test_tiles_follow_the_plan_and_offer_the_tensors_of_the_selection(page: HandPage) -> None:
    session, tiles = page.session, page.tiles
    program = session.loaded.analysis.program
    assert tiles.tensor.value in range(program.n_arguments)
    session.selection.select((), (0,))
    place = session.loaded.analysis.conflicts[0].places[0]
    assert tiles.tensor.value == place.value
    session.hand.choose_side(resolution(session), "data", 1)
    item = session.plans.named(MANUAL)
    for value in tensors_of(session.loaded.analysis, session.selection.names):
        tiles.tensor.value = value
        shape, spec = tiles.spec()
        assert (shape, spec) == (program.dims(value), item.plan.value_specs()[value])
        assert len(tiles.table.value) == 8
    tiles.tensor.value = place.value
    tiles.down.value = 1
    assert tiles.across.value == 0


def test_an_action_selected_in_the_list_is_where_a_branch_begins(page: HandPage) -> None:
    session, history = page.session, page.history
    session.hand.choose_side(resolution(session), "data", 0)
    session.hand.choose_side(resolution(session), "model", 1)
    assert history.at == 2
    # If that row is already selected in the browser, it sends only the click
    history.table._process_event(CellClickEvent(history.table.get_root(), "action", 1))
    assert history.at == 1
    assert history.table.selection == [1]
    assert page.collectives.titles["action"] == "by action 1"
    history.kept_name.value = "both"
    history.branch.clicks += 1
    assert session.hand.actions == ("S@0->data",)
    history.other.value = "both"
    assert session.hand.actions == ("S@0->data", "S@1->model")


def test_a_smaller_program_after_a_large_one_shows_its_own_lines(
    session: Session, page: HandPage
) -> None:
    page.short.value = True  # as a program with many ops has it
    session.load("mlp")
    assert not page.short.value
    ops = {line.op for line in page._shown}
    assert ops
    assert max(ops) < session.loaded.analysis.program.n_ops
