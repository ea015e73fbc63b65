"""The plan panel is the same in the report, on pages and in cells of notebooks."""

from __future__ import annotations

import toast_lab as tl
from tests.helpers import analysed
from toast_lab.app.items import PlanItem
from toast_lab.app.plan_pane import PlanPane
from toast_lab.cost.problem import Problem, price
from toast_lab.plan_verbs import Plan
from toast_lab.report.plan_panel import plan_panel
from toast_lab.report.report import report
from toast_lab.views.markup import bytes_text


def _item(problem: Problem, name: str, actions: list[str]) -> PlanItem:
    plan = Plan.from_actions(problem, actions)
    return PlanItem(name, "typed", plan, problem, price(problem, plan))


def test_page_and_report_have_one_panel() -> None:
    problem = Problem(analysed("mlp", batch=2048, inputs=512, hidden=16384, outputs=512), {"d": 4})
    item = _item(problem, "rows", ["B->d"])
    pane = PlanPane()
    pane.show_plan(item, [item])
    assert pane.view.object == plan_panel(problem, item.plan, item.cost)
    in_report = report(problem, {"rows": item.plan}, kept=False, written=False).html
    points = pane.view.object.partition('<dl class="points">')[2].removesuffix("</dl></div>")
    assert points
    assert points in in_report
    assert points in tl.views.plan({"rows": item.plan}, problem).to_html()
    pane.show_plan(None, [item])
    assert not pane.view.object


def test_the_panel_compares_with_unsharded_and_with_the_best_other_plan() -> None:
    problem = Problem(analysed("mlp", batch=2048, inputs=512, hidden=16384, outputs=512), {"d": 4})
    rows, columns = _item(problem, "rows", ["B->d"]), _item(problem, "columns", ["U->d"])
    nothing = _item(problem, "unsharded", [])
    best = min((columns, nothing), key=lambda item: item.cost.score)
    pane = PlanPane()
    pane.show_plan(rows, [rows, columns, nothing])
    for text in (
        f"{best.name}: {bytes_text(best.cost.peak_bytes)}",
        f"one device: {bytes_text(problem.baseline[1])}",
        bytes_text(rows.cost.sent_bytes),
    ):
        assert text in pane.view.object, text
