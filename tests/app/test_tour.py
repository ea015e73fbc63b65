"""The guided tour without a GUI.

Every step can be done, recognised and undone, and the numbers in its text are real.
"""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("panel")

from toast_lab.app.session import Session
from toast_lab.app.tour import chapters
from toast_lab.app.tour.step import Step, TourScene
from toast_lab.app.tour.tour import BY_KEY, CHAPTERS, FIGURES, STEPS, Tour
from toast_lab.app.tour.words import TourWords
from toast_lab.explain.plan_by_hand import replay
from toast_lab.jobs.job import Registry

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

LISTS = chapters.read("transformer")["names"]
RUNS = ("first.run", "transformer.end")
QUICK = [s for s in STEPS if s.page != "search" and s.key not in RUNS]
TASKS = [s for s in QUICK if s.task is not None and s.key != "transformer.beside"]


@pytest.fixture(scope="module")
def tour() -> Tour:
    return Tour(Session(jobs=Registry()))


def test_the_tour_can_be_followed_to_its_end_and_back(tour: Tour) -> None:
    session = tour.session
    tour.start()
    seen = []
    while tour.step is not None and len(seen) <= len(STEPS):
        step = tour.step
        seen.append(step.key)
        assert tour.is_ready, step.key
        assert not tour.away, step.key
        assert session.step == step.page
        assert 80 < len(tour.text) < 420, (step.key, len(tour.text))
        assert step.actions is None or session.hand.actions == step.actions
        if step in QUICK and step.key != "transformer.beside":
            assert tour.done == (step.task is None and step.quiz is None), step.key
            tour.do()
            assert tour.done, step.key
            assert bool(tour.remark) == (step.task is not None or step.quiz is not None), step.key
        tour.next()
    assert seen == [s.key for s in STEPS]
    assert not [m.text for m in session.notices.messages if m.level == "error"]
    kept = session.hand.actions
    assert tour.step is None
    assert session.hand.actions == kept
    for step in reversed([s for s in QUICK if s.actions is not None]):
        tour.go(step.key)
        assert (session.hand.actions, session.step, tour.away) == (step.actions, step.page, "")
    tour.back()
    assert tour.step is STEPS[0]
    tour.leave()


@pytest.mark.parametrize("step", TASKS, ids=lambda s: s.key)
def test_a_task_is_recognised_when_it_is_done_and_when_it_is_taken_back(
    tour: Tour, step: object
) -> None:
    tour.go(step.key)
    assert not tour.done
    tour.do()
    assert tour.done
    if step.key == "first.choice" or (step.page == "hand" and step.key != "attention.set"):
        tour.session.hand.undo()
    else:
        tour.session.selection.select(())
    assert not tour.done
    tour.leave()


def test_whoever_wandered_off_is_told_and_brought_back(tour: Tour) -> None:
    session = tour.session
    tour.go("mlp.megatron")
    session.step = "compare"
    assert "another page" in tour.away
    session.set_problem(mesh="d=8")
    assert "mlp on the mesh b=4,m=2" in tour.away
    session.load("attention")
    assert tour.text == ""
    tour.establish()
    assert (tour.away, session.loaded.model.name, session.step) == ("", "mlp", "hand")
    assert session.hand.actions == ("B->b",)
    session.selection.select(())
    session.plans.add_typed("B->b, U->m")  # any other plan does not count
    assert not tour.done
    session.hand.take(["U->m", "B->b"])
    assert tour.done
    tour.leave()
    assert session.hand.actions == ("U->m", "B->b")


def test_a_page_that_is_loaded_anew_goes_on_at_the_same_step(tour: Tour) -> None:
    tour.go("mlp.megatron")
    tour.do()
    reloaded = Tour(tour.session.fork())
    assert (reloaded.step, reloaded.away, reloaded.done) == (tour.step, "", True)
    reloaded.next()
    assert reloaded.step is BY_KEY["mlp.cost"]
    assert tour.step is BY_KEY["mlp.megatron"]
    tour.leave()


def test_a_running_job_holds_the_tour_where_it_is(tour: Tour) -> None:
    tour.go("mlp.batch")
    session = tour.session
    session._settled = False
    session.work.job = type("Job", (), {"running": True, "title": "mcts on x"})()
    tour.go("xxt.program")
    assert tour.step is BY_KEY["mlp.batch"]
    assert "mcts on x is still running" in session.notices.messages[-1].text
    tour.next()
    assert tour.step is BY_KEY["mlp.tiles"]
    session._settled, session.work.job = True, None
    tour.leave()


@pytest.mark.parametrize("step", [s for s in STEPS if s.quiz is not None], ids=lambda s: s.key)
def test_answers_come_from_the_program(tour: Tour, step: object) -> None:
    tour.go(step.key)
    quiz = step.quiz
    options, right = quiz.options(tour.session), quiz.right(tour.session)
    assert options.count(right) == 1
    wrong = next(o for o in options if o != right)
    tour.choose(wrong)
    assert not tour.done
    assert f"Not `{wrong}`" in tour.remark
    tour.choose(right)
    assert tour.done
    tour.leave()


def test_numbers_of_the_texts_are_those_of_the_problem(tour: Tour) -> None:
    session = tour.session
    tour.go("mlp.fresh")
    names = session.loaded.analysis.names
    assert f"M leads from definitions to uses, {_word(len(names.source))}" in tour.text
    tour.go("mlp.megatron")
    tour.do()
    (row,) = TourWords(session).cost(session.hand.actions).collectives
    assert f"`{row.kind} {{{','.join(row.axes)}}}` on `{row.value}`" in tour.remark
    assert TourWords(session).dims("w1", session.hand.actions) == "[512, 16384{m}]"
    assert f"`{TourWords(session).dims('w1', session.hand.actions)}`" in tour.remark
    tour.go("attention.graph")
    n = len(session.loaded.analysis.conflicts)
    assert f"the {_word(n)} conflicts" in tour.text
    assert f"{2**n} resolutions" in tour.text
    tour.go("attention.other")
    tour.do()
    assert set(TourWords(session).moved("all_gather", session.hand.actions)) == {"qt", "v"}
    assert "`qt` and `v`" in tour.remark
    tour.go("attention.one_path")
    assert len(session.loaded.analysis.compatibility_sets) == 2
    tour.go("attention.two_paths")
    assert len(session.loaded.analysis.compatibility_sets) == 1
    assert all(
        any(k == "all_to_all" for k, *_ in TourWords(session).taken((a,)).sent)
        for a in ("S@0->s", "S@1->s")
    )
    tour.go("transformer.data")
    tour.do()
    assert f"{TourWords(session).taken().sent.total()} all_reduces over data" in tour.remark
    tour.go("transformer.right")
    hidden = TourWords(session).value_with(LISTS["HIDDEN"])
    assert f"`{TourWords(session).dims(hidden, LISTS['MEGATRON'])}`" in tour.text
    assert "{data}" in tour.text
    assert "{model}" in tour.text
    tour.leave()


def test_the_first_conflict_comes_early_and_its_program_fits_only_when_it_is_cut(
    tour: Tour,
) -> None:
    session, steps = tour.session, CHAPTERS[0].steps
    assert [step.key for step in STEPS[:3]] == ["first.problem", "first.colours", "first.conflict"]
    words = re.compile(r"\b(M|I|box|fresh|identit\w+|figure \d+)\b")
    for step in steps:
        tour.go(step.key)
        if step in QUICK:
            tour.do()
        text = tour.text + tour.remark
        assert not words.search(text), text
    tour.go("first.choice")
    side_0, side_1 = (
        TourWords(session).taken((side,)).time_s
        for side in chapters.read("first")["names"]["SIDES"]
    )
    assert side_1 == pytest.approx(side_0, rel=0.03), "the text says that they are nearly equal"
    tour.do()
    assert session.loaded.problem.baseline[1] > session.loaded.problem.memory_limit_bytes
    row = TourWords(session).taken()
    assert row.fits
    assert row.time_s < session.loaded.problem.baseline[0]
    tour.leave()


@pytest.mark.parametrize(
    "term",
    [
        *("axis", "colour", "conflict", "compatibility set", "resolution", "action", "C(s)"),
        *("all_gather", "reduce_scatter", "all_reduce", "all_to_all"),
    ],
)
def test_a_term_is_explained_where_it_first_stands(tour: Tour, term: str) -> None:
    for step in STEPS:
        tour.go(step.key)
        ask = step.task.ask(tour.session) if step.task is not None else ""
        text = f"{step.title} {tour.text} {ask}"
        if re.search(rf"(?<!\w){re.escape(term)}", text):
            assert f"**{term}**" in text, step.key
            break
    else:
        pytest.fail(f"the tour never says {term}")
    tour.leave()


class Told(NamedTuple):
    """What a learner reads at a step."""

    step: Step
    task: str  #: title, text and task
    whole: str  #: the same, and the remark on what was done


@pytest.fixture(scope="module")
def told(tour: Tour) -> list[Told]:
    """All steps of the tour; jobs are not waited for."""
    steps = []
    for step in STEPS:
        tour.go(step.key)
        ask = step.task.ask(tour.session) if step.task is not None else ""
        task = f"{step.title}. {tour.text} {ask}"
        if step in TASKS:
            tour.do()
        steps.append(Told(step, task, f"{task} {tour.remark}"))
    tour.leave()
    return steps


NUMBER = r"[\d.]+"
#: what the tour answers: a pattern of its answer, and of the words with which the learner needs it
QUESTIONS = {
    "what is a colour": (
        r"Dims that have to be cut alike, or data would move between ops, share a \*\*colour\*\*",
        r"\bcolours?\b",
    ),
    "why is there a conflict here": (
        r"the text is on \*\*both\*\* dims, and one axis can cut only one of them; cut along both, "
        r"4 devices would hold 4 of 16 blocks\. .* a \*\*conflict\*\*",
        r"\bconflicts?\b",
    ),
    "what does each side cost": (
        rf"By estimate a step takes {NUMBER} ms and {NUMBER} GiB a device if unsharded, "
        rf"{NUMBER} ms and {NUMBER} GiB with side 0, and {NUMBER} ms and {NUMBER} GiB with side 1",
        r"Choose side",
    ),
    "what is a compatibility set": (
        r"All red lines follow, since another side for one of them would only move a tensor: such "
        r"conflicts are a \*\*compatibility set\*\*",
        r"\bcompatibility sets?\b|\bcompatible\b",
    ),
    "why does sharding pay here": (
        rf"It fits, and is {NUMBER} times as fast.* Each device computes its part only, and "
        rf"sending takes just {NUMBER} µs",
        r"Choose side",
    ),
    "what is C(s)": (
        r"\*\*C\(s\)\*\* is the time of a step over that of the unsharded one, and more if it does "
        r"not fit into memory",
        r"C\(s\)|Run the search",
    ),
    "what does a resolution do": (
        r"A \*\*resolution\*\* says for each of them which of the two dims an axis cuts",
        r"\bresolutions?\b",
    ),
    "what does the search try": (
        r"Monte Carlo tree search tries sequences of the same actions, each a colour, and a side "
        r"if it has conflicts, on an axis",
        r"Run the search",
    ),
    "what is an all_gather here": (
        r"An \*\*all_gather\*\* gives every device the whole of a tensor that was cut",
        r"all_gathers?|\bgathered\b",
    ),
    "how do I run the plan": (
        r"That plan is selected in the table\. The button compiles and executes it and the "
        r"unsharded program in turns.* Press \*\*Execute\*\*",
        r"\bRun (the|a) plan\b",
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_where_the_learner_needs_it(told: list[Told], question: str) -> None:
    answer, need = QUESTIONS[question]
    answered = [i for i, at in enumerate(told) if re.search(answer, at.whole)]
    needed = [i for i, at in enumerate(told) if re.search(need, at.task)]
    assert answered, "no step says it"
    assert answered[0] <= needed[0], (told[answered[0]].step.key, told[needed[0]].step.key)


def test_what_the_learner_presses_is_on_the_page(told: list[Told]) -> None:
    """Buttons are named in bold after "Press"; those of the strip are left out."""
    pressed = {name for at in told for name in re.findall(r"Press \*\*([^*]+)\*\*", at.whole)}
    app = Path(inspect.getfile(Session)).parent
    sources = "".join(path.read_text() for path in [*app.glob("*.py"), *app.glob("pages/*.py")])
    assert pressed == {"Execute", "Run the race", "Ask the search", "Take its next step"}
    assert not [name for name in pressed if f'"{name}"' not in sources]


def test_a_search_beside_the_plan_by_hand_tells_the_same_after_a_step_back(tour: Tour) -> None:
    tour.go("transformer.search")
    text = tour.text
    tour.next()
    assert tour.session.hand.actions == tuple(LISTS["DATA"])
    tour.back()
    assert tour.text == text
    assert "six actions and an expert" in text
    tour.leave()


@pytest.mark.parametrize("key", RUNS)
def test_the_learner_runs_the_plan_on_eight_virtual_devices(tour: Tour, key: str) -> None:
    session = tour.session
    tour.go(key)
    assert session.loaded.problem.mesh.n_devices == 8
    assert "**Execute**" in tour.step.task.ask(session)
    assert not tour.done, "neither plan has been run by the other step"
    tour.do()
    deadline = time.monotonic() + 240
    while session.work.busy and time.monotonic() < deadline:
        session.tick()
        time.sleep(0.1)
    assert tour.done
    assert "results agree with the unsharded" in tour.remark
    tour.leave()


def test_every_figure_has_a_step_that_names_it() -> None:
    def parts(text: str) -> set[str]:
        return set(re.findall(r"\d+(?:\.\d)?[a-d]?|left|middle|right", text))

    for entry in FIGURES:
        assert parts(entry.figure) <= parts(BY_KEY[entry.step].paper), entry
    numbers = {int(n) for f in FIGURES for n in re.findall(r"Figure (\d+)", f.figure)}
    assert numbers == set(range(1, 11)), "all figures of the paper"
    listed = {f.step for f in FIGURES}
    named = {s.key for s in STEPS if s.paper.startswith(("Figure", "listing"))}
    assert named <= listed | {"attention.gathered"}, "what names a figure is in the index"
    assert len(BY_KEY) == len(STEPS) == sum(len(c.steps) for c in CHAPTERS)
    assert all(isinstance(s.scene, TourScene) for s in STEPS)


def test_the_search_of_the_tour_finds_a_plan_of_actions_that_can_be_taken_over(tour: Tour) -> None:
    session = tour.session
    tour.go("transformer.search")
    tour.do()
    deadline = time.monotonic() + 120
    while session.work.busy and time.monotonic() < deadline:
        session.tick()
        time.sleep(0.05)
    assert tour.done
    advice = session.hand.adviser()
    assert advice is not None
    assert all("->" in a for a in advice.plan.actions)
    assert f"{advice.name}: " in tour.remark
    tour.next()
    assert not tour.done
    while (text := session.hand.next_of(advice)) is not None:
        session.hand.take_next(advice)
        assert session.hand.actions[-1] == text
        assert tour.done
    for action in set(advice.plan.actions) - set(session.hand.actions):
        # An action that the tour's first step rules out, since another dim has that axis.
        first_actions = list(LISTS["DATA"])
        _, replayed, _ = replay(session.loaded.problem, [*first_actions, action])
        assert len(replayed) == len(first_actions)
    session.hand.take_next(advice)
    assert "has no action left" in session.notices.messages[-1].text
    session.work.registry.cancel_all()


def _word(n: int) -> str:
    return (
        "no one two three four five six seven eight nine ten eleven twelve".split()[n]
        if n < 13
        else f"{n:,}"
    )
