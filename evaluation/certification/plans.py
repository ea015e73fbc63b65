"""Certify that a program sharded by a plan computes what the unsharded program computes.

Plans come from a ``draw.Source``: random colour actions, propagated shardings of arguments, or
refinement.

Every plan is compiled for eight virtual CPU devices and executed on the same inputs as the program
as it was read. Every output (for a training step: loss, gradients or updated parameters, optimiser
state) must agree.

The tolerance on ``max|difference| / max|output|`` allows for another order of rounding and nothing
else. It is a multiple of the machine epsilon of the coarsest float type that an output depends on:

* 64 epsilon for float32 and float64 (8e-6 and 1.4e-14): summing n terms in another order moves a
  sum by about sqrt(n) epsilon of its terms; n is up to 4096 here, and terms exceed their sum by
  small factors;
* 4 epsilon for bfloat16 and float16 (3e-2 and 4e-3): each of 2 * log2(8) additions of partial sums
  between devices rounds by half an epsilon, and a value is rounded once more where it would have
  stayed in a register;
* 0 for integers and booleans.

A case may widen this by a factor with the reason written beside it (``Case.slack``).
Start reading at ``certify``.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from evaluation import pages
from evaluation.certification import draw
from evaluation.certification.case import Case
from evaluation.certification.programs import programs
from evaluation.row_files import append_rows, read_rows
from evaluation.xla_flags import QUICK_COMPILES
from toast_lab import isolate
from toast_lab.errors import RunFailed
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import annotate
from toast_lab.runtime import child
from toast_lab.runtime import devices as dev
from toast_lab.runtime import inputs as made_up
from toast_lab.runtime.executable import ShardedProgram, whole_job
from toast_lab.runtime.measuring import Execution

EPSILONS = {"wide": 64, "narrow": 4}
# Numbers of plans on each mesh: of colour actions, and propagated ones
FULL = ((25, 25, 25), (10, 10, 0))
SHORT = ((1, 1, 1), (0, 1, 0))
DEVICES = dev.Devices("cpu", 8)


class Row(NamedTuple):
    """The result of executing one plan."""

    program: str
    mesh: str
    number: int
    ops: int
    actions: str
    collectives: int  #: in the compiled program
    output: str  #: the output whose error is largest in proportion to its tolerance
    error: float
    tolerance: float
    seconds: float  #: of compiling and running
    failure: str  #: empty if nothing failed
    source: str = "colours"  #: the source that drew the plan

    @property
    def share(self) -> float:
        """The worst error as a share of its tolerance."""
        return (
            self.error / self.tolerance
            if self.tolerance
            else (0.0 if self.error == 0 else float("inf"))
        )


class KnownBug(NamedTuple):
    """A failure that is not our fault; docs/certification.md has the reproducer."""

    text: str  #: text that the failure contains
    why: str


KNOWN_BUGS = (
    KnownBug(
        "Slice dim size 16 greater than dynamic slice dimension: 8",
        "XLA of jaxlib 0.10.2 refuses its own partitioning of a gather whose result is "
        "scattered; 0.12.0.1 compiles it",
    ),
)


def known_bug(row: Row) -> str:
    """Why this failure is not our fault, "" if it is."""
    return next((bug.why for bug in KNOWN_BUGS if bug.text in row.failure), "")


class Work(NamedTuple):
    """One program with its plans, ready for the child process."""

    name: str
    request: child.RunRequest
    tolerances: dict[str, float]  #: by output path
    finite: bool  #: must every output be finite?


class Outcome(NamedTuple):
    """The child's result for one plan, or for the unsharded program (``index`` -1)."""

    name: str
    index: int
    errors: dict[str, float]
    collectives: int
    seconds: float
    failure: str


# -- tolerances ------------------------------------------------------------------------------------


def tolerances(program: Program, slack: float = 1.0) -> dict[str, float]:
    """By output path, the error that another order of rounding can explain."""
    coarsest = [_epsilon(e) for e in program.value_dtype]
    own = list(coarsest)
    for op in program.ops():
        reaching = max((coarsest[v] for v in program.operands(op)), default=0.0)
        for value in program.results(op):
            coarsest[value] = max(coarsest[value], reaching)
    found = {}
    for value, path in zip(program.outputs, program.output_paths, strict=True):
        found[path] = (
            0.0 if own[value] == 0 else slack * coarsest[value] * _epsilons(coarsest[value])
        )
    return found


def _epsilon(element: str) -> float:
    """Machine epsilon of an element type, 0 for exact types."""
    try:
        dtype = made_up.dtype_of(element)
    except Exception:  # tokens are not compared
        return 0.0
    if dtype.kind == "c":
        return float(np.finfo(dtype).eps)
    floating = dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))
    return float(ml_dtypes.finfo(dtype).eps) if floating else 0.0


def _epsilons(epsilon: float) -> int:
    return EPSILONS["narrow"] if epsilon > 1e-4 else EPSILONS["wide"]


# -- in the parent ---------------------------------------------------------------------------------


def prepare(case: Case, source: draw.Source, seed: int = 0) -> tuple[Work, list[draw.Drawn]]:
    """Trace a program, draw its plans and annotate the program with each of them.

    Raises:
        AssertionError: the program lacks ops that it is meant to exercise.
    """
    model = case.model()
    missing = case.missing(model)
    assert not missing, f"{case.name} was to exercise {', '.join(missing)}"
    plans = source(model, seed)
    jobs = []
    for _, _, _, plan in plans:
        kept = plan.value_specs()
        jobs.append(
            ShardedProgram(
                annotate(model, plan),
                plan.mesh,
                tuple(kept[: plan.program.n_arguments]),
                tuple(kept[int(v)] for v in plan.program.outputs),
            )
        )
    request = child.RunRequest(
        program=model.program,
        reference=whole_job(model.program, model.stablehlo),
        jobs=tuple(jobs),
        devices=DEVICES,
        options=Execution(repeats=1, warmup=0, seed=seed, inputs=case.arrays(model, seed)),
    )
    return Work(case.name, request, tolerances(model.program, case.slack), True), plans


def certify(
    cases: Sequence[Case],
    source: draw.Source,
    *,
    seed: int = 0,
    time_limit_s: float = 580.0,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Execute the plans of ``cases`` and compare them with the unsharded programs.

    One child process runs them all, one after the other. If it dies, the plan that it was running
    counts as a failure, and a new child goes on with the next plan.

    Args:
        cases: the programs.
        source: draws the plans of each program.
        seed: seed of plans and inputs.
        time_limit_s: time limit of a child process for one program.
        on_row: called with every row as soon as it is known.
    """
    rows: list[Row] = []
    for group in _batches(cases, 12):
        prepared = [prepare(case, source, seed) for case in group]
        for work, plans in prepared:
            if not plans:
                failure = "no action is legal"
                rows.append(Row(work.name, "", 0, _n_ops(work), "", 0, "", 0.0, 0.0, 0.0, failure))
        by_name = {work.name: (work, plans) for work, plans in prepared}
        for outcome in execute(
            [work for work, plans in prepared if plans], time_limit_s * len(group)
        ):
            work, plans = by_name[outcome.name]
            if outcome.index < 0 and not outcome.failure:
                continue
            row = _row(work, plans, outcome)
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


def execute(works: Sequence[Work], time_limit_s: float) -> Iterator[Outcome]:
    """Run all plans of ``works`` in child processes.

    Gives an outcome for each plan, even if a child died.
    """
    waiting = [(work, 0) for work in works]
    while waiting:
        outcomes: list[Outcome] = []

        def note(event: Any, outcomes: list[Outcome] = outcomes) -> None:
            if isinstance(event, Outcome):  # all other events are progress within one run
                outcomes.append(event)

        died = ""
        try:
            isolate.run_in_child(
                "evaluation.certification.plans:run_all",
                waiting,
                env=_environment(),
                time_limit_s=time_limit_s,
                on_event=note,
                activity="certifying plans",
            )
        except RunFailed as error:
            died = str(error)
        yield from outcomes
        if not died:
            return
        # Everything up to the last outcome is done; the child died of the plan after it.
        done = {(o.name, o.index) for o in outcomes}
        remaining = []
        blamed = False
        for work, start in waiting:
            indices = [
                i for i in range(start, len(work.request.jobs)) if (work.name, i) not in done
            ]
            if (work.name, -1) not in done and not blamed:
                yield Outcome(work.name, -1, {}, 0, 0.0, f"the unsharded program: {died}")
                blamed = True
            elif indices and not blamed:
                yield Outcome(work.name, indices[0], {}, 0, 0.0, died)
                blamed = True
                remaining.append((work, indices[0] + 1))
            elif indices:
                remaining.append((work, indices[0]))
        waiting = [(work, start) for work, start in remaining if start < len(work.request.jobs)]
        if not blamed:
            return


def _environment() -> dict[str, str]:
    """Environment of a child: eight virtual devices, and XLA flags that make compiling quick."""
    variables = dev.environment(DEVICES)
    return {**variables, "XLA_FLAGS": f"{variables['XLA_FLAGS']} {QUICK_COMPILES}"}


def _n_ops(work: Work) -> int:
    return work.request.program.n_ops - work.request.program.n_arguments


def _row(work: Work, plans: list[draw.Drawn], outcome: Outcome) -> Row:
    if outcome.index < 0:
        return Row(
            work.name, "", 0, _n_ops(work), "", 0, "", 0.0, 0.0, outcome.seconds, outcome.failure
        )
    mesh, number, source, plan = plans[outcome.index]

    def share(item: tuple[str, float]) -> float:
        allowed, error = work.tolerances[item[0]], item[1]
        return (
            float("inf")
            if error != error
            else error / allowed
            if allowed
            else (float("inf") if error else 0.0)
        )

    path, error = max(outcome.errors.items(), key=share, default=("", 0.0))
    failure = outcome.failure
    wrong = [f"{p}: {e:.2g}" for p, e in outcome.errors.items() if not e <= work.tolerances[p]]
    if wrong and not failure:
        failure = (
            "differs: "
            + ", ".join(wrong[:6])
            + (f" and {len(wrong) - 6} more" if len(wrong) > 6 else "")
        )
    return Row(
        work.name,
        mesh,
        number,
        _n_ops(work),
        " ".join(plan.actions),
        outcome.collectives,
        path,
        error,
        work.tolerances.get(path, 0.0),
        outcome.seconds,
        failure,
        source,
    )


def _batches(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


# -- in the child ----------------------------------------------------------------------------------


def run_all(works: list[tuple[Work, int]]) -> None:
    """Execute the plans of each of ``works`` from its start index on.

    An ``Outcome`` is reported for each plan.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    devices = dev.attached(DEVICES)
    for work, start in works:
        request, started = work.request, time.perf_counter()
        assert request.options.inputs is not None
        try:
            _, expected, failure = child.try_reference(
                request, request.reference, devices, request.options.inputs
            )
        except Exception as error:
            expected, failure = None, f"{type(error).__name__}: {error}"[:600]
        if expected is not None and work.finite and not child.all_finite(expected):
            names = [
                p
                for p, a in zip(request.program.output_paths, expected, strict=True)
                if not child.all_finite([a])
            ]
            failure = (
                f"the unsharded program gives infinities or NaN in {', '.join(names[:5])}: "
                "choose better inputs"
            )
        isolate.report(Outcome(work.name, -1, {}, 0, time.perf_counter() - started, failure))
        if failure or expected is None:
            continue
        for index in range(start, len(request.jobs)):
            isolate.report(_outcome(work, index, devices, expected))


def _outcome(work: Work, index: int, devices: list[Any], expected: list[np.ndarray]) -> Outcome:
    request, started = work.request, time.perf_counter()
    arrays = request.options.inputs
    assert arrays is not None
    try:
        measured = child.measure(
            request, request.jobs[index], devices, arrays, _Silent(), expected=expected
        )
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:600]
        return Outcome(work.name, index, {}, 0, time.perf_counter() - started, text)
    errors = dict(measured.errors or {})
    return Outcome(
        work.name, index, errors, len(measured.collectives), time.perf_counter() - started, ""
    )


class _Silent(child.Stage):
    """A stage that reports nothing, since outcomes tell the progress here."""

    def __init__(self) -> None:
        super().__init__("", 0.0, 0.0)

    def compiling(self) -> None:
        pass

    def running(self, number: int, total: int) -> None:
        pass


# -- the command -----------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """A table with a line for each program: ops, plans on the meshes, worst error, seconds."""
    cells = []
    for name, row_group in itertools.groupby(rows, key=lambda r: r.program):
        group = list(row_group)
        worst = max(group, key=lambda r: (r.share == r.share, r.share))
        plans = ", ".join(str(sum(r.mesh == mesh for r in group)) for mesh in draw.MESHES)
        cells.append(
            (
                *(name, group[0].ops, plans, sum(r.collectives > 0 for r in group)),
                *(f"{worst.error:.1e}", f"{worst.tolerance:.1e}"),
                *(f"{sum(r.seconds for r in group):.1f}", sum(bool(r.failure) for r in group)),
            )
        )
    executed = [r for r in rows if r.mesh]
    columns = (
        *("program", ">ops", "plans (8, 2x4, 2x2x2)", ">with collectives", ">worst error"),
        *(">allowed", ">s", ">failures"),
    )
    lines = pages.table(columns, cells)
    lines.append(
        f"\n{len({r.program for r in rows})} programs, {len(executed)} plans, "
        f"{sum(r.collectives > 0 for r in executed)} of them with collectives, "
        f"{sum(bool(r.failure) for r in rows)} failures."
    )
    return "\n".join(lines)


def run(
    full: bool,
    file: Path | None = None,
    only: Sequence[str] = (),
    seed: int = 0,
    source: draw.Source | None = None,
) -> list[str]:
    """Run the certification from the command line; gives a line for each failure.

    Args:
        full: draw ``FULL`` plans on each mesh instead of a few.
        file: file to which rows are appended as they come; programs that are complete in it are
            not run again.
        only: names of programs, all by default.
        seed: seed of plans and inputs.
        source: draws the plans; random and propagated ones by default.
    """
    source = source or draw.mixed(*(FULL if full else SHORT))
    cases = [c for c in programs() if not only or c.name in only]
    rows = [Row(**row) for row in read_rows(file)] if file else []
    finished = {row.program for row in rows}
    waiting = [c for c in cases if c.name not in finished]
    for group in _batches(waiting, 4 if full else 12):  # a child for each: its start costs seconds
        new_rows = certify(group, source, seed=seed)
        if file:
            # Whole programs at once, so that interrupted runs leave no partial ones
            append_rows(file, [row._asdict() for row in new_rows])
        for case in group:
            case_rows = [r for r in new_rows if r.program == case.name]
            worst = max((r.share for r in case_rows), default=0.0)
            print(
                f"{case.name}: {len(case_rows)} plans, worst {worst:.2f} of the tolerance, "
                f"{sum(bool(r.failure) for r in case_rows)} failures, "
                f"{sum(r.seconds for r in case_rows):.0f} s",
                file=sys.stderr,
                flush=True,
            )
        rows += new_rows
    print(table(rows))
    failure_texts = {
        r: f"{r.program} on {r.mesh}, {r.source} {r.number} ({r.actions}): {r.failure}"
        for r in rows
        if r.failure
    }
    for row, text in failure_texts.items():
        if known_bug(row):
            print(f"KNOWN BUG  {known_bug(row)}: {text}")
    return [text for row, text in failure_texts.items() if not known_bug(row)]
