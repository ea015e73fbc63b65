"""``advise``: which slice, which mesh shape, which parts of a batch, and what to recompute.

The work goes up a ladder. On every mesh shape the plans that experts would try are priced, which
takes a fraction of a second each and needs no search. Then comes a short search on one of the
shapes of each group that are alike, the most promising ones first, and a long search on the few
that may still answer one of the three questions: what is fastest, what is cheapest an example, and
what is the smallest slice that fits. What cannot win is left out: where the weights alone do not
fit, or where all products at the peak rate take longer than a plan that is known.

Programs that recompute, or that run a batch in parts, are looked at only on meshes where memory
binds: where no plan that is known fits, or a quicker one is known that does not fit.

The pieces are tasks of a sweep (``sweep.run_sweep``): on processes of this machine or on the
workers of a scheduler, with rows on disk that are not computed again.

Reference: TOAST section 5 compares searches on given meshes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toast_lab import checks
from toast_lab.advice import program_choices as programs
from toast_lab.advice.advice_result import Advice, AdviceRow, Terms
from toast_lab.advice.advice_task import (
    EXPERTS,
    SEARCHES,
    AdviceTask,
    advice_row_offence,
    plans_of,
)
from toast_lab.advice.program_choices import ProgramChoice
from toast_lab.advice.recomputation import AS_WRITTEN
from toast_lab.advice.set_ups import alike, device_counts, mesh_shapes
from toast_lab.advice.why_not import why_not
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem, ToastError, did_you_mean
from toast_lab.files import PathLike
from toast_lab.ir.model import Model
from toast_lab.isolate import Cancelled, n_cores
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.machines.machine_model import Machine
from toast_lab.search.limits import Budget
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.sweep.run_sweep import Pool, SweepProgress, Workers, pool_of, run_sweep
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.text import counted

SECONDS = 60.0  #: of all searches together
MOST_PROCESSES = 1000
MOST_WORKERS = 8  #: processes, unless the caller says how many; each holds the program
STAGES = ("expert plans", "short search", "long search")
#: Shares of the seconds: short searches; the same where other programs are searched too, and those
#: of the other programs. The rest is for long searches.
ALONE_SHARE, FIRST_SHARE, OTHERS_SHARE = 0.6, 0.4, 0.25
LEAST_S, MOST_SHORT_S, MOST_LONG_S = 1.0, 5.0, 30.0  #: of one search
AROUND_S = 1.0  #: that a worker spends on a search besides searching
LONG_SEARCHES = 2  #: for each question
LONGER = 4  #: times the evaluations of a short search

Group = tuple[Mesh, ...]
#: A program and a group of alike meshes.
Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class AdviceOptions:
    """The options of ``pipeline.advise``, which describes them, checked.

    Raises:
        InvalidProblem: a value is not possible; all are listed.
    """

    batch: bool | int | Sequence[int] = True
    recompute: bool | str | Mapping[str, str] = True
    seconds: float = SECONDS
    evaluations: int | None = None
    price_per_device_hour: float | None = None
    memory_limit_bytes: float | None = None
    seed: int = 0
    store: PathLike | None = None
    workers: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        numbers = ("seconds", "price_per_device_hour", "memory_limit_bytes")
        offences = {name: checks.number_offence(getattr(self, name), above=0.0) for name in numbers}
        offences |= {
            "evaluations": checks.whole_offence(self.evaluations, 1, checks.MOST_COUNT),
            "workers": checks.whole_offence(self.workers, 0, MOST_PROCESSES),
            "seed": checks.whole_offence(self.seed, 0, checks.MOST_SEED),
        }
        offenders = [
            f"{name} {offence}"
            for name, offence in offences.items()
            if offence and getattr(self, name) is not None
        ]
        if offenders:
            raise InvalidProblem("; ".join(offenders))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> AdviceOptions:
        """The options with these values. Raises InvalidProblem for unknown ones too."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [f"{name}{did_you_mean(name, known)}" for name in given if name not in known]
        if unknown:
            raise InvalidProblem(
                f"advise has no option {', '.join(unknown)}; options: {', '.join(known)}"
            )
        return cls(**given)

    @property
    def is_batch_listed(self) -> bool:
        """Did the caller say how many examples a part has?"""
        return self.batch is not True and self.batch is not False

    @property
    def pool(self) -> Workers:
        """The workers of the tasks."""
        own = min(n_cores(), MOST_WORKERS) if self.workers is None else self.workers
        return Workers(self.scheduler, own)


def advise(
    model: Model | Analysis,
    machine: str | Path | Machine = "tpu-v5e",
    devices: int | Sequence[int] | None = None,
    *,
    on_row: Callable[[AdviceRow], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    wait: bool = True,
    finish: Callable[[Any], Any] = lambda plan: plan,
    **options: Any,
) -> Advice:
    """Fill an advice; ``pipeline.advise`` describes the arguments.

    ``finish`` gives users a plan with methods.
    """
    asked = AdviceOptions.of(options)
    analysis = model if isinstance(model, Analysis) else analyse(_model(model))
    machine = find_machine(machine)
    counts = device_counts(machine, devices)
    analysis = analysis.lowered_for(machine.compiler)
    limit_bytes = asked.memory_limit_bytes
    terms = Terms(
        machine=machine,
        memory_limit_bytes=float(machine.memory_bytes if limit_bytes is None else limit_bytes),
        examples=programs.examples_of(analysis),
        price_per_device_hour=asked.price_per_device_hour,
        finish=finish,
    )
    advice = Advice(analysis.model.name, terms)
    ladder = _Ladder(analysis, advice, asked, counts=counts, cancel=cancel)
    ladder.check()
    threading.Thread(target=ladder.climb, name="advice", daemon=True).start()
    if not wait:
        if on_row is not None:
            threading.Thread(target=_tell, args=(advice, on_row), daemon=True).start()
        return advice
    try:
        _tell(advice, on_row or (lambda row: None))
    except KeyboardInterrupt:
        advice.stop()
    return advice.wait()


def _tell(advice: Advice, on_row: Callable[[AdviceRow], None]) -> None:
    for row in advice.live():
        on_row(row)


def _model(model: Any) -> Model:
    if isinstance(model, Model):
        return model
    raise InvalidProblem(
        f"advise takes a model or its analysis, not {type(model).__name__}; for instance "
        'tl.advise(tl.load("transformer"), "tpu-v5e", 64)'
    )


class _Ladder:
    """One run of an advice: it decides what is worth pricing, and fills the rows."""

    def __init__(
        self,
        analysis: Analysis,
        advice: Advice,
        asked: AdviceOptions,
        counts: Sequence[int],
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.analysis, self.advice, self.asked, self.cancel = analysis, advice, asked, cancel
        self.counts = counts
        self.machine = advice.terms.machine
        self.groups: dict[str, Group] = {
            str(group[0]): group
            for count in counts
            for group in alike(self.machine, mesh_shapes(count))
        }
        self.choices: dict[str, ProgramChoice] = {}
        self.rows: dict[Key, AdviceRow] = {}
        self.quickest_s: dict[Key, float] = {}  #: of any plan that is known, whether it fits or not
        self.searched: dict[Key, int] = {}
        advice.n_shapes = sum(len(group) for group in self.groups.values())

    def check(self) -> None:
        """Raise what a choice that the caller asked for has against it."""
        if self.asked.is_batch_listed:
            programs.parts_wanted(self.analysis.model, self.asked.batch)

    # -- the ladder -------------------------------------------------------------------------------
    def climb(self) -> None:
        """All of it; how it ended is in the advice."""
        advice, message = self.advice, "Stopped: the rows are those known by then."
        try:
            with contextlib.ExitStack() as stack:
                self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="toast-lab-"))
                rows_path = Path(self.asked.store or self.folder) / "rows.jsonl"
                self.store = SweepStore(rows_path, advice_row_offence)
                stack.enter_context(self.store.claimed())
                self.tracer = stack.enter_context(_background())
                self.pool: Pool = stack.enter_context(pool_of(self.asked.pool))
                self._stages()
            if not self.is_stopped():
                message = "Done."
        except Cancelled:
            pass
        except BaseException as error:
            advice.error = error
            message = f"Failed: {error}"
        finally:
            advice.stage = "done"
            advice.end(message)

    def _stages(self) -> None:
        whole = self._whole()
        self._experts(whole)
        if not self.rows:
            raise InvalidProblem("no mesh shape could be priced: " + " ".join(self.advice.dropped))
        others = self._traced(whole)
        share = ALONE_SHARE if others is None else FIRST_SHARE
        self._search(self._candidates([whole]), share, stage=1)
        if others is not None:
            choices = self._waited(others)
            binding = [name for name in self.groups if self._binds(name)]
            if len(binding) < len(self.groups):
                self.advice.left_out.append(
                    f"On {len(self.groups) - len(binding)} of {len(self.groups)} meshes that "
                    "differ, recomputation and parts of the batch were not tried: the quickest "
                    "plan known without them fits."
                )
            self._others(whole, choices, binding)
            full = [name for name in binding if self._fitting_s(name) == math.inf]
            both = self._both(choices) if full else []
            self._others(whole, both, full)
            choices = [*choices, *both]
            self._search(self._candidates(choices), OTHERS_SHARE, stage=1)
        self._search(self._finalists(), 1.0 - share - OTHERS_SHARE * (others is not None), stage=2)
        if self.advice.fastest is None:
            self._explain()

    def is_stopped(self) -> bool:
        """Was the work asked to end?"""
        if self.cancel is not None and self.cancel():
            self.advice.stop()
        return self.advice.stopped

    def _whole(self) -> ProgramChoice:
        """The program of the whole batch, as written or as the caller fixed it."""
        mesh = next(iter(self.groups.values()))[0]
        limit_bytes = self.advice.terms.memory_limit_bytes
        base = Problem(self.analysis, mesh, self.machine, memory_limit_bytes=limit_bytes)
        examples = self.advice.terms.examples
        whole = programs.program_choice(
            base, keeps=AS_WRITTEN, policies={}, parts=1, batch=examples
        )
        if not isinstance(self.asked.recompute, bool):
            whole = next(programs.kept_choices(whole, self.asked.recompute))
        self._keep(whole)
        return whole

    def _keep(self, choice: ProgramChoice) -> None:
        self.choices[choice.digest] = choice
        (Path(self.folder) / f"{choice.digest}.pickle").write_bytes(choice.data)

    def _experts(self, whole: ProgramChoice) -> None:
        """Price the usual plans on all mesh shapes on which the weights fit."""
        limit = self.advice.terms.memory_limit_bytes
        small: list[str] = []
        large: list[str] = []
        for name, group in self.groups.items():
            is_small = whole.resident_bytes / group[0].n_devices > limit
            (small if is_small else large).append(name)
        self._price(whole, large, "pricing expert plans")
        if not any(row.fits for row in self.rows.values()):
            self._price(whole, small, "pricing expert plans")  # the nearest is asked for
        elif small:
            self._drop_small(whole, small)

    def _drop_small(self, choice: ProgramChoice, names: Sequence[str]) -> None:
        most = max(self.groups[name][0].n_devices for name in names)
        self.advice.drop(
            f"{{set_ups}} of up to {counted(most, 'device')} left out: what a step begins with "
            "alone does not fit.",
            len(names),
        )

    def _price(self, choice: ProgramChoice, names: Iterable[str], stage: str) -> None:
        tasks = {
            self._task(choice, self.groups[name][0], self.groups[name]): (choice.digest, name)
            for name in names
        }
        self._run(tasks, 0, stage)

    def _traced(self, whole: ProgramChoice) -> Future[list[ProgramChoice]] | None:
        """Other programs, which are traced while the first is searched; None: none are needed."""
        asked = self.asked
        wants_policies = asked.recompute is True
        if not asked.is_batch_listed and not (
            (wants_policies or asked.batch) and any(self._binds(name) for name in self.groups)
        ):
            if wants_policies or asked.batch:
                self.advice.left_out.append(
                    "Recomputation and parts of the batch were not tried: memory binds nowhere."
                )
            return None
        return self.tracer.submit(lambda: list(self._trace(whole)))

    def _trace(self, whole: ProgramChoice) -> Iterator[ProgramChoice]:
        """Programs that need less memory, as far as the function can be traced."""
        asked = self.asked
        if asked.recompute is True and not self.is_stopped():
            try:
                yield from programs.kept_choices(whole, True)
            except ToastError as error:
                self._leave_out("recomputation", error)
        try:
            wanted = programs.parts_wanted(self.analysis.model, asked.batch)
        except ToastError as error:
            self._leave_out("the batch", error)
            return
        for parts in wanted:
            if self.is_stopped():
                return
            try:
                yield programs.part_choice(whole.base, parts, asked.recompute)
            except ToastError as error:
                self._leave_out(f"{parts} parts of the batch", error)

    def _both(self, choices: Sequence[ProgramChoice]) -> list[ProgramChoice]:
        """The smallest parts with recomputation, for meshes on which neither alone makes room."""
        smallest = max(choices, key=lambda choice: choice.parts, default=None)
        if smallest is None or smallest.parts == 1 or self.asked.recompute is not True:
            return []
        self.advice.stage = "tracing other programs"
        try:
            both = list(programs.kept_choices(smallest, True))
        except ToastError as error:
            self._leave_out("recomputation in parts of the batch", error)
            return []
        for choice in both:
            self._keep(choice)
        return both

    def _leave_out(self, choice: str, error: ToastError) -> None:
        self.advice.left_out.append(f"No choice of {choice}: {programs.reason(error)}.")

    def _waited(self, others: Future[list[ProgramChoice]]) -> list[ProgramChoice]:
        self.advice.stage = "tracing other programs"
        while not self.is_stopped():
            with contextlib.suppress(TimeoutError):
                choices = others.result(timeout=0.2)
                for choice in choices:
                    self._keep(choice)
                return choices
        raise Cancelled("stopped")

    def _others(
        self, whole: ProgramChoice, choices: Sequence[ProgramChoice], names: Sequence[str]
    ) -> None:
        """Price the usual plans of other programs on these meshes, where they may help."""
        asked, limit = self.asked, self.advice.terms.memory_limit_bytes
        for choice in choices:
            tried = list(self.groups) if asked.is_batch_listed and choice.parts > 1 else names
            n_devices = {name: self.groups[name][0].n_devices for name in tried}
            small = [name for name in tried if choice.resident_bytes / n_devices[name] > limit]
            if small:
                self._drop_small(choice, small)
            # Alike meshes have plans of the same price: that of the best expert plan will do.
            tasks = {}
            for name in tried:
                if name not in small and self._is_worth((choice.digest, name), choice):
                    mesh = self._row_mesh(whole, name)
                    tasks[self._task(choice, mesh, (mesh,))] = choice.digest, name
            self._run(tasks, 0, "pricing other programs")

    def _row_mesh(self, whole: ProgramChoice, name: str) -> Mesh:
        row = self.rows.get((whole.digest, name))
        return self.groups[name][0] if row is None else row.mesh

    def _explain(self) -> None:
        """Say what fills memory in the row that is nearest to fitting, and what would make room."""
        nearest = self.advice.nearest
        if nearest is None or self.is_stopped():
            return
        self.advice.stage = "asking what would fit"
        with contextlib.suppress(ToastError):
            recompute = self.asked.recompute is not False
            self.advice.reasons = why_not(
                nearest.problem, nearest.plan, recompute=recompute, cancel=self.is_stopped
            )

    # -- what is worth a search -------------------------------------------------------------------
    def _fitting_s(self, name: str) -> float:
        """Time of the quickest plan that is known to fit on these meshes."""
        rows = (row for key, row in self.rows.items() if key[1] == name and row.fits)
        return min((row.time_s for row in rows), default=math.inf)

    def _binds(self, name: str) -> bool:
        """Does the memory limit stand in the way of the quickest plan known on these meshes?"""
        quickest_s = (time_s for key, time_s in self.quickest_s.items() if key[1] == name)
        fitting_s = self._fitting_s(name)
        return fitting_s == math.inf or min(quickest_s) < fitting_s

    def _is_worth(self, key: Key, choice: ProgramChoice) -> bool:
        """May any plan of the set-up be faster, cheaper or on fewer devices than those known?"""
        advice, count = self.advice, self.groups[key[1]][0].n_devices
        fastest, cheapest, smallest = advice.fastest, advice.cheapest, advice.smallest
        if fastest is None or cheapest is None or smallest is None:
            return True
        bound_s = choice.compute_s / count
        examples = advice.terms.examples or 1
        is_worth = (
            bound_s < fastest.time_s
            or bound_s * count / examples < cheapest.device_s
            or count <= smallest.devices
        )
        if not is_worth:
            advice.drop(
                "{set_ups} left out: even at the peak rate their products take longer than the "
                "fastest and cost more than the cheapest plan known."
            )
        return is_worth

    def _candidates(self, choices: Sequence[ProgramChoice]) -> list[Key]:
        """Set-ups to search, the most promising for any of the questions first."""
        digests = {choice.digest for choice in choices}
        keys = [
            key
            for key, row in self.rows.items()
            if key[0] in digests and row.devices > 1 and self._is_worth(key, self.choices[key[0]])
        ]
        smallest = self.advice.smallest
        few = smallest.devices if smallest is not None else 0
        below = [key for key in keys if smallest is None or self.rows[key].devices <= few]

        def ranked(keys: Iterable[Key], value: Callable[[AdviceRow], Any]) -> list[Key]:
            return sorted(keys, key=lambda key: (*value(self.rows[key]), key[1], key[0]))

        by_slice: dict[int, Key] = {}
        for key in ranked(keys, lambda row: row.rank):
            by_slice.setdefault(self.rows[key].devices, key)
        lists = (
            ranked(keys, lambda row: row.rank),
            ranked(keys, lambda row: (not row.fits, row.device_s)),
            ranked(below, lambda row: (row.devices, *row.rank)),
        )
        return list(dict.fromkeys([*by_slice.values(), *_interleaved(lists)]))

    def _finalists(self) -> list[Key]:
        """The set-ups that may answer a question, for long searches."""
        keys = [key for key, row in self.rows.items() if row.devices > 1]
        smallest = self.advice.smallest
        few = max(self.counts) if smallest is None else smallest.devices

        def first(value: Callable[[AdviceRow], Any], least: int = 0) -> list[Key]:
            ordered = sorted(
                (key for key in keys if self.rows[key].devices <= (least or 2**31)),
                key=lambda key: (*value(self.rows[key]), key),
            )
            return ordered[:LONG_SEARCHES]

        lists = (
            first(lambda row: row.rank),
            first(lambda row: (not row.fits, row.device_s)),
            # One that does not fit yet, on fewer devices, is worth as much as the smallest itself
            [
                *first(lambda row: (-row.devices, row.peak_bytes), few - 1)[:1],
                *first(lambda row: (-row.devices, *row.rank), few)[:1],
            ],
        )
        return list(dict.fromkeys(_interleaved(lists)))

    # -- work -------------------------------------------------------------------------------------
    def _search(self, keys: Sequence[Key], share: float, stage: int) -> None:
        """Search set-ups for a share of the seconds; the first ones if time is short."""
        if not keys:
            return
        budget, count = self._budget(len(keys), share, stage)
        if count < len(keys):
            self.advice.drop(
                "{set_ups} not searched for lack of time: only expert plans were priced; more "
                "seconds would change that.",
                len(keys) - count,
            )
        tasks = {}
        for key in keys[:count]:
            row = self.rows[key]
            tasks[self._task(row.choice, row.mesh, budget=budget, stage=stage)] = key
        self._run(tasks, stage, STAGES[stage] + "es")

    def _budget(self, count: int, share: float, stage: int) -> tuple[Budget, int]:
        """The budget of each of ``count`` searches, and how many of them there is time for."""
        asked = self.asked
        if asked.evaluations is not None:
            return Budget(None, asked.evaluations * (LONGER if stage == 2 else 1)), count
        total_s = share * asked.seconds * max(asked.pool.processes, 1)
        most_s = MOST_LONG_S if stage == 2 else MOST_SHORT_S
        each_s = round(min(max(total_s / count - AROUND_S, LEAST_S), most_s), 1)
        return Budget(each_s), min(count, max(1, int(total_s / (each_s + AROUND_S))))

    def _task(
        self,
        choice: ProgramChoice,
        mesh: Mesh,
        meshes: Sequence[Mesh] = (),
        budget: Budget | None = None,
        stage: int = 0,
    ) -> AdviceTask:
        seconds, evaluations = (
            (None, None) if budget is None else (budget.seconds, budget.evaluations)
        )
        workers = self.asked.pool
        threads = 1 if workers.scheduler else max(1, n_cores() // max(workers.processes, 1))
        return AdviceTask(
            model=self.advice.name,
            sizes=(),
            mesh=str(mesh),
            machine=self.machine.name,
            method=EXPERTS if budget is None else SEARCHES,
            seed=0 if budget is None else self.asked.seed + stage - 1,
            seconds=seconds,
            evaluations=evaluations,
            options=() if budget is None else (("threads", threads),),
            program=choice.digest,
            meshes=tuple(map(str, meshes)),
            folder=self.folder,
        )

    def _run(self, tasks: Mapping[AdviceTask, Key], stage: int, activity: str) -> None:
        """Do the tasks, and keep the best plan of each set-up as rows come."""
        self.advice.stage = activity
        self.advice.n_set_ups += len(tasks) if stage == 0 else 0
        keys = {task.digest: key for task, key in tasks.items()}
        taken: set[str] = set()

        def take(row: Mapping[str, Any]) -> None:
            if row["digest"] not in taken:
                taken.add(row["digest"])
                self._take(keys[row["digest"]], row, stage)

        def on_progress(event: SweepProgress) -> None:
            if event.row is not None:
                take(event.row)

        for digest in keys:
            if digest in self.store:
                take(self.store.rows[digest])
        sweep = run_sweep(
            list(tasks), self.store, self.pool, on_progress=on_progress, cancel=self.is_stopped
        )
        if sweep.failure:
            raise InvalidProblem(f"rows could not be kept: {sweep.failure}")
        if self.is_stopped():
            raise Cancelled("stopped")

    def _take(self, key: Key, row: Mapping[str, Any], stage: int) -> None:
        choice, plans = self.choices[key[0]], plans_of(row)
        if not plans:
            self.advice.drop(f"{{set_ups}} could not be priced: {row['message']}.")
        if stage == 0:
            self.advice.experts += [(choice, plan) for plan in plans]
        else:
            self.advice.n_searched += 1
        priced_rows = [
            AdviceRow(choice, make_mesh(plan.mesh), plan, STAGES[stage], terms=self.advice.terms)
            for plan in plans
        ]
        if not priced_rows:
            return
        best = min(priced_rows, key=lambda row: row.rank)
        self.quickest_s[key] = min(
            *(row.time_s for row in priced_rows), self.quickest_s.get(key, best.time_s)
        )
        known = self.rows.get(key)
        if known is None or best.rank < known.rank:
            self.rows[key] = best
        self.advice.put(key, best)


@contextlib.contextmanager
def _background() -> Iterator[ThreadPoolExecutor]:
    """A thread for tracing, which is left to itself if the work ends before it."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="advice-tracing")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _interleaved(lists: Iterable[Sequence[Key]]) -> Iterator[Key]:
    for keys in itertools.zip_longest(*lists):
        yield from (key for key in keys if key is not None)
