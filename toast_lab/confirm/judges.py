"""Judges: compilers, for machines that need not be attached, and attached devices.

A plan is judged whole, with every op as it says, or as it is written, with its rules and
constraints in the user's program and nothing else. A compiler's clock is ``Compiled.time_s``, that
of devices the median of a few steps. A plan that cannot be compiled, or not in time, gets a
judgement too: the plan is dropped, and the search goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toast_lab.confirm.judge_targets import is_attached, judged_elsewhere
from toast_lab.confirm.verdict import Judge, Judgement
from toast_lab.errors import RunFailed, RunInterrupted
from toast_lab.files import PathLike
from toast_lab.runtime import topologies
from toast_lab.runtime.compile import check_compiler, compile_plan
from toast_lab.runtime.run import run
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.written.compiling import compile_it, execute_it
from toast_lab.written.written_plan import WrittenPlan

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model

_STEPS, _WARM_STEPS = 5, 2  #: timed steps and warm-up steps on attached devices


def judge_named(
    problem: Problem,
    model: Model,
    topology: str,
    *,
    time_limit_s: float,
    store: bool | PathLike = True,
    cancel: Callable[[], bool] | None = None,
) -> Judge:
    """The judge of a topology.

    Args:
        problem: the problem that is searched; the topology has as many devices as its mesh.
        model: the model that plans shard.
        topology: as ``tl.compile`` takes it; attached devices execute the plans.
        time_limit_s: for each plan.
        store: of compiled results, as ``tl.compile`` takes it.
        cancel: polled; True ends the compile with ``isolate.Cancelled``.

    Raises:
        InvalidProblem: the topology does not exist, has another number of devices than the mesh, or
            its compiler is missing.
    """
    parsed = topologies.parse(topology, problem.mesh)
    check_compiler(parsed)
    elsewhere = judged_elsewhere(problem, parsed)

    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "cancel": cancel}

    def compiled(plan: ShardingPlan | WrittenPlan) -> Judgement:
        if isinstance(plan, WrittenPlan):
            result = compile_it(plan, topology, model, store=store, **limits)
        else:
            result = compile_plan(model, plan, topology, store=store, **limits)
        return Judgement(
            time_s=None if result.refused else result.time_s,
            peak_bytes=result.total_needed_bytes,
            fits=result.fits,
            compile_s=result.compile_s,
            cached=result.cached,
            evidence=result,
            elsewhere=elsewhere,
        )

    def executed(plan: ShardingPlan | WrittenPlan) -> Judgement:
        options = {**limits, "repeats": _STEPS, "warmup": _WARM_STEPS, "reference": False}
        if isinstance(plan, WrittenPlan):
            measured = execute_it(plan, topology, model, **options)
        else:
            measured = run(model, plan, topology, **options)
        return Judgement(
            time_s=measured.median_s,
            peak_bytes=measured.peak_bytes,
            fits=True,
            compile_s=measured.compile_s,
            evidence=measured,
            noise=measured.spread_s / 2 / measured.median_s if measured.median_s else 0.0,
            elsewhere=judged_elsewhere(problem, parsed, measured.device_kind),
        )

    def judge(plan: ShardingPlan | WrittenPlan) -> Judgement:
        start_s = time.monotonic()
        try:
            return executed(plan) if is_attached(parsed) else compiled(plan)
        except RunFailed as error:
            lines = str(error).splitlines() or [type(error).__name__]
            interrupted_at_s = None
            if isinstance(error, RunInterrupted):
                # One that was killed before its limit is worth another try with the same limit
                interrupted_at_s = min(time.monotonic() - start_s, time_limit_s)
            return Judgement(
                time_s=None,
                peak_bytes=None,
                fits=False,
                failure=lines[0],
                compile_s=time.monotonic() - start_s,
                elsewhere=elsewhere,
                interrupted_at_s=interrupted_at_s,
            )

    return judge
