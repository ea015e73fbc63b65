"""Links to the explorer: what they contain, and what they must not be able to do."""

from __future__ import annotations

import pytest

pytest.importorskip("panel")

from toast_lab.app import address, link
from toast_lab.app.address import Address, AddressedSteps
from toast_lab.app.page_stack import steps
from toast_lab.app.session import Session
from toast_lab.app.shell import Shell
from toast_lab.jobs.job import Registry


@pytest.fixture
def session(jobs: Registry) -> Session:
    made = Session(jobs=jobs)
    made.load("attention", {"sequence": 128, "key": 16})
    return made


def opened(jobs: Registry, query: str) -> Session:
    view, refused = link.read(query, steps())
    assert not refused
    made = Session(jobs=jobs)
    link.open_view(made, view)
    return made


def test_a_link_brings_model_mesh_machine_selection_plan_and_level_back(
    session: Session, jobs: Registry
) -> None:
    session.set_problem(mesh="a=2,b=4", machine="a100", memory_gib=3.5)
    session.selection.select((), (2, 3))
    session.hand.choose_side(0, "b", 1)
    session.selection.level, session.step = "lines", "hand"
    query = link.query(link.write(session))
    other = opened(jobs, query)
    assert other.loaded.sizes == {"sequence": 128}, "key=16 is the default"
    for part, names in (
        ("loaded", ("which", "mesh", "machine", "memory_gib")),
        ("selection", ("names", "conflicts", "level")),
    ):
        for name in names:
            brought, sent = getattr(other, part), getattr(session, part)
            assert getattr(brought, name) == getattr(sent, name), name
    assert other.step == session.step
    assert other.hand.actions == session.hand.actions == ("S@1->b",)
    assert link.query(link.write(other)) == query
    assert len(query) < 300


def test_names_are_kept_as_ranges(session: Session, jobs: Registry) -> None:
    session.selection.select((3, 4, 5, 9))
    assert opened(jobs, link.query(link.write(session))).selection.names == (3, 4, 5, 9)


def test_selection_and_plan_of_another_program_are_left_out_and_it_is_said(
    session: Session, jobs: Registry
) -> None:
    session.selection.select((), (1,))
    query = link.query(link.write(session)).replace("sequence=128", "sequence=256")
    other = opened(jobs, query)
    assert (other.loaded.which, other.loaded.sizes, other.selection.conflicts) == (
        "attention",
        {"sequence": 256},
        (),
    )
    assert "another version of this model" in other.notices.messages[-1].text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("model=/tmp/x.py", "built-in models only"),
        ("model=tests.browser.evil:make", "built-in models only"),
        ("model=os:system&args=ls", "args"),
        ("model=attention&sequence=9999999999", "whole number from 1 to"),
        ("model=attention&sequence=-1", "whole number from 1 to"),
        ("model=attention&sequence=1e3", "whole number from 1 to"),
        ("model=attention&sequence=__import__('os')", "whole number from 1 to"),
        ("model=attention&dtype=object", "one of float32"),
        ("model=t2b&layers=100000", "whole number from 1 to 256"),
        ("model=t2b&scan=yes", "True or False"),
        ("model=unet&multipliers=" + ",".join(["1"] * 40), "at most 16"),
        ("machine=/etc/passwd.toml", "built-in machines only"),
        ("mesh=" + "a" * 500, "more than 120 characters"),
        ("mesh=data=0", "whole number above 0"),
        ("memory=nan", "GiB above 0"),
        ("level=<img src=x>", "a word"),
        ("names=0-99999999", "numbers and ranges"),
        ("names=0-9999999", "more than 4,000 numbers"),
        ("conflicts=1.x", "numbers and ranges"),
        ("step=evil", "no such page"),
        ("load=os:system", "no such field"),
        ("&".join(["act=a->b"] * 100), "at most 64 actions"),
        ("act=" + "a" * 200, "at most 64 actions of at most 120 characters"),
        ("model=" + "a" * 7000, "and is ignored"),
        ("&".join(f"a{i}=1" for i in range(300)), "and is ignored"),
    ],
)
def test_what_does_not_belong_into_a_link_is_refused_and_said(query: str, said: str) -> None:
    view, refused = link.read(query, steps())
    assert any(said in text for text in refused), refused
    assert all(len(text) < 300 for text in refused)
    assert view.model in ("", "attention", "t2b", "unet")
    assert not view.sizes
    assert view._replace(model="", sizes={}) == link.LinkedView(sizes={})


def test_numbers_beyond_the_program_are_left_out(session: Session) -> None:
    view, _ = link.read(
        f"model=attention&sequence=128&program={session.loaded.digest[:12]}&conflicts=3-90&names=1",
        steps(),
    )
    link.open_view(session, view)
    assert session.selection.conflicts == (3, 4)


def test_a_wrong_action_in_a_link_is_a_message(session: Session) -> None:
    view, _ = link.read(f"program={session.loaded.digest[:12]}&act=nothing->data", steps())
    link.open_view(session, view)
    assert session.notices.messages[-1].level == "error"
    assert session.hand.actions == ()


# -- the address bar -------------------------------------------------------------------------------


def test_who_goes_on_from_a_link_before_the_address_is_written_comes_back_to_it(
    session: Session,
) -> None:
    """A busy server writes the address late, so that the page is used before."""
    shell = Shell()
    address = Address(session, shell, steps())
    session.step = "hand"
    address.lead_to(link.asked(link.query(link.write(session))))
    session.step = "graph"
    address.flush()
    query, push = shell.query
    assert "step=graph" in query
    assert push, "the back button would leave the page"


def test_what_a_page_begins_with_is_come_back_to_as_well(session: Session) -> None:
    """The first page's model is there at once: without a link there is nothing to wait for."""
    session.step = "hand"
    shell = Shell()
    address = Address(session, shell, steps())
    session.step = "graph"
    address.flush()
    query, push = shell.query
    assert "step=graph" in query
    assert push, "the back button would leave the page"


def test_the_view_that_a_link_opens_is_one_entry_of_the_history(session: Session) -> None:
    shell = Shell()
    address = Address(session, shell, steps())
    session.step = "hand"
    address.lead_to(link.asked(link.query(link.write(session))))
    address.flush()
    assert not shell.query[1]
    session.step = "search"
    address.flush()
    assert shell.query[1]


def test_the_address_leads_to_the_model_that_was_chosen_last(session: Session) -> None:
    shell = Shell()
    address = Address(session, shell, steps())
    for layers in (3, 4):
        session.load("transformer", {"layers": layers, "sequence": 32, "vocab": 64})
        address.flush()
        session.load("gns", {"steps": 1})
        address.flush()
        assert "model=gns" in shell.query[0]


def test_a_step_that_the_address_may_still_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    addressed = AddressedSteps()
    addressed.name("graph")
    addressed.name("hand")
    assert addressed.may_name("hand")
    assert addressed.may_name("graph"), "the browser may not have been told yet"
    assert not addressed.may_name("compare")
    monkeypatch.setattr(address, "LATE_S", 0.0)
    assert not addressed.may_name("graph")
    assert addressed.may_name("hand")
