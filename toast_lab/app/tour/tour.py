"""The tour: its current step, the state that each step needs, and whether its task is done.

The session's parameter ``tour`` holds the key of the step, so that a reloaded page resumes there;
setting it from anywhere moves the tour. Nothing is locked: ``establish`` brings back a user who has
wandered off, and leaving the tour keeps everything as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import param

from toast_lab.app.model_loading import load_at_once
from toast_lab.app.session import Session
from toast_lab.app.tour.chapters import chapters, figures
from toast_lab.app.tour.step import Chapter, Step, TourScene

CHAPTERS: tuple[Chapter, ...] = chapters()
FIGURES = figures()
STEPS: tuple[Step, ...] = tuple(step for chapter in CHAPTERS for step in chapter.steps)
BY_KEY: dict[str, Step] = {step.key: step for step in STEPS}


class Tour(param.Parameterized):
    """Moves a session through the steps.

    ``changes`` increases with every change that a view has to show.
    """

    changes = param.Integer(default=0)
    _loader: threading.Thread | None = None  # one per process

    def __init__(self, session: Session, **params: object) -> None:
        super().__init__(**params)
        self.session = session
        self.answer = ""  #: the last option chosen for this step's question
        self._moving = False
        self.preparing = False  #: whether the step's program is about to be loaded
        #: digest of the program of each scene
        self._loaded: dict[tuple[str, tuple[object, ...]], str] = {}
        session.param.watch(lambda event: self._moved(), "tour")
        if self.step is not None:  # the page was reloaded
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
        """The current step; None while no tour is on."""
        return BY_KEY.get(self.session.tour)

    @property
    def chapter(self) -> Chapter:
        """The chapter of the step."""
        return next(chapter for chapter in CHAPTERS if self.step in chapter.steps)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """(chapter, number of chapters, step in the chapter, number of its steps), from one."""
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
        """Are the step's program and problem loaded?"""
        return self.step is not None and self._scene_is(self.step.scene)

    @property
    def away(self) -> str:
        """Why the session is not where the step needs it; empty if it is."""
        step, session = self.step, self.session
        if step is None:
            return ""
        if not self.is_ready:
            scene = step.scene
            return f"This step needs {scene.model} on the mesh {scene.mesh}, which is not loaded."
        return "" if session.step == step.page else "This step is on another page."

    @property
    def text(self) -> str:
        """The text of the step."""
        return self.step.text(self.session) if self.step is not None and self.is_ready else ""

    @property
    def done(self) -> bool:
        """Is the step's task done, or its question answered correctly?

        Steps with neither are done as soon as they are ready.
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
        """The comment on the task that was done, or on the answer that was given."""
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
        """Go to a step by its key, and set up the state that it needs.

        Stays at the current step if a running job forbids that.
        """
        step = BY_KEY[key]
        if self._may_load(step.scene):
            if self.session.tour == key:
                self.establish()
            else:
                self.session.tour = key

    def next(self) -> None:
        """Go to the next step; after the last one, end the tour."""
        self._move_by(1)

    def back(self) -> None:
        """Go to the previous step, in the state in which it began."""
        self._move_by(-1)

    def restart(self) -> None:
        """Go back to the first step of the chapter."""
        if self.step is not None:
            self.go(self.chapter.steps[0].key)

    def leave(self) -> None:
        """End the tour; everything stays as it is."""
        self.session.tour = ""

    def do(self) -> None:
        """Do the step's task or answer its question, after going to its page if needed."""
        step = self.step
        if step is None or self.done or not self._may_load(step.scene):
            return
        with self._muted():
            if self.away:
                self._establish(step)
            if step.task is not None:
                step.task.do(self.session)
            elif step.quiz is not None:
                self.answer = step.quiz.right(self.session)
        self._changed()

    def choose(self, option: str) -> None:
        """Answer the step's question with an option."""
        self.answer = option
        self._changed()

    def establish(self) -> None:
        """Set up the state that the step needs: program, mesh, page, plan by hand, selection."""
        step = self.step
        if step is not None and self._may_load(step.scene):
            self.answer = ""
            with self._muted():
                self._establish(step)
            self._changed()
            self._load_ahead()

    def _move_by(self, offset: int) -> None:
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
            self.preparing = True  # shown before the program is traced, which can take a second
            self._changed()
            self.preparing = False
        self.establish()
        self._changed()

    def _changed(self) -> None:
        self.changes += 1

    @contextlib.contextmanager
    def _muted(self) -> Iterator[None]:
        """Ignore the session's changes inside the block; the caller then counts one."""
        self._moving = True
        try:
            yield
        finally:
            self._moving = False

    def _load_ahead(self) -> None:
        """Trace the models of all steps in the background while the user reads the first one."""
        if Tour._loader is None:
            scenes = list(dict.fromkeys((step.scene.model, step.scene.sizes) for step in STEPS))
            Tour._loader = threading.Thread(
                target=lambda: [load_at_once(model, dict(sizes)) for model, sizes in scenes],
                daemon=True,
            )
            Tour._loader.start()

    # -- establishing ------------------------------------------------------------------------------
    def _may_load(self, scene: TourScene) -> bool:
        if self.session.work.busy and not self._scene_is(scene):
            title = self.session.work.job.title
            self.session.notices.say(
                f"{title} is still running; wait for it or cancel it, then continue.", "error"
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
            # Set before the model is loaded, since otherwise it would be priced twice
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
