"""The tab with the table of a plan's collectives, without a browser."""

from __future__ import annotations

import pytest

from toast_lab.app.pages import compare_collectives, compare_run
from toast_lab.app.pages.compare_collectives import Collectives
from toast_lab.app.saver import saver
from toast_lab.app.session import Session
from toast_lab.explain.why import why
from toast_lab.jobs.job import Registry
from toast_lab.jobs.plan_job import Exported


# Panel warns about parameters of widgets that version 2 renames
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_the_longest_collective_comes_first_and_is_the_one_that_is_asked_for(
    jobs: Registry,
) -> None:
    session = Session(jobs=jobs)
    session.load("attention")
    session.plans.add_typed("S@1->data, S@0->model, D->model", "mixed")
    item = session.plans.named("mixed")
    assert item is not None
    times_s = [collective.time_s for collective in item.cost.collectives]
    assert times_s != sorted(times_s, reverse=True), "else the order says nothing"

    tab = Collectives(session, saver(session.notices.say))
    tab.refresh(item)
    assert tab._rows["predicted_s"].tolist() == sorted(times_s, reverse=True)
    tab.ask(0)
    number = int(tab._rows.iloc[0]["number"])
    assert item.cost.collectives[number].time_s == max(times_s)
    assert session.selection.ops, "its op is selected"

    for row, (kind, axes) in enumerate(tab._sums()[["kind", "axes"]].itertuples(index=False)):
        tab.ask_of_kind(row)
        (picked,) = tab.table.selection
        longest = tab._rows.iloc[picked]
        assert (longest["kind"], longest["axes"]) == (kind, axes)
        alike = tab._rows[(tab._rows["kind"] == kind) & (tab._rows["axes"] == axes)]
        assert longest["predicted_s"] == alike["predicted_s"].max()
    sums_s = tab._sums()["predicted_s"].tolist()
    assert len(sums_s) > 1
    assert sums_s == sorted(sums_s, reverse=True)


def test_prices_say_what_they_come_from(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("attention")
    session.plans.add_typed("S@1->data", "rows")
    item = session.plans.named("rows")
    assert item is not None
    assert "<dt>priced by</dt><dd>rule</dd>" in str(compare_run.outcome_words(item, ()))
    (reason, *_) = why(item.problem, item.plan, 0)
    assert " by rule" in compare_collectives._reason(reason)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_the_same_export_twice_gives_two_files() -> None:
    session = Session(jobs=Registry())
    session.load("attention")
    save, files = saver(session.notices.say), []
    save.hand_over = lambda file, text: files.append(file)  # type: ignore[method-assign]
    compare_run.Verbs(session, save)
    for _ in range(2):
        session.plans.exported = Exported("plan.py", "import jax", ())
    assert files == ["plan.py", "plan.py"]
