"""A search method is one dataclass in one file; registering it makes it usable everywhere."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import analysed
from toast_lab import cli
from toast_lab.errors import InvalidProblem
from toast_lab.search.limits import Status
from toast_lab.search.methods import METHODS, Method, register
from toast_lab.search.options import option
from toast_lab.search.recorder import Recorder
from toast_lab.search.saved_search import SavedSearch
from toast_lab.sharding.state import State, legal_actions

FEW = tl.Budget(seconds=None, evaluations=100)


@dataclasses.dataclass(frozen=True)
class Toy(Method):
    """One action after the other, each from the unsharded program."""

    name = "toy"
    steps: int = option(3, "actions that are tried", at_least=1, at_most=50)
    share: float = option(1.0, "share of the actions that are candidates", at_least=0, at_most=1)
    order: str = option("given", "order of the actions, given or random")
    loud: bool = option(False, "count the actions aloud")

    def run(self, recorder: Recorder, seed: int) -> Status:
        start = State(recorder.problem.space)
        actions = list(legal_actions(start))
        actions = actions[: max(1, round(self.share * len(actions)))]
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(actions)) if self.order == "random" else range(len(actions))
        for i in list(order)[: self.steps]:
            recorder.check()
            state = start.copy()
            state.apply(actions[i])
            recorder.record(state, [actions[i]])
        return Status.DONE


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy for the duration of a test."""
    monkeypatch.setitem(METHODS, "toy", Toy)
    register(Toy)


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(analysed("mlp"), {"data": 2, "model": 2})


def test_it_searches_with_its_options(problem: tl.Problem) -> None:
    result = tl.search(problem, "toy", budget=FEW, steps=2)
    assert (result.method, result.status, result.evaluations) == ("toy", Status.DONE, 3)
    assert result.trace.about["options"] == {"steps": 2}
    assert tl.search(problem, "toy", budget=FEW).evaluations == 4


def test_all_that_is_wrong_with_its_options_is_one_message(problem: tl.Problem) -> None:
    given: dict[str, Any] = {"stesp": 1, "steps": 0, "share": float("nan"), "order": 3, "loud": 1}
    with pytest.raises(InvalidProblem) as caught:
        tl.search(problem, "toy", budget=FEW, **given)
    text = str(caught.value)
    assert text.startswith('toy has no option stesp (did you mean "steps"?)')
    for part in (
        "it has steps, share, order, loud",
        "steps=0 must be at least 1",
        "option share must be a finite number, got nan",
        "option order must be a text, got 3",
        "option loud must be true or false, got 1",
    ):
        assert part in text
    with pytest.raises(InvalidProblem, match="toy: steps=51 must be at most 50; share=-1 must be"):
        Toy(steps=51, share=-1)


def test_a_saved_search_of_it_is_resumed_with_its_options(
    problem: tl.Problem, tmp_path: Any
) -> None:
    first = tl.search(problem, "toy", 7, FEW, order="random", steps=1)
    first.save(tmp_path / "toy.json")
    assert SavedSearch.load(tmp_path / "toy.json").facts["options"] == first.trace.about["options"]
    resumed = tl.search(problem, resume=tmp_path / "toy.json", budget=FEW)
    assert (resumed.method, resumed.seed) == ("toy", 7)
    assert resumed.trace.about["options"] == {"order": "random", "steps": 1}
    assert len(resumed.trace.simulations) == len(first.trace.simulations)
    with pytest.raises(InvalidProblem, match="option steps=1, not 2"):
        tl.search(problem, resume=first, budget=FEW, steps=2)


def test_the_command_line_lists_and_checks_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["search", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "toy: One action after the other, each from the unsharded program." in words
    assert "share=1.0: share of the actions that are candidates (0 to 1)" in words
    bad = ["search", "mlp", "--mesh", "2", "--method", "toy", "--option", "steps=0", "share=2"]
    assert cli.main(bad) != 0
    assert "toy: steps=0 must be at least 1; share=2.0 must be from 0 to 1" in (
        capsys.readouterr().err
    )


# Panel 2 will name buttons otherwise.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_the_explorers_form_offers_and_checks_it() -> None:
    pytest.importorskip("panel")
    from toast_lab.app.pages.search_race import racing_methods
    from toast_lab.app.pages.search_settings import SearchSettings
    from toast_lab.app.session import Session
    from toast_lab.jobs.job import Registry

    form = SearchSettings(Session(jobs=Registry()), lambda: None)
    assert "toy" in form.method.options
    assert "toy" in racing_methods()
    form.method.value = "toy"
    shown = form._sentence.object
    assert Toy.sentence() in shown
    assert "steps=3: actions that are tried (1 to 50)" in form._options_help.object
    form.options.put("steps=4, loud=True")
    assert form.options.value == {"steps": 4, "loud": True}
    form.options.put("steps=0")
    assert "steps=0 must be at least 1" in form.options.error


def test_a_race_takes_it_into_a_process_of_its_own(problem: tl.Problem) -> None:
    finished = tl.race(problem, ["toy"], FEW, options={"toy": {"steps": 2}})
    assert [(row.status, row.evaluations) for row in finished.rows] == [("DONE", 3)]


def test_a_search_in_the_background_knows_it(problem: tl.Problem) -> None:
    running = tl.start_search(problem, "toy", budget=FEW, steps=2)
    assert running.result(timeout_s=300).status is Status.DONE


def test_a_name_belongs_to_one_class_and_every_field_is_described() -> None:
    @dataclasses.dataclass(frozen=True)
    class Other(Toy):
        """Another one."""

    with pytest.raises(
        ValueError, match=r"Other: tests.search.test_methods:Toy is already called 'toy'"
    ):
        register(Other)

    @dataclasses.dataclass(frozen=True)
    class Silent(Toy):
        """Does not describe its field."""

        name = "silent"
        steps: int = 3

    with pytest.raises(TypeError, match=r"Silent.steps: make this field with"):
        register(Silent)
    assert "silent" not in METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_ours_has_a_good_default_and_a_description(name: str) -> None:
    cls = METHODS[name]
    assert cls.sentence().endswith(".")
    for key, each in cls.options().items():
        assert each.offence(each.default) == ""
        assert each.description
        assert each.description in str(each)
        assert cls.offenders({key: each.default}) == []


def loaded_by(code: str, *modules: str) -> tuple[str, str]:
    """Run the code in a process; return which of the modules it loaded, printed, and its stderr."""
    code += f"; import sys; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr


def test_the_registry_loads_no_method_and_nothing_heavy() -> None:
    heavy = ("numpy", "numba", "scipy", "jax")
    methods = ("toast_lab.search.beam", "toast_lab.search.mcts.mcts")
    code = "import toast_lab.search.methods as m; m.options_text()"
    assert loaded_by(code, *heavy, *methods) == ("[]", "")


def test_searching_loads_no_library_that_only_some_searches_need() -> None:
    """Loading them would take every command and child process longer than an analysis."""
    code = "import toast_lab.search.contract, toast_lab.search.mcts.mcts"
    rare = ("scipy.sparse", "scipy.optimize", "networkx", "jax")
    assert loaded_by(code, *rare) == ("[]", "")
