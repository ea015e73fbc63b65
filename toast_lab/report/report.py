"""``report``: one HTML file that explains a plan, to send to somebody.

    tl.report(problem, result, path="report.html")

The file opens anywhere, without a server or a network. Start reading at ``report``;
``document.page`` makes the content.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidInput, InvalidProblem
from toast_lab.files import PathLike, write_whole
from toast_lab.runtime.compiled import Compiled
from toast_lab.search.contract import SearchResult
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.report.subject import Measured, Planned, ReportSubject

    Plans = Planned | Mapping[str, Planned] | Sequence[Planned]


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """A report, ready to be written.

    Attributes:
        html: content of the whole file.
        title: title of the page.
    """

    html: str
    title: str

    def save(self, path: PathLike) -> None:
        """Write the file, whole or not at all. Raises NotSaved."""
        write_whole(path, self.html, "the report")

    def __repr__(self) -> str:
        return f"<Report {self.title}, {len(self.html.encode()) / 2**20:.1f} MiB>"


def report(
    problem: Problem | SearchResult[Any],
    plans: Plans | None = None,
    path: PathLike | None = None,
    *,
    compiled: Compiled | Iterable[Compiled] = (),
    measured: Measured | None = None,
    kept: bool = True,
    written: bool = True,
    command: str = "",
) -> Report:
    """Explain a plan in one HTML file: what it does and why, what it costs, and how that is known.

    The plan is searched for, compiled and executed by others; only its rules and constraints are
    found here, if ``plan.written`` or ``result.written`` has not done so yet.

    Args:
        problem: the problem of the plans; or a search result, whose plan then comes first. The
            machine of a search result must be a built-in one.
        plans: one or several plans or search results. The first plan is explained, the others are
            compared with it. A mapping gives them names.
        path: where to write the file; None: it is not written.
        compiled: results of ``tl.compile`` for any of the plans.
        measured: a ``Run`` of the first plan, runs by plan name, or a ``Comparison``.
        kept: also show the stored compiled results and measurements of the plans.
        written: show the rules and constraints of the first plan, which may take some seconds.
        command: the command that makes the report; empty if it is made from Python.

    Raises:
        InvalidPlan: a plan belongs to another program or mesh.
        InvalidInput: there is no plan, or a compiled result or a run belongs to none of the plans.
        InvalidProblem: the machine of a search result is not a built-in one, or its prices came
            from a price list.
        NotSaved: the file cannot be written.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> report = tl.report(problem, plan, "report.html", kept=False)
        >>> report.title
        'plan 1 of mlp on data=2,model=2 of tpu-v5e'
        >>> report
        <Report plan 1 of mlp on data=2,model=2 of tpu-v5e, 1... MiB>
    """
    check_packages()
    planned = _named(plans)
    if isinstance(problem, SearchResult):
        planned = {problem.method: problem, **planned}
        problem = _problem_of(problem)
    if not planned:
        raise InvalidInput(
            "a report needs a plan: call tl.report(problem, plan), or tl.report(result) with the "
            "result of a search"
        )
    from toast_lab.report.document import page
    from toast_lab.report.subject import make_subject

    subject = make_subject(
        problem,
        planned,
        compiled=[compiled] if isinstance(compiled, Compiled) else [*compiled],
        measured=measured,
        kept=kept,
        written=written,
        command=command,
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    finished = Report(page(subject), _title(subject))
    if path is not None:
        finished.save(path)
    return finished


def check_packages() -> None:
    """Raise InvalidInput if the packages that draw the pictures are not installed."""
    for package in ("bokeh", "pandas"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise InvalidInput(
                f'a report needs {package}, which is not installed: pip install "toast-lab[app]"'
            ) from None


def _title(subject: ReportSubject) -> str:
    return f"{subject.title_name} of {subject.problem.describe()}"


def _named(plans: Plans | None) -> dict[str, Planned]:
    """Plans by name; an unnamed plan gets the method that found it as its name, or a number."""
    if plans is None:
        return {}
    if isinstance(plans, Mapping):
        return dict(plans)
    plan_list = [plans] if isinstance(plans, ShardingPlan | SearchResult) else [*plans]
    if not_plans := [
        plan for plan in plan_list if not isinstance(plan, ShardingPlan | SearchResult)
    ]:
        kinds = ", ".join(sorted({type(plan).__name__ for plan in not_plans}))
        raise InvalidInput(f"a report takes Plans or results of searches, not {kinds}")
    named: dict[str, Planned] = {}
    for number, plan in enumerate(plan_list, 1):
        name = plan.method if isinstance(plan, SearchResult) else f"plan {number}"
        named[name if name not in named else f"{name} ({number})"] = plan
    return named


def _problem_of(result: SearchResult[Any]) -> Problem:
    """The problem that a search solved, without its pins."""
    search_settings, plan = result.trace.about, result.plan
    advice = "Give the problem first: tl.report(problem, result)"
    if plan.analysis is None:
        raise InvalidInput(f"this result came from another process, without its analysis. {advice}")
    try:
        problem = Problem(
            plan.analysis,
            plan.mesh,
            search_settings["machine"],
            memory_limit_bytes=search_settings["memory_limit_bytes"],
            memory_weight=search_settings["memory_weight"],
            paper_mode=search_settings["paper_mode"],
        )
    except (InvalidProblem, KeyError):
        machine = search_settings.get("machine")
        raise InvalidProblem(
            f"the machine {machine!r} of this search is not a built-in one. {advice}"
        ) from None
    if not math.isclose(price(problem, plan).time_s, result.cost.time_s, rel_tol=1e-6):
        raise InvalidProblem(
            f"this search did not price its plan by the rules of {problem.machine.name} alone. "
            f"{advice}"
        )
    return problem
