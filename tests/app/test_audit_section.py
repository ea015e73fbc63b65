"""The audit of a model that is sharded already, on the first page, without a browser."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest

pn = pytest.importorskip("panel")

from tests.audit import programs  # noqa: E402
from toast_lab.app.pages.audit_section import PRICE_ALONE  # noqa: E402
from toast_lab.app.pages.load_page import LoadPage  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.conflicts.analysis import analyse  # noqa: E402
from toast_lab.frontends import from_jax  # noqa: E402
from toast_lab.ir.model import Model  # noqa: E402
from toast_lab.jobs.audit_job import AuditOutcome, run_audit  # noqa: E402
from toast_lab.jobs.job import JobState, Registry  # noqa: E402
from toast_lab.jobs.load_job import LoadedModel  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
WAIT_S = 240.0


def model_of(name: str) -> Model:
    """A program of the audit's tests, as it is loaded: its function stays in another process."""
    fn, args = getattr(programs, name)(False)
    return dataclasses.replace(from_jax(fn, *args), function=None)


@pytest.fixture(scope="module")
def sharded() -> LoadedModel:
    model = model_of("lost_in_reshape")
    return LoadedModel(model, analyse(model))


@pytest.fixture
def load_page(jobs: Registry, sharded: LoadedModel) -> Iterator[LoadPage]:
    session = Session(jobs)
    session.show(sharded)
    yield LoadPage(session)
    for job in jobs.running():
        job.cancel()
        job.finished.wait(20)


@pytest.fixture(scope="module")
def outcome(sharded: LoadedModel) -> AuditOutcome:
    session = Session(Registry())
    session.show(sharded)
    return run_audit(sharded.model, session.loaded.problem.machine, search=False)


def wait(session: Session) -> None:
    deadline = time.monotonic() + WAIT_S
    while session.work.busy:
        session.tick()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_model_without_shardings_shows_nothing_of_it(jobs: Registry, load_page: LoadPage) -> None:
    section = load_page.audit
    assert section.view.visible
    assert "10 shardings of its own, on data=4,model=4." in section._written.object
    load_page.session.load("mlp")
    assert not section.view.visible
    assert not LoadPage(Session(jobs)).audit.view.visible


def test_it_is_offered_what_the_comparison_compiles_for(load_page: LoadPage) -> None:
    options = load_page.audit.topology.options
    assert options[PRICE_ALONE] == ""
    assert {"cpu:16", "tpu:v5e:4x4"} <= set(options.values())
    load_page.audit.topology.value = "cpu:16"
    load_page.audit.search.value = False
    audits = load_page.session.audits
    assert (audits.topology, audits.search) == ("cpu:16", False)


def test_shardings_on_several_meshes_are_refused_with_the_reason(load_page: LoadPage) -> None:
    model = load_page.session.loaded.model
    first, *others = model.annotations
    moved = first._replace(mesh=(("data", 16),))
    program = dataclasses.replace(model.program, annotations=(moved, *others))
    several = dataclasses.replace(model, program=program)
    load_page.session.show(LoadedModel(several, analyse(several)))
    assert load_page.audit.view.visible
    assert not load_page.audit._asked.visible
    assert "are on 2 meshes" in load_page.audit._written.object


def test_it_runs_as_a_job_whose_outcome_is_shown_in_full(load_page: LoadPage) -> None:
    session = load_page.session
    load_page.audit.topology.value, load_page.audit.search.value = "", False
    load_page.audit.start.clicks += 1
    job = session.work.job
    assert job.kind == "audit"
    assert load_page.audit.start.disabled, "one job at a time"
    wait(session)
    assert job.state is JobState.DONE, job.message
    assert "trying changes" in [event.data for event in job.events]
    assert [finding.kind for finding in session.audits.outcome.findings] == ["replicated work"]
    assert "1 finding" in session.notices.messages[-1].text
    assert not load_page.audit.start.disabled
    assert load_page._tabs._names[load_page._tabs.active] == "Audit (1)"
    assert not load_page._graph_box.visible


def test_a_cancelled_audit_leaves_the_last_outcome(
    load_page: LoadPage, outcome: AuditOutcome
) -> None:
    session = load_page.session
    session.audits.outcome = outcome
    session.audits.start()
    job = session.work.job
    session.cancel()
    wait(session)
    assert job.state is JobState.CANCELLED
    assert session.audits.outcome is outcome


def test_the_report_has_the_figures_and_the_findings(
    load_page: LoadPage, outcome: AuditOutcome
) -> None:
    load_page.session.audits.outcome = outcome
    head, frame = load_page._audit._head.object, load_page._audit._table.value
    assert "On data=4,model=4, priced for tpu-v5e." in head
    assert "as written" in head
    assert "data parallel" in head
    assert "<td>767.25 MiB</td>" in head
    row = frame.iloc[0]
    assert row["finding"].startswith("replicated work: tokens")
    assert row["line"].startswith("programs.py:")
    assert row["saves"].endswith(f"({outcome.shares[0]:.1%})")
    assert "constrain tokens to [data, -]" in row["change"]
    code = "tokens = jax.lax.with_sharding_constraint(tokens, P(&quot;data&quot;, None))"
    assert f"<pre>{code}" in load_page._audit._changes.object


def test_names_of_the_user_are_escaped(load_page: LoadPage, outcome: AuditOutcome) -> None:
    finding = outcome.findings[0]
    assert finding.remedy is not None
    evil = "<img src=x onerror=alert(1)>"
    remedy = dataclasses.replace(finding.remedy, text=evil, code=(evil,))
    finding = dataclasses.replace(finding, subject=evil, why=evil, remedy=remedy)
    load_page.session.audits.outcome = outcome._replace(findings=(finding,), notes=(evil,))
    shown = load_page._audit._head.object + load_page._audit._changes.object
    assert "<img" not in shown
    assert "&lt;img src=x" in shown


def test_a_click_on_a_finding_shows_its_op_in_the_graph(
    load_page: LoadPage, outcome: AuditOutcome
) -> None:
    session, finding = load_page.session, outcome.findings[0]
    session.audits.outcome = outcome
    load_page._audit.open_row(0)
    assert session.step == "graph"
    assert finding.op in session.selection.ops
    # A finding on arguments selects their names
    of_argument = dataclasses.replace(finding, op=-1, values=(1,))
    session.audits.outcome = outcome._replace(findings=(of_argument,))
    load_page._audit.open_row(0)
    names = tuple(map(int, session.loaded.analysis.program.def_names(1)))
    assert session.selection.names == names


def test_a_reload_keeps_it_and_another_model_removes_it(
    load_page: LoadPage, outcome: AuditOutcome
) -> None:
    session = load_page.session
    session.audits.param.update(outcome=outcome, search=False, topology="cpu:16")
    again = session.fork()
    audits = again.audits
    assert (audits.outcome, audits.search, audits.topology) == (outcome, False, "cpu:16")
    reloaded = LoadPage(again)
    assert reloaded._tabs._names[-1] == "Audit (1)"
    assert reloaded.audit.topology.value == "cpu:16"
    reloaded._tabs.active = 4
    again.load("mlp")
    assert audits.outcome is None
    assert len(reloaded._tabs) == 4
    assert reloaded._tabs.active == 3
