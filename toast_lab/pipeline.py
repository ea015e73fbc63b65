"""The whole method on one page: from a JAX function to an executed sharding.

    model    = tl.load("transformer")             frontends, ir  StableHLO as flat arrays, with
                                                                 Shardy's rules
    analysis = tl.analyse(model)                  nda, conflicts names, M, colours, conflicts,
                                                                 compatibility sets
    problem  = tl.Problem(analysis, mesh="4x2")   sharding, cost actions on a mesh, priced on a
                                                                 machine
    result   = tl.search(problem)                 search         MCTS over colours, resolutions and
                                                                 axes
    text     = tl.listing(problem, result.plan)   lowering       the device-local program
    step     = result.plan.jit(train_step)        apply          the user's function, sharded
    run      = tl.run(model, result.plan)         runtime        compiled and run on real or virtual
                                                                 devices

Each result holds the one before: ``result.plan.analysis.model`` is the model. A stage gets
everything that it needs as arguments and knows nothing of the stages after it. The functions in
this file turn the stages' plans, which are plain data, into ``Plan``s, whose methods are everything
that users can do with a plan.

Reference: TOAST sections 3 and 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from toast_lab import checks
from toast_lab.confirm.confirmed_result import ConfirmedResult
from toast_lab.confirm.learning import learn
from toast_lab.confirm.loop import Deadline, Judging, Sources, confirmed_search
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.ir.model import Model
from toast_lab.isolate import Cancelled
from toast_lab.plan_verbs import Plan, Written, chosen
from toast_lab.search import contract
from toast_lab.search import race as racing
from toast_lab.search.action_path import ACTIONS_WITHIN
from toast_lab.search.contract import Budget, Progress, SearchResult
from toast_lab.search.race import Race
from toast_lab.search.saved_search import SavedSearch
from toast_lab.search.search_child import ImprovementPoint
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding.plan import ShardingPlan, unsharded_plan
from toast_lab.written.written_front import WITHIN, WrittenFront

if TYPE_CHECKING:
    from toast_lab.advice.advice_result import Advice
    from toast_lab.advice.padding_search import PaddedChoice
    from toast_lab.advice.recomputation import KeptChoice
    from toast_lab.conflicts.analysis import Analysis
    from toast_lab.machines.machine_model import Machine

#: Methods whose best plans are judged beside those of the chosen method. Together they take half
#: the time of one search.
ALSO_JUDGED_METHODS = ("alpa", "beam")


@overload
def search(
    problem: Problem,
    method: str | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    judge: str | Judging,
    **options: Any,
) -> ConfirmedResult[Plan]: ...
@overload
def search(
    problem: Problem,
    method: str | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    resume: SearchResult[Any] | SavedSearch | PathLike | None = None,
    **options: Any,
) -> Result: ...
def search(
    problem: Problem,
    method: str | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    resume: SearchResult[Any] | SavedSearch | PathLike | None = None,
    actions_within: float = ACTIONS_WITHIN,
    **options: Any,
) -> Result | ConfirmedResult[Plan]:
    """Search for the best plan of ``problem``.

    Args:
        problem: program, mesh and machine.
        method: a name in ``search.methods.METHODS``; "mcts" by default.
        seed: seeds the search's random numbers; 0 by default.
        budget: seconds and/or evaluations (30 s by default).
        on_progress: called a few times a second with the simulations since the last call.
        cancel: polled every few milliseconds; True ends the search, keeping what it found.
        resume: result of an earlier search of the same problem, or the file that
            ``SearchResult.save`` wrote, to continue. That search is replayed from its seed, at the
            same pace or faster, and goes on with the new budget; its simulations are reported
            again.
        actions_within: a plan of actions alone is preferred to one that was refined after them if
            its C(s) is at most this share higher; ``result.refined`` gives the best plan all the
            same. 0: the best plan is given, however it came about, and so it is with a judge.
        options: options of the method, see its class in ``search.methods``. Every method accepts
            ``size``, most rules and constraints that the plan may take to write, as a memory limit
            bounds its memory. The plan is then what the best written plan of so few makes of the
            program (``result.written()``); ``result.refined`` gives the best plan of any size.
            Every method also accepts ``judge``: a topology ("tpu:v5e:4x4", "gpu:h100:8", attached:
            "cpu:8") or a ``Judging``, which has more settings. The topology's compiler or devices
            then judge plans, and the search is repeated until a plan is confirmed; the result is a
            ``ConfirmedResult``.
            Every method also accepts ``recompute``: also choose what layers keep for the backward
            pass, the rest being computed again there. True tries what
            ``frontends.checkpoints.POLICIES`` names, each for all layers; the name of one
            ("inputs") or a mapping from layers to them (``{"layer": "inputs"}``) fixes it. The
            result's plan is then one of the program that the choice makes (``result.problem``),
            whose function is ``result.plan.analysis.model.function``; ``result.choices`` says what
            each came to.
            Every method also accepts ``padding``: also choose which sizes that the mesh does not
            divide are padded. True tries what the divisibility report names; a mapping fixes it
            (``{"heads": 32}``), see ``tl.padded``. As with ``recompute``, the plan may be one of
            another program, and ``result.choices`` says what each padding came to.

    Raises:
        InvalidProblem: unknown method, unknown or invalid options (all are listed), a search to
            resume that cannot be replayed here, a judge that is not available, or a size in which
            no plan can be written that fits; the smallest that does is said.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=200))
        >>> result.cost.relative_time < 1
        True
        >>> result.plan.argument_specs()["x"]
        (('data',), ())
    """
    judge, size = options.pop("judge", None), options.pop("size", None)
    recompute, padding = options.pop("recompute", False), options.pop("padding", False)
    size = None if size is None else checks.whole("size", size, 1)
    if judge is not None:
        if recompute is not False or padding is not False:
            raise InvalidProblem(
                "a judge cannot choose what to recompute or to pad: search with recompute= or "
                "padding= first, and then result.problem with judge="
            )
        if resume is not None:
            raise InvalidProblem(
                "resume= continues a search without a judge; to continue one with a judge, "
                "give judge=Judging(topology, resume=result)"
            )
        how = judge if isinstance(judge, Judging) else Judging(judge)
        # Of plans that cost about the same, the judge's clock tells the better one.
        arguments = {
            "method": method,
            "budget": budget,
            "on_progress": on_progress,
            "actions_within": 0.0,
            **options,
        }
        return judged_search(problem, how, arguments, seed=seed or 0, size=size, cancel=cancel)

    def search_once(
        own: Problem, part: Budget | None, earlier: Any = None
    ) -> SearchResult[ShardingPlan]:
        return contract.search(
            own,
            method,
            seed,
            part,
            on_progress=on_progress,
            cancel=cancel,
            resume=earlier,
            actions_within=actions_within,
            **options,
        )

    if padding is not False:
        from toast_lab.advice.padding_search import search_padding

        if recompute is not False or resume is not None:
            raise InvalidProblem(
                "a search that chooses what to pad neither resumes nor chooses what to recompute: "
                "give padding= first, and then recompute= for result.problem"
            )
        best, paddings = search_padding(problem, padding, Budget.checked(budget), search_once)
        users = dataclasses.replace(search_with_verbs(best), choices=paddings)
    elif recompute is False:
        users = search_with_verbs(search_once(problem, budget, resume))
    else:
        from toast_lab.advice.recomputation import search_choices

        if resume is not None:
            raise InvalidProblem("a search that chooses what to recompute cannot be resumed")
        best, choices = search_choices(problem, recompute, Budget.checked(budget), search_once)
        users = dataclasses.replace(search_with_verbs(best), choices=choices)
    return users if size is None else users.of_size(size)


def judged_search(
    problem: Problem,
    judging: Judging,
    arguments: Mapping[str, Any],
    *,
    seed: int,
    size: int | None = None,
    cancel: Callable[[], bool] | None,
    model: Model | None = None,
) -> ConfirmedResult[Plan]:
    """``search`` with a judge; each round has its own seed.

    Args:
        problem: as for ``search``.
        judging: how plans are judged.
        arguments: arguments of each search: method, budget, on_progress and the method's options.
        seed: seed of the first search.
        size: as for ``search``.
        cancel: as for ``search``.
        model: the model that the plans shard; needed if the problem came from another process and
            therefore has no source.

    Raises:
        InvalidProblem: as ``search``.
    """
    from toast_lab.confirm.judges import judge_named
    from toast_lab.written.written_front import FLOOR, floor

    stop = Deadline(judging.seconds, cancel)

    def search_once(priced: Problem, round_number: int) -> SearchResult[Plan]:
        result = contract.search(priced, seed=seed + round_number - 1, cancel=stop, **arguments)
        return search_with_verbs(result)

    def written_of(result: SearchResult[Plan]) -> Sequence[Written]:
        return write_down(result, model=model, size=size, cancel=stop).rows

    def plans_of_other_methods(priced: Problem) -> dict[str, Plan]:
        budget = Budget.checked(arguments.get("budget")).part(
            1.0 / (2.0 * len(ALSO_JUDGED_METHODS))
        )
        return {
            name: Plan.of(
                contract.search(priced, name, seed, budget, cancel=stop, actions_within=0.0).plan
            )
            for name in ALSO_JUDGED_METHODS
            if name != arguments.get("method")
        }

    judge = judge_named(
        problem,
        problem.analysis.model if model is None else model,
        judging.topology,
        time_limit_s=judging.time_limit_s,
        store=judging.store,
        cancel=stop,
    )
    usual = {
        name: Plan.from_actions(problem, actions) for name, actions in usual_plans(problem).items()
    }
    sources = Sources(search_once)
    with contextlib.suppress(Cancelled):
        known = {name: plan for name, plan in usual.items() if name in FLOOR}
        lowest = {
            name: Written.of(written)
            for name, written in floor(problem, known, model, cancel=stop).items()
        }
        sources = Sources(
            search_once,
            write=written_of,
            floor=lowest,
            usual=usual,
            others=plans_of_other_methods,
        )
    return confirmed_search(
        problem, judging, sources, judge=judge, learn=learn, size=size, cancel=stop
    )


def race(
    problem: Problem,
    methods: Sequence[str],
    budget: Budget | None = None,
    seed: int = 0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    on_progress: Callable[[str, ImprovementPoint], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    parallel: int = 1,
) -> Race[Plan]:
    """Run several methods on the same problem with the same budget.

    Args:
        problem: program, mesh and machine.
        methods: names in ``search.methods.METHODS``, each once.
        budget: budget of each method (30 s by default).
        seed: seed of each method.
        options: options by method, such as ``{"manual": {"plans": model.expert_plans}}``.
        on_progress: called with a method and each improvement of its best plan, from another
            thread.
        cancel: polled; True ends the race and keeps what was found. Ctrl-C does the same; a second
            Ctrl-C kills the race.
        parallel: number of methods that run at once. If it is more than one, they share the cores,
            and their timings mean nothing.

    Raises:
        InvalidProblem: unknown or repeated methods, or options of methods that do not take part;
            all are listed.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> race = tl.race(problem, ["mcts", "exhaustive"], budget=tl.Budget(None, 200))
        >>> race.best.method in ("mcts", "exhaustive")
        True
    """
    finished = racing.race(
        problem,
        methods,
        budget,
        seed,
        options=options,
        on_progress=on_progress,
        cancel=cancel,
        parallel=parallel,
    )
    return race_with_verbs(finished)


def advise(
    model: Model | Analysis,
    machine: str | Path | Machine = "tpu-v5e",
    devices: int | Sequence[int] | None = None,
    **options: Any,
) -> Advice:
    """Which slice, which mesh shape, which parts of the batch, and what to recompute.

    One analysis serves all rows. The plans that experts would try are priced on every mesh shape of
    1 to 3 axes, in every order of its axes on the links; then the most promising ones are searched
    (``advice.advisor``). The first row is never worse by price than any expert plan on any shape.

    Args:
        model: a model or its analysis.
        machine: name, machine file (ends in ``.toml``) or Machine.
        devices: the most devices, or a list of the numbers to look at; the machine's largest slice
            by default.
        options: keywords:

            * ``batch``: parts of the batch that run one after the other, with gradients added up,
              so that a step has the same examples. True: halves, quarters and eighths where memory
              binds; examples of a part, or several: these on every mesh; False: none.
            * ``recompute``: as for ``search``. True: tried where memory binds; False: as written;
              a policy or a mapping: in all rows.
            * ``seconds``: of all searches together (60). Loading, expert plans and the tracing of
              other programs come on top.
            * ``evaluations``: instead, plans that each short search prices, so that the same rows
              come out on every machine.
            * ``price_per_device_hour``: in any currency. Without it, *cheapest* counts seconds of a
              device.
            * ``memory_limit_bytes``: of a device; the machine's memory by default.
            * ``seed``: of the searches.
            * ``store``: folder of the rows, which are not computed again when the same advice is
              asked for another time.
            * ``workers``: processes on this machine (its cores); 0: all is done in this process,
              which is quicker for a small model. ``scheduler``: address of a
              ``dask.distributed`` scheduler, whose workers are taken instead.
            * ``on_row``: called with each row that is better than the last one of its set-up.
            * ``cancel``: polled; True ends the work and keeps the rows. Ctrl-C does the same.
            * ``wait``: False gives the advice at once, which fills up: see ``Advice.live``,
              ``Advice.wait`` and ``Advice.stop``.

    Raises:
        InvalidProblem: numbers of devices, prices or parts of a batch that are not possible, an
            unknown machine, or a model whose batch is not known and was asked for.
        StoreError: the folder cannot be written to, or another process writes to it.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("transformer", layers=2, batch=16)
        >>> advice = tl.advise(model, "tpu-v5e", 4, evaluations=100, workers=0)
        >>> advice.fastest.devices, advice.smallest.devices
        (4, 1)
        >>> advice.rows[0].plan.mesh.n_devices
        4
    """
    from toast_lab.advice.advisor import advise as fill

    return fill(model, machine, devices, finish=Plan.of, **options)


def replicated(problem: Problem) -> Plan:
    """The plan that shards nothing; pins are ignored.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> tl.price(problem, tl.replicated(problem)).collectives
        ()
    """
    return Plan.of(unsharded_plan(problem.analysis, problem.mesh))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Result(SearchResult[Plan]):
    """The result of a search as users get it: with the plan as people write it."""

    #: what layers may keep for the backward pass, or what may be padded, and what each came to, the
    #: best first; empty: the search did not choose that
    choices: tuple[KeptChoice | PaddedChoice, ...] = ()

    @property
    def written_front(self) -> WrittenFront[Written]:
        """Written plans near the plan, the smallest first; found on first access."""
        return write_down(self)

    def written(self, within: float = WITHIN, size: int | None = None, **options: Any) -> Written:
        """The smallest written plan whose C(s) is at most ``within`` above the plan's.

        If none is, the one with the lowest C(s); ``.loss`` tells. With ``size``, or where the
        search was given one: the one with the lowest C(s) among those of at most so many rules and
        constraints. ``options`` are those of ``Plan.written_front``, such as ``in_packages``.

        Raises:
            InvalidProblem: no plan of that size fits into memory; the smallest that does is said.
        """
        if size is None and self.size is not None:
            return self.written_front.of_size(self.size)
        return chosen(write_down(self, size=size, **options), within, size)

    def __str__(self) -> str:
        if self.problem is not None and self.plan.known_front(self.problem) is not None:
            return f"{self.in_brief()}\n{self.written()}"
        return f"{self.in_brief()}\n{self.plan.describe()}"

    def of_size(self, size: int) -> Result:
        """The result with the best plan that can be written in so many rules and constraints.

        Raises:
            InvalidProblem: there is none that fits; the smallest that does is said.
        """
        if self.problem is None:
            raise InvalidProblem("this result lacks the problem that was searched; search again")
        front = write_down(self, size=size)
        written, refined = front.of_size(size), self.refined
        plan = Plan.of(
            dataclasses.replace(
                written.plan, actions=self.plan.actions, refinements=(f"written in {written.size}",)
            )
        )
        message = f"{self.message} Of what takes at most {size} rules and constraints to write, "
        message += f"the plan is the best that was found: {written.size}, {written.loss:+.1%} C(s)."
        changed = {
            "plan": plan,
            "cost": written.cost,
            "unlimited": (refined.plan, refined.cost),
            "size": size,
            "message": message,
        }
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        limited = Result(**{**fields, **changed})
        plan.keep_front(self.problem, front)
        return limited


def write_down(result: SearchResult[Plan], **options: Any) -> WrittenFront[Written]:
    """Written plans near the plan of a search; ``options`` are those of ``Plan.written_front``."""
    if result.problem is None:
        raise InvalidProblem("this result lacks the problem that was searched; search again")
    return result.plan.written_front(result.problem, path=result.path, **options)


def search_with_verbs(result: SearchResult[Any]) -> Result:
    """Gives a search's result with its plan as a ``Plan``."""
    unlimited = result.unlimited
    if unlimited is not None:
        unlimited = (Plan.of(unlimited[0]), unlimited[1])
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return Result(**{**fields, "plan": Plan.of(result.plan), "unlimited": unlimited})


def race_with_verbs(finished: Race[Any]) -> Race[Plan]:
    """Gives a race's result with its plans as ``Plan``s."""
    outcomes = tuple(
        outcome
        if outcome.plan is None
        else dataclasses.replace(outcome, plan=Plan.of(outcome.plan))
        for outcome in finished.outcomes
    )
    return dataclasses.replace(finished, outcomes=outcomes)
