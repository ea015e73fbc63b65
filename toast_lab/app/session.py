"""The explorer's state, free of any GUI: what is loaded, selected, planned and running.

Each part is a class of its own and knows only the parts that it needs; a page takes the parts that
it shows, and nothing here knows of pages. No method that a page calls raises a ``ToastError``: the
error becomes a message, and everything done before is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

import param

from toast_lab.app.audits import Audits
from toast_lab.app.confirmations import Confirmations
from toast_lab.app.hand_plan import HandPlan
from toast_lab.app.items import MANUAL
from toast_lab.app.loaded import LoadedState, Selection
from toast_lab.app.mesh_advice import MeshAdvice
from toast_lab.app.model_loading import READ_LIMIT_S, load_at_once, loads_at_once, refuse_file
from toast_lab.app.notices import Notices
from toast_lab.app.page_choices import PageChoices
from toast_lab.app.plan_questions import PlanQuestions
from toast_lab.app.plan_store import PlanStore
from toast_lab.app.searches import Searches
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.jobs.confirm_job import ConfirmState
from toast_lab.jobs.job import Job, Registry
from toast_lab.jobs.load_job import LoadedModel, load_own, read_file
from toast_lab.jobs.race_job import RaceState
from toast_lab.models import registry
from toast_lab.sharding.space import renaming
from toast_lab.views.search_curves import CurvePoint

MAX_COLOUR_NAME = 40  #: characters
Then = Callable[["Session"], None]


class LoadingContext(NamedTuple):
    """Arguments of ``Session.load`` that are needed when the load ends."""

    which: str = ""
    sizes: Any = MappingProxyType({})
    then: Then | None = None
    leads_to: str = ""
    settings: Any = MappingProxyType({})


class Session(StatePart):
    """State of one page.

    Attributes:
        loaded: the model and the problem.
        selection: the selected names and conflicts of the model.
        plans: the plans so far.
        hand: the plan made by hand.
        searches: settings and state of searches and races.
        confirmations: settings and state of searches that a judge confirms.
        questions: what was asked about plans.
        mesh_advice: which slice and mesh to take.
        audits: settings and outcome of the audit of the model as it is sharded.
        work: the job that runs.
        exports: the export that runs beside that job.
        notices: messages to the user.
        choices: what is chosen on the pages and nowhere else in the session.
        next_turn: calls a function once the browser has been told of all changes so far; at once
            if there is no page.
    """

    step: Any = param.String(default="load", doc="one of ``page_stack.steps()``")
    tour: Any = param.String(
        default="", doc="key of the step of the guided tour; empty off the tour"
    )

    is_begun: Any = param.Boolean(
        default=False, doc="whether a model has been chosen, after which nothing welcomes anybody"
    )
    solved: Any = param.Parameter(default=None, doc="the SolvedCase that is looked at, if any")
    shelf: Any = param.Dict(default={}, doc="PlanItems of other programs, by digest")

    def __init__(self, jobs: Registry | None = None) -> None:
        super().__init__()
        self.notices = Notices()
        self.choices = PageChoices()
        self.work = Work(self.notices, jobs)
        self.loaded = LoadedState()
        self.selection = Selection(self.loaded)
        # Beside the other work: an export takes minutes, and nothing waits for it
        self.exports = Work(self.notices, jobs)
        self.plans = PlanStore(self.loaded, self.notices, self.work, self.exports)
        self.searches = Searches(self.loaded, self.plans, self.work, self.notices)
        self.confirmations = Confirmations(
            self.loaded, self.plans, self.work, notices=self.notices, searches=self.searches
        )
        self.audits = Audits(self.loaded, self.work, self.notices)
        self.questions = PlanQuestions(self.loaded, self.work, self.notices)
        self.mesh_advice = MeshAdvice(self.loaded, self.work, self.notices)
        self.hand = HandPlan(
            loaded=self.loaded,
            selection=self.selection,
            plans=self.plans,
            searches=self.searches,
            notices=self.notices,
        )
        self.next_turn: Callable[[Callable[[], None]], None] = lambda act: act()
        self.work.handle("load", Handler(self._loaded))

    # -- loading -----------------------------------------------------------------------------------
    def load(
        self,
        which: str,
        sizes: dict[str, Any] | None = None,
        then: Then | None = None,
        *,
        leads_to: str = "",
        mesh: str = "",
    ) -> None:
        """Load a built-in model, or ``module:make`` (the caller has checked that this is allowed).

        It takes the place of a model that is still being loaded.

        Args:
            which: the model.
            sizes: those that differ from its defaults.
            then: called with the session once the model is loaded, which for a large one is later.
            leads_to: the step to which ``then`` leads, so that no step before draws a large model.
            mesh: the mesh that it is loaded for, so that nothing is priced on the one before.
        """
        sizes, settings = dict(sizes or {}), {"mesh": mesh} if mesh else {}
        self.work.drop("load")
        with self.notices.guarded():
            target: Any = load_own
            if ":" not in which:
                registry.built_in(which)
                if loads_at_once(which, sizes):
                    self.show(load_at_once(which, sizes), which, sizes, then, settings=settings)
                    return
                target = "toast_lab.jobs.load_job:load_model"
            built_in = "" if target is load_own else which
            context = LoadingContext(built_in, sizes, then, leads_to, settings=settings)
            arguments = which, sizes, self.loaded.platform
            self._start_loading(f"loading {which}", context, target, *arguments)

    def load_file(self, name: str, content: bytes) -> None:
        """Read a file that was dropped on the page.

        It is StableHLO or a jax.export artefact, read in a child and never run as Python.
        """
        with self.notices.guarded():
            refuse_file(name, len(content))
            self.work.drop("load")
            title = f"reading {name}"
            arguments = name, bytes(content), READ_LIMIT_S
            self._start_loading(title, LoadingContext(), read_file, *arguments)

    @property
    def loading(self) -> str:
        """What is being loaded, as in "loading t2b"; empty if nothing is.

        Until it is loaded, everything else in the session belongs to the previous model.
        """
        return str(self.work.job.title) if self.work.awaits("load") else ""

    @property
    def loading_built_in(self) -> tuple[str, dict[str, Any]]:
        """Name and sizes of the built-in model that is being loaded; ("", {}) if none is."""
        return self.work.context[:2] if self.loading else ("", {})

    @property
    def leads_to(self) -> str:
        """The step to open once the load has ended; empty if it is not known."""
        return str(self.work.context.leads_to) if self.loading else ""

    def _start_loading(
        self, title: str, context: LoadingContext, target: Any, *arguments: Any
    ) -> None:
        self.work.start("load", title, target, *arguments, context=context)
        shown_model = self.loaded.model
        message = f"{title[:1].upper()}{title[1:]}."
        if shown_model is not None:
            message += f" Until it is loaded, pages 2 to 4 show {shown_model.name}."
        self.notices.say(message)

    def _loaded(self, job: Job) -> None:
        """Take in a model that a child has loaded; it is priced, for half a second, once shown."""
        which, sizes, then, leads_to, settings = self.work.context
        self._take_in(job.result, which, sizes, leads_to if self.step == "load" else "")
        self._set_problem(settings)
        analysis = self.loaded.analysis

        def price_it() -> None:
            with self.notices.guarded():
                if self.loaded.analysis is analysis:
                    self._price()
                    if then is not None:
                        then(self)

        self.next_turn(price_it)

    def show(
        self,
        loaded: LoadedModel,
        which: str = "",
        sizes: dict[str, Any] | None = None,
        then: Then | None = None,
        settings: Any = MappingProxyType({}),
    ) -> None:
        """Take in a loaded model, with ``which`` and ``sizes`` if it is a built-in one.

        ``settings`` are those of ``set_problem``; ``then`` is called with the session afterwards.
        """
        self._take_in(loaded, which, sizes or {})
        self.set_problem(**settings)
        if then is not None:
            then(self)

    def _take_in(
        self, loaded: LoadedModel, which: str, sizes: dict[str, Any], step: str = ""
    ) -> None:
        if self.loaded.analysis is not None:
            self.shelf[self.loaded.digest] = self.plans.items
        plans = self.shelf.get(loaded.analysis.program.digest(), [])
        analysis = self.loaded.named(loaded.analysis)
        with ExitStack() as stack:
            # Whoever watches one of these sees all of them changed
            for part in (self.selection, self.plans, self.loaded):
                stack.enter_context(param.parameterized.batch_call_watchers(part))
            self.selection.param.update(names=(), conflicts=(), level="")
            self.loaded.param.update(
                which=which, sizes=dict(sizes), model=loaded.model, analysis=analysis
            )
            self.plans.items = plans
            self.step = step or self.step
        self.solved = None
        self.searches.forget()
        if not self.work.runs("race"):
            self.searches.race = RaceState()
        self.confirmations.state = ConfirmState()
        self.audits.outcome = None
        self.notices.say(f"Loaded {loaded.model}.", "good")

    def take(self, analysis: Analysis, problem: Problem | None = None) -> None:
        """Take in an analysis from a notebook, and its problem with pins and machine, unchanged."""
        self.loaded.analysis = analysis
        if problem is not None:
            self.loaded.param.update(
                mesh=str(problem.mesh), machine=problem.machine.name, problem=problem
            )
            self.plans.add_unsharded()

    def set_problem(self, **settings: Any) -> None:
        """Apply mesh, machine and memory limit; if one is invalid, the old ones stay in force."""
        loaded = self.loaded
        if loaded.analysis is None:
            loaded.param.update(**settings)
            return
        with self.notices.guarded():
            self._set_problem(settings)
            self._price()

    def _set_problem(self, settings: dict[str, Any]) -> None:
        loaded = self.loaded
        names = ("mesh", "machine", "memory_gib")
        combined = {**{name: getattr(loaded, name) for name in names}, **settings}
        problem = loaded.problem_with(combined)
        if problem.analysis is not loaded.analysis:  # the function's program on another platform
            lowered = LoadedModel(problem.analysis.model, problem.analysis)
            self._take_in(lowered, loaded.which, loaded.sizes)
        loaded.param.update(**combined, problem=problem)

    def _price(self) -> None:
        """Price the plans that every problem starts with."""
        self.plans.add_unsharded()
        self.hand.renew()

    def rename_colour(self, old: str, new: str) -> None:
        """Give a colour another name, everywhere on the page.

        Raises:
            ToastError: there is no such colour, or it cannot have this name; nothing changes then.
        """
        if len(new) > MAX_COLOUR_NAME:
            raise ToastError(f"a name of a colour has at most {MAX_COLOUR_NAME} characters here")
        self.rename_colours({old: new})
        self.notices.say(f"Colour {old} is called {new} now, in links and files, too.", "good")

    def rename_colours(self, names: Mapping[str, str]) -> None:
        """Give colours other names; everything else in the session stays as it is.

        Raises:
            ToastError: see ``Analysis.renamed``.
        """
        loaded, before = self.loaded, self.loaded.analysis
        analysis = before.renamed(names)

        @functools.cache  # plans of one problem stay plans of one problem
        def named(problem: Problem) -> Problem:
            return problem.named_as_in(analysis)

        with ExitStack() as stack:
            # Whoever watches one of these sees all of them changed
            for part in (self.searches, self.plans, loaded):
                stack.enter_context(param.parameterized.batch_call_watchers(part))
            self.hand.change_names(renaming(before, analysis))
            is_priced = self.plans.is_priced
            self.plans.change_names(named)
            self.searches.change_names(named)
            loaded.rename(analysis, loaded.problem and named(loaded.problem))
            if is_priced:
                self.plans.priced = loaded.problem

    def remove_plan(self, name: str) -> None:
        """Forget a plan."""
        if name == MANUAL and self.loaded.problem is not None:
            self.hand.forget()
        else:
            self.plans.remove(name)

    # -- jobs --------------------------------------------------------------------------------------
    @property
    def job(self) -> Job | None:
        """The running job, an export only if no other job runs; None if nothing runs."""
        runs = (work.job for work in (self.work, self.exports) if work.runs())
        return next(runs, None)

    def cancel(self) -> None:
        """End the running job, an export only if no other job runs."""
        if self.work.runs():
            self.searches.cancel()
        else:
            self.exports.cancel()

    def tick(self) -> list[CurvePoint]:
        """Take in the reports of jobs since the last call.

        Gives the new points of the search curves.
        """
        self.work.tick()
        self.exports.tick()
        return self.searches.new_points()

    # -- reloading a page --------------------------------------------------------------------------
    def adopt(self, job: Job) -> bool:
        """Watch a search, race or confirmed search of another page, from its beginning.

        False if the job is none of these.
        """
        about = job.about
        if job.kind not in ("search", "race", "confirm") or about is None:
            return False
        self.show(LoadedModel(about["model"], about["analysis"]), about["which"], about["sizes"])
        names = ("mesh", "machine", "own_machines", "memory_gib")
        self.loaded.param.update(**{name: about[name] for name in names})
        self.set_problem()
        self.searches.adopt(job)
        if job.kind == "confirm":
            self.confirmations.adopt(job)
        return True

    def fork(self) -> Session:
        """A new session that starts from this one's state and watches the same job."""
        forked = Session(self.work.registry)
        for name, part in self.parts().items():
            forked.parts()[name].follow(part)
        return forked

    def parts(self) -> dict[str, StatePart]:
        """The session and its parts by attribute; the session itself is ""."""
        return {
            "": self,
            **{name: value for name, value in vars(self).items() if isinstance(value, StatePart)},
        }
