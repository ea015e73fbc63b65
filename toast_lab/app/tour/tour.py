"""The tour: where it stands, what each step needs, and what was done.

The session's parameter ``tour`` holds the key of the step, so that a page that is loaded anew goes
on there; setting it from anywhere moves the tour.  Nothing is locked: whoever wanders off is
brought back by ``establish``, and leaving keeps everything as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import param

from toast_lab.app.model_loading import load_at_once
from toast_lab.app.session import Session
from toast_lab.app.tour import (
    attention_chapter,
    first_chapter,
    mlp_chapter,
    transformer_chapter,
    xxt_chapter,
)
from toast_lab.app.tour.step import Chapter, Step, TourScene

CHAPTERS: tuple[Chapter, ...] = (
    first_chapter.CHAPTER,
    mlp_chapter.CHAPTER,
    xxt_chapter.CHAPTER,
    attention_chapter.CHAPTER,
    transformer_chapter.CHAPTER,
)
STEPS: tuple[Step, ...] = tuple(step for chapter in CHAPTERS for step in chapter.steps)
BY_KEY: dict[str, Step] = {step.key: step for step in STEPS}


class Tour(param.Parameterized):
    """Moves a session through the steps.

    ``changes`` counts up with all that a view has to show anew.
    """

    changes = param.Integer(default=0)
    _ahead: threading.Thread | None = None  # of the process

    def __init__(self, session: Session, **params: object) -> None:
        super().__init__(**params)
        self.session = session
        self.answer = ""  #: option that was chosen last for this step's question
        self._moving = False
        self.preparing = False  #: the step's program is about to be loaded
        #: digest of the program of each scene
        self._loaded: dict[tuple[str, tuple[object, ...]], str] = {}
        session.param.watch(lambda event: self._moved(), "tour")
        if self.step is not None:  # a page that was loaded anew
            scene = self.step.scene
            self._loaded[scene.model, scene.sizes] = load_at_once(
                scene.model, dict(scene.sizes)
            ).analysis.program.digest()
        for source, names in (
            (session, ["step"]),
            (session.loaded, ["analysis", "problem"]),
            (session.plans, ["items"]),
            (session.selection, ["names", "conflicts"]),
            (session.work, ["changes"]),
        ):
            source.param.watch(lambda *_: None if self._moving else self._changed(), names)

    # -- reading -----------------------------------------------------------------------------------
    @property
    def step(self) -> Step | None:
        """The step that is shown; None off the tour."""
        return BY_KEY.get(self.session.tour)

    @property
    def chapter(self) -> Chapter:
        """The chapter of the step."""
        return next(chapter for chapter in CHAPTERS if self.step in chapter.steps)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """(chapter, of how many, step within it, of how many), counted from one."""
        chapter = self.chapter
        assert self.step is not None
        return (
            CHAPTERS.index(chapter) + 1,
            len(CHAPTERS),
            chapter.steps.index(self.step) + 1,
            len(chapter.steps),
        )

    @property
    def is_ready(self) -> bool:
        """Is what the step speaks of loaded?"""
        return self.step is not None and self._scene_is(self.step.scene)

    @property
    def away(self) -> str:
        """Why the page is not as the step left it; empty if it is."""
        step, session = self.step, self.session
        if step is None:
            return ""
        if not self.is_ready:
            scene = step.scene
            return (
                f"This step is about {scene.model} on the mesh {scene.mesh}; something else is "
                "loaded."
            )
        return "" if session.step == step.page else "This step is on another page."

    @property
    def text(self) -> str:
        """What the step teaches."""
        return self.step.text(self.session) if self.step is not None and self.is_ready else ""

    @property
    def done(self) -> bool:
        """Is the step's task done, its question answered?

        Steps that only show something are done when shown.
        """
        step = self.step
        if step is None or not self.is_ready:
            return False
        if step.task is not None:
            return bool(step.task.done(self.session))
        if step.quiz is not None:
            return self.answer == step.quiz.right(self.session)
        return True

    @property
    def remark(self) -> str:
        """What there is to say about what was done."""
        step = self.step
        if step is None or not self.is_ready:
            return ""
        if step.task is not None:
            return step.task.after(self.session) if self.done else ""
        if step.quiz is not None and self.answer:
            return (
                step.quiz.why(self.session)
                if self.done
                else f"Not `{self.answer}`. Look again where the outline is."
            )
        return ""

    # -- moving ------------------------------------------------------------------------------------
    def start(self, key: str = "") -> None:
        """Go to a step, or to the first one."""
        self.go(key or STEPS[0].key)

    def go(self, key: str) -> None:
        """Go to a step by its key, and bring about what it needs.

        Stays where a running job forbids that.
        """
        step = BY_KEY[key]
        if self._may(step.scene):
            if self.session.tour == key:
                self.establish()
            else:
                self.session.tour = key

    def next(self) -> None:
        """The next step; after the last one, the tour is over."""
        self._by(1)

    def back(self) -> None:
        """The step before, as it was when it began."""
        self._by(-1)

    def restart(self) -> None:
        """The first step of the chapter again."""
        if self.step is not None:
            self.go(self.chapter.steps[0].key)

    def leave(self) -> None:
        """End the tour; everything stays as it is."""
        self.session.tour = ""

    def do(self) -> None:
        """Do the step's task, or answer its question; first go where it is to be done."""
        step = self.step
        if step is None or self.done or not self._may(step.scene):
            return
        with self._still():
            if self.away:
                self._establish(step)
            if step.task is not None:
                step.task.do(self.session)
            elif step.quiz is not None:
                self.answer = step.quiz.right(self.session)
        self._changed()

    def choose(self, option: str) -> None:
        """Answer the step's question."""
        self.answer = option
        self._changed()

    def establish(self) -> None:
        """Bring about what the step needs: program, mesh, page, plan by hand, selection."""
        step = self.step
        if step is not None and self._may(step.scene):
            self.answer = ""
            with self._still():
                self._establish(step)
            self._changed()
            self._load_ahead()

    def _by(self, offset: int) -> None:
        if self.step is None:
            return
        target = STEPS.index(self.step) + offset
        if target >= len(STEPS):
            self.leave()
        elif target >= 0:
            self.go(STEPS[target].key)

    def _moved(self) -> None:
        if self.session.tour and self.session.tour not in BY_KEY:
            self.session.tour = ""
            return
        step = self.step
        if step is not None and not self._scene_is(step.scene):
            self.preparing = True  # said before the program is traced, which can take a second
            self._changed()
            self.preparing = False
        self.establish()
        self._changed()

    def _changed(self) -> None:
        self.changes += 1

    @contextlib.contextmanager
    def _still(self) -> Iterator[None]:
        """One change for whatever happens inside."""
        self._moving = True
        try:
            yield
        finally:
            self._moving = False

    def _load_ahead(self) -> None:
        """Trace the models of the steps to come while the first one is read."""
        if Tour._ahead is None:
            scenes = list(dict.fromkeys((step.scene.model, step.scene.sizes) for step in STEPS))
            Tour._ahead = threading.Thread(
                target=lambda: [load_at_once(model, dict(sizes)) for model, sizes in scenes],
                daemon=True,
            )
            Tour._ahead.start()

    # -- bringing about ----------------------------------------------------------------------------
    def _may(self, scene: TourScene) -> bool:
        if self.session.work.busy and not self._scene_is(scene):
            title = self.session.work.job.title
            self.session.notices.say(
                f"{title} is still running; wait for it or cancel it, then go on.", "error"
            )
            return False
        return True

    def _scene_is(self, scene: TourScene) -> bool:
        session = self.session
        if session.loaded.analysis is None or session.loaded.problem is None:
            return False
        digest = self._loaded.get((scene.model, scene.sizes))
        return (
            digest is not None
            and session.loaded.digest == digest
            and str(session.loaded.problem.mesh).replace(" ", "") == scene.mesh
            and session.loaded.problem.machine.name == scene.machine
        )

    def _establish(self, step: Step) -> None:
        session, scene = self.session, step.scene
        program_key = (scene.model, scene.sizes)
        if (
            session.loaded.analysis is None
            or self._loaded.get(program_key) != session.loaded.digest
        ):
            # Set before the model is loaded, or it is priced twice
            session.loaded.param.update(mesh=scene.mesh, machine=scene.machine, memory_gib=None)
            session.load(scene.model, dict(scene.sizes))
            self._loaded[program_key] = session.loaded.digest
        if not self._scene_is(scene):
            session.set_problem(mesh=scene.mesh, machine=scene.machine, memory_gib=None)
        if step.actions is not None and session.hand.actions != step.actions:
            with session.notices.guarded():
                session.hand.take(list(step.actions))
        if step.select is not None:
            session.selection.select(*step.select(session))
        session.step = step.page
