"""A search resumes where it was stopped, from the server's memory or from a file."""

from __future__ import annotations

import pytest

from tests.app.test_session import settle
from toast_lab.app.session import Session
from toast_lab.jobs.job import Registry


@pytest.fixture
def searched(jobs: Registry) -> Session:
    session = Session(jobs=jobs)
    session.searches.param.update(
        method="random", seconds=None, evaluations=40, options={"depth": 3}
    )
    session.load("attention")
    session.searches.start()
    settle(session)
    assert session.plans.named("random (seed 0)") is not None
    return session


def test_a_search_that_ended_goes_on_and_shows_all_of_itself(searched: Session) -> None:
    session, before = searched, searched.searches.simulations
    first = list(session.searches.points)
    # Settings on the page now apply to the next search, not to the resumed one
    session.searches.seed, session.searches.method = 9, "mcts"
    session.searches.resume()
    settle(session)
    assert session.searches.simulations > before
    assert [p.simulation for p in session.searches.points] == sorted(
        {p.simulation for p in session.searches.points}
    )
    assert session.searches.points[0] == first[0]
    assert session.searches.mirror is not None
    assert session.searches.mirror.n == session.searches.simulations
    assert max(len(s.actions) for s in session.searches.mirror.trace.simulations) == 3
    assert session.plans.named("random (seed 0) #2") is not None
    session.searches.resume()
    settle(session)
    assert session.plans.named("random (seed 0) #3") is not None


def test_a_saved_search_goes_on_in_another_session(searched: Session, jobs: Registry) -> None:
    assert searched.searches.ended is not None
    file = searched.searches.saved.text().encode()
    session = Session(jobs=jobs)
    session.searches.param.update(method="beam", seconds=None, evaluations=20)
    session.load("attention")
    session.searches.resume_saved(file)
    settle(session)
    assert session.searches.simulations > searched.searches.simulations
    assert session.plans.named("random (seed 0)") is not None

    session.set_problem(mesh="data=2")
    session.searches.resume_saved(file)
    settle(session)
    assert (
        "cannot be resumed here: it has mesh 'data=4,model=2', not 'data=2'"
        in session.notices.messages[-1].text
    )
    session.searches.resume_saved(b"PK no search")
    settle(session)
    assert "This file: cannot read this saved search" in session.notices.messages[-1].text


def test_without_a_search_there_is_nothing_to_resume(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("attention")
    session.searches.resume()
    assert "run one first" in session.notices.messages[-1].text
    assert session.work.job is None
