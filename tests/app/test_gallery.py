"""The numbers on the gallery's cards are those of the models."""

from __future__ import annotations

import pytest

pytest.importorskip("panel")

from tests.helpers import analysed
from toast_lab.app import keys
from toast_lab.app.gallery import CARDS, SOLVED, SolvedCase, card_text
from toast_lab.app.model_loading import MAX_UPLOAD_BYTES, refuse_file
from toast_lab.app.page_stack import PAGES
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import FrontendError
from toast_lab.frontends import load
from toast_lab.models import registry
from toast_lab.plan_verbs import Plan


def holds(name: str) -> None:
    analysis, card = analysed(name), CARDS[name]
    program = analysis.program
    counts = (
        program.n_ops - program.n_arguments,
        program.n_values,
        int((analysis.names.size > 1).sum()),
    )
    assert counts == (card.ops, card.values, card.names)
    assert len(analysis.conflicts) == card.conflicts
    facts = registry.FACTS.get(name)
    if facts is not None:
        assert card.parameters == facts.parameter_count


@pytest.mark.parametrize("name", ["mlp", "xxt", "crossed", "attention", "transformer"])
def test_cards_of_small_models(name: str) -> None:
    holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t2b", "t7b", "itx", "gns", "unet"])
def test_cards_of_large_models(name: str) -> None:
    holds(name)


def test_every_model_has_a_card() -> None:
    assert list(CARDS) == list(registry.MODELS)
    assert card_text("t2b").endswith(
        "2.51 billion parameters · 11,598 ops · 24,640 names · 504 conflicts"
    )
    assert CARDS["transformer"].parameters == load("transformer").parameter_count


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] if case.model == "t2b" else [])
        for case in SOLVED
    ],
    ids=lambda case: case.model,
)
def test_solved_cases_are_plans_of_their_models_that_pay(case: SolvedCase) -> None:
    sizes = dict(case.sizes) or registry.WORTHWHILE_SIZES.get(case.model, {})
    problem = Problem(analysed(case.model, **sizes), case.mesh)
    plan = Plan.from_actions(problem, list(case.actions))
    assert plan.actions == case.actions
    cost = price(problem, plan)
    assert cost.peak_bytes < problem.baseline[1]
    assert cost.fits
    assert cost.time_s < problem.baseline[0] / 1.3, "sharding has to pay in what is shown first"
    assert case.question.endswith("?")
    assert case.picture.endswith(".")


@pytest.mark.parametrize(
    ("name", "nbytes", "said"),
    [
        ("model.py", 10, "is code, and a file dropped here is never run"),
        ("Model.PY", 10, "never run"),
        ("a.mlir", 0, "a.mlir is empty"),
        ("a.mlir", MAX_UPLOAD_BYTES + 1, "at most 64 MiB"),
    ],
)
def test_files_are_refused_before_they_are_read(name: str, nbytes: int, said: str) -> None:
    with pytest.raises(FrontendError, match=said):
        refuse_file(name, nbytes)
    refuse_file("a.mlir", MAX_UPLOAD_BYTES)


def test_no_key_means_two_things() -> None:
    titles = {step: page.title for step, page in PAGES.items()}
    pressed = [key for _, pressed_for, *_ in keys.table(titles) for key in pressed_for]
    assert len(pressed) == len(set(pressed))
    assert {c.id for c in keys.COMMANDS} == {*keys._STEPS, *keys._DO, *keys.IN_BROWSER}
