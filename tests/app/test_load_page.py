"""The fields for a model's sizes, without a browser."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

pn = pytest.importorskip("panel")

from toast_lab.app.gallery import SOLVED  # noqa: E402
from toast_lab.app.pages.load_page import LoadPage  # noqa: E402
from toast_lab.app.session import Session  # noqa: E402
from toast_lab.conflicts.analysis import analyse  # noqa: E402
from toast_lab.frontends import load, loading  # noqa: E402
from toast_lab.jobs.job import Registry  # noqa: E402
from toast_lab.jobs.load_job import LoadedModel  # noqa: E402
from toast_lab.models import registry  # noqa: E402

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.mark.parametrize("name", registry.MODELS)
def test_every_model_gets_fields_that_hold_its_defaults(name: str) -> None:
    page = LoadPage(Session(jobs=Registry()))
    page._show_sizes(name)
    assert page.chosen_sizes() == registry.sizes(name)
    for key, words in registry.choices(name).items():
        assert page._inputs[key].options == list(words)


def test_switches_are_no_numbers() -> None:
    page = LoadPage(Session(jobs=Registry()))
    page._show_sizes("t2b")
    assert isinstance(page._inputs["scan"], pn.widgets.Checkbox)
    assert isinstance(page._inputs["layers"], pn.widgets.IntInput)


def test_what_was_done_to_the_input_is_worth_knowing() -> None:
    model = dataclasses.replace(
        load("mlp"), notes=("dropped debug_print (<b>.py:3): it only prints",)
    )
    page = LoadPage(Session(jobs=Registry()))
    page.session.show(LoadedModel(model, analyse(model)))
    shown = page._worth_knowing.object
    assert "dropped debug_print (&lt;b&gt;.py:3): it only prints" in shown


def test_a_list_of_sizes_is_typed_as_numbers() -> None:
    page = LoadPage(Session(jobs=Registry()))
    page._show_sizes("unet")
    for text, wanted in (("1 2 4", (1, 2, 4)), ("1, 2", (1, 2)), ("one", "one"), ("", "")):
        page._inputs["multipliers"].value = text
        assert page.chosen_sizes()["multipliers"] == wanted


OWN = {"batch": 256, "rate": 0.5, "deep": True, "mode": "train"}


def test_an_own_model_has_fields_for_the_parameters_of_its_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = LoadPage(Session(jobs=Registry()), offered="mine:make")
    model = dataclasses.replace(load("mlp"), source="mine:make", sizes=OWN)
    page.session.show(LoadedModel(model, analyse(model)))
    assert page.chosen_sizes() == OWN
    assert isinstance(page._inputs["deep"], pn.widgets.Checkbox)
    asked: list[object] = []
    monkeypatch.setattr(page.session, "load", lambda *given: asked.append(given))
    page._inputs["batch"].value = 512
    assert page._apply.visible
    page._apply.clicks += 1
    assert asked == [("mine:make", OWN | {"batch": 512})]
    page.session.show(LoadedModel(load("mlp"), analyse(load("mlp"))))
    assert not page._inputs, "no other code is run"


def test_the_parameters_of_make_are_known_after_it_was_called() -> None:
    sizes = loading._sizes_of("tests.app.test_load_page:make", {"batch": 3})
    assert sizes == OWN | {"batch": 3}


def make(batch: int = 256, rate: float = 0.5, deep: bool = True, mode: str = "train") -> None:
    """A user's function, of which only the parameters matter here."""


def test_the_advice_about_a_bad_mesh_can_be_typed_into_its_field() -> None:
    page = LoadPage(Session(jobs=Registry()))
    page.session.show(LoadedModel(load("mlp"), analyse(load("mlp"))))
    page.session.set_problem(mesh="data=0")
    advice = page.session.notices.messages[-1].text.partition("Give for instance ")[2]
    page.session.set_problem(mesh=advice.strip('".'))
    assert str(page.session.loaded.problem.mesh) == "data=4,model=2"


def test_a_model_chosen_again_keeps_its_fields() -> None:
    page = LoadPage(Session(jobs=Registry()))
    page._show_sizes("attention")
    key = page._inputs["key"]
    key.value = 6
    page._show_sizes("attention", {"sequence": 128})
    assert page._inputs["key"] is key, "what is being typed into a field would be lost"
    assert page.chosen_sizes() == registry.sizes("attention") | {"sequence": 128}
    page._show_sizes("unet")
    assert page.chosen_sizes() == registry.sizes("unet")


def test_a_model_that_cannot_be_loaded_is_not_loading_afterwards(jobs: Registry) -> None:
    session = Session(jobs)
    page = LoadPage(session)
    session.load("tests.no_such_module:make")
    assert "loading" in str(page._title.object)
    end_s = time.monotonic() + 60
    while session.loading and time.monotonic() < end_s:
        session.tick()
        time.sleep(0.02)
    assert "loading" not in str(page._title.object)


@pytest.mark.parametrize(("went_on_to", "ends_at"), [("load", "hand"), ("search", "search")])
def test_whoever_went_on_while_a_solved_case_was_loaded_is_not_called_back(
    jobs: Registry, monkeypatch: pytest.MonkeyPatch, went_on_to: str, ends_at: str
) -> None:
    page = LoadPage(Session(jobs=jobs))
    waiting: list[Callable[[Session], None]] = []
    monkeypatch.setattr(page.session, "load", lambda *_, then, **__: waiting.append(then))
    page._open(next(case for case in SOLVED if case.model == "mlp"))
    monkeypatch.undo()
    page.session.load("mlp")
    page.session.step = went_on_to
    waiting[0](page.session)
    assert page.session.step == ends_at
    assert page.session.hand.actions, "the case is there all the same"
