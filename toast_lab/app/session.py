"""The explorer's state, free of any GUI: what is loaded, selected, planned and running.

Each part is a class of its own that knows those it needs; a page takes the parts that it shows, and
nothing here knows that there are pages.  No method that a page calls raises a ``ToastError``: it
becomes a message, and everything done before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

import param

from toast_lab.app.confirmations import Confirmations
from toast_lab.app.hand_plan import HandPlan
from toast_lab.app.items import MANUAL, PlanItem
from toast_lab.app.loaded import LoadedState, Selection
from toast_lab.app.model_loading import READ_LIMIT_S, load_at_once, loads_at_once, refuse_file
from toast_lab.app.notices import Notices
from toast_lab.app.plan_store import PlanStore
from toast_lab.app.searches import Searches
from toast_lab.app.work import Handler, Work
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.jobs.confirm_job import ConfirmState
from toast_lab.jobs.job import Job, Registry
from toast_lab.jobs.load_job import LoadedModel, load_own, read_file
from toast_lab.models import registry
from toast_lab.views.search_curves import CurvePoint

STEPS = ("load", "graph", "hand", "search", "compare")
Then = Callable[["Session"], None]


class LoadingContext(NamedTuple):
    """What is to be known at the end of a load; see ``Session.load``."""

    which: str = ""
    sizes: Any = MappingProxyType({})
    then: Then | None = None
    leads_to: str = ""


class Session(param.Parameterized):
    """State of one page.

    Attributes:
        loaded: the model and the problem.
        selection: what is selected of it.
        plans: the plans so far.
        hand: the plan made by hand.
        searches: settings and state of searches and races.
        confirmations: the same of searches that a judge confirms.
        work: the job that runs.
        exports: the export that runs beside it.
        notices: messages to the user.
        next_turn: calls a function once the browser knows what has changed so far; at once where
            there is no page.
    """

    step: Any = param.Selector(default="load", objects=list(STEPS))
    tour: Any = param.String(
        default="", doc="key of the step of the guided tour; empty off the tour"
    )

    solved: Any = param.Parameter(default=None, doc="the SolvedCase that is looked at, if any")

    def __init__(self, jobs: Registry | None = None) -> None:
        super().__init__()
        self.notices = Notices()
        self.work = Work(self.notices, jobs)
        self.loaded = LoadedState()
        self.selection = Selection(self.loaded)
        # Beside the other one: it takes minutes, and nothing waits for it
        self.exports = Work(self.notices, jobs)
        self.plans = PlanStore(self.loaded, self.notices, self.work, self.exports)
        self.searches = Searches(self.loaded, self.plans, self.work, self.notices)
        self.confirmations = Confirmations(
            self.loaded, self.plans, self.work, notices=self.notices, searches=self.searches
        )
        self.hand = HandPlan(
            loaded=self.loaded,
            selection=self.selection,
            plans=self.plans,
            searches=self.searches,
            notices=self.notices,
        )
        self.next_turn: Callable[[Callable[[], None]], None] = lambda act: act()
        self._shelf: dict[str, list[PlanItem]] = {}  #: plans of other programs, by digest
        self.work.handle("load", Handler(self._loaded))

    # -- loading -----------------------------------------------------------------------------------
    def load(
        self,
        which: str,
        sizes: dict[str, Any] | None = None,
        then: Then | None = None,
        *,
        leads_to: str = "",
    ) -> None:
        """Load a built-in model, or ``module:make`` (the caller has checked that this is allowed).

        Args:
            which: the model.
            sizes: those that differ from its defaults.
            then: called with the session once the model is loaded; for a large one that is later.
            leads_to: the step where ``then`` ends, so that a large model is not drawn on the way.
        """
        sizes = dict(sizes or {})
        with self.notices.guarded():
            if ":" in which:
                context = LoadingContext("", sizes, then, leads_to)
                self._start_loading(f"loading {which}", context, load_own, which, sizes)
                return
            registry.built_in(which)
            if loads_at_once(which, sizes):
                self.show(load_at_once(which, sizes), which, sizes, then)
                return
            context = LoadingContext(which, sizes, then, leads_to)
            target = "toast_lab.jobs.load_job:load_model"
            self._start_loading(f"loading {which}", context, target, which, sizes)

    def load_file(self, name: str, content: bytes) -> None:
        """Read a file that was dropped on the page.

        StableHLO or a jax.export artefact, in a child, never as Python.
        """
        with self.notices.guarded():
            refuse_file(name, len(content))
            title = f"reading {name}"
            arguments = name, bytes(content), READ_LIMIT_S
            self._start_loading(title, LoadingContext(), read_file, *arguments)

    @property
    def loading(self) -> str:
        """What is being loaded, as in "loading t2b"; empty: nothing is.

        Until it is there, all else that the session has is of the model before.
        """
        return str(self.work.job.title) if self.work.awaits("load") else ""

    @property
    def loading_built_in(self) -> tuple[str, dict[str, Any]]:
        """Name and sizes of the built-in model that is being loaded; ("", {}): none is."""
        return self.work.context[:2] if self.loading else ("", {})

    @property
    def leads_to(self) -> str:
        """The step that what is being loaded leads to; empty: that is not known."""
        return str(self.work.context.leads_to) if self.loading else ""

    def _start_loading(
        self, title: str, context: LoadingContext, target: Any, *arguments: Any
    ) -> None:
        self.work.start("load", title, target, *arguments, context=context)
        shown = self.loaded.model
        words = f"{title[:1].upper()}{title[1:]}."
        if shown is not None:
            words += f" Until it is there, pages 2 to 5 show {shown.name}."
        self.notices.say(words)

    def _loaded(self, job: Job) -> None:
        """Take in what a child has loaded, and price it once the page shows it.

        The first price of a large program takes half a second.
        """
        which, sizes, then, leads_to = self.work.context
        self._take_in(job.result, which, sizes, leads_to if self.step == "load" else "")
        self._set_problem({})
        analysis = job.result.analysis

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
    ) -> None:
        """Take a loaded model in; ``which`` and ``sizes`` if it is a built-in one.

        ``then`` is called with the session afterwards.
        """
        self._take_in(loaded, which, sizes or {})
        self.set_problem()
        if then is not None:
            then(self)

    def _take_in(
        self, loaded: LoadedModel, which: str, sizes: dict[str, Any], step: str = ""
    ) -> None:
        if self.loaded.analysis is not None:
            self._shelf[self.loaded.digest] = self.plans.items
        plans = self._shelf.get(loaded.analysis.program.digest(), [])
        with ExitStack() as stack:
            # Whoever watches one of these finds all of them changed
            for part in (self.selection, self.plans, self.loaded):
                stack.enter_context(param.parameterized.batch_call_watchers(part))
            self.selection.param.update(names=(), conflicts=(), level="")
            self.loaded.param.update(
                which=which, sizes=dict(sizes), model=loaded.model, analysis=loaded.analysis
            )
            self.plans.items = plans
            self.step = step or self.step
        self.solved = None
        self.searches.forget()
        self.confirmations.state = ConfirmState()
        self.notices.say(f"Loaded {loaded.model}.", "good")

    def take(self, analysis: Analysis, problem: Problem | None = None) -> None:
        """Take in an analysis of a notebook, and its problem with pins and machine, as it is."""
        self.loaded.analysis = analysis
        if problem is not None:
            self.loaded.param.update(
                mesh=str(problem.mesh), machine=problem.machine.name, problem=problem
            )
            self.plans.add_unsharded()

    def set_problem(self, **settings: Any) -> None:
        """Apply mesh, machine and memory limit; a wrong one is refused and the old ones stay."""
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
        loaded.param.update(**combined, problem=loaded.problem_with(combined))

    def _price(self) -> None:
        """Price the plans that a problem begins with."""
        self.plans.add_unsharded()
        self.hand.renew()

    def remove_plan(self, name: str) -> None:
        """Forget a plan."""
        if name == MANUAL and self.loaded.problem is not None:
            self.hand.forget()
        else:
            self.plans.remove(name)

    # -- jobs --------------------------------------------------------------------------------------
    @property
    def job(self) -> Job | None:
        """The job that runs; an export only if nothing else does; None: nothing runs."""
        runs = (work.job for work in (self.work, self.exports) if work.runs())
        return next(runs, None)

    def cancel(self) -> None:
        """End what runs; an export only if nothing else does."""
        if self.work.runs():
            self.searches.cancel()
        else:
            self.exports.cancel()

    def tick(self) -> list[CurvePoint]:
        """Bring in what the job reported since the last call.

        Gives the new points of the search curves.
        """
        self.work.tick()
        self.exports.tick()
        return self.searches.new_points()

    # -- reloading a page --------------------------------------------------------------------------
    def adopt(self, job: Job) -> bool:
        """Watch a search or a race that another page started, from its beginning.

        So with a confirmed search.  False: the job is none of these.
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
        """A session of its own that starts from this one's state and watches the same job."""
        forked = Session(self.work.registry)
        for source, target in zip(self._parts(), forked._parts(), strict=True):
            values = source.param.values()
            del values["name"]
            target.param.update(**values)
        forked._shelf = dict(self._shelf)
        forked.hand.follow(self.hand)
        forked.searches.follow(self.searches)
        forked.confirmations.follow(self.confirmations)
        forked.work.follow(self.work)
        forked.exports.follow(self.exports)
        return forked

    def _parts(self) -> tuple[param.Parameterized, ...]:
        return (
            self,
            self.notices,
            self.loaded,
            self.selection,
            self.plans,
            self.searches,
            self.confirmations,
            self.work,
            self.exports,
        )
