"""A written plan as the compiler gets it: the user's program with its rules and constraints."""

from __future__ import annotations

from typing import Any

from toast_lab.errors import RunFailed
from toast_lab.ir.model import Model
from toast_lab.runtime._jax_private import LeftOpen
from toast_lab.runtime.compile import compile_written
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.executable import ShardedProgram
from toast_lab.runtime.run import Run, run_many
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.written.annotated import Edits, edited, numbered
from toast_lab.written.written_plan import WrittenPlan


def edits_of(written: WrittenPlan) -> Edits:
    """What the rules and constraints change in the user's program."""
    return Edits(
        arguments=tuple(enumerate(written.argument_specs())),
        results=tuple(written.results.items()),
        constraints=tuple(
            (value, spec)
            for site, spec in written.constraints
            for value in (*site.values, *site.cotangents)
        ),
    )


def annotated_text(written: WrittenPlan, model: Model) -> str:
    """The StableHLO of ``model`` with the shardings that are written, and no others."""
    problem = written.problem
    text = numbered(model.stablehlo, problem.analysis, problem.mesh)
    return edited(text, problem.analysis.program, problem.mesh, edits_of(written))


def compile_it(
    written: WrittenPlan, topology: str, model: Model | None = None, **options: Any
) -> Compiled:
    """Compile the user's program with what is written, ahead of time.

    Args:
        written: the plan.
        topology: as for ``tl.compile``, which documents the options and errors.
        model: the problem's model; by default that of its analysis.
        options: ``time_limit_s``, ``cancel`` and ``store``.
    """
    model = written.plan.own_model(written.problem.analysis.model if model is None else model)
    program = written.problem.analysis.program
    left_open = LeftOpen(
        (False,) * program.n_arguments,
        tuple(number not in written.results for number in range(len(program.outputs))),
    )
    return compile_written(
        model,
        written.plan,
        annotated_text(written, model),
        topology,
        left_open=left_open,
        **options,
    )


def execute_it(
    written: WrittenPlan, devices: str, model: Model | None = None, **options: Any
) -> Run:
    """Execute the user's program with what is written, on attached or virtual devices.

    Results that do not follow an argument are returned as propagation leaves them.

    Args:
        written: the plan.
        devices: as for ``tl.run``, which documents the options and errors.
        model: the problem's model; by default that of its analysis.
        options: those of ``tl.run``.

    Raises:
        RunFailed: JAX lowers the program otherwise for these devices, or as ``tl.run``.
    """
    model = written.plan.own_model(written.problem.analysis.model if model is None else model)
    program = written.problem.analysis.program

    def job(own_model: Model, plan: ShardingPlan, platform: str | None) -> ShardedProgram:
        if plan.program is not written.plan.program:
            raise RunFailed(
                f"{program.name} is another program on {platform}; a written plan runs only as the "
                f"program that it was written for: trace with platform={platform!r}"
            )
        specs = plan.value_specs()
        results = tuple(specs[int(value)] for value in program.outputs)
        edits = edits_of(written)._replace(results=tuple(enumerate(results)))
        text = numbered(own_model.stablehlo, written.problem.analysis, plan.mesh)
        return ShardedProgram(
            edited(text, program, plan.mesh, edits),
            plan.mesh,
            argument_specs=tuple(written.argument_specs()),
            result_specs=results,
            host=program.host,
        )

    return run_many(model, [written.plan], devices, job=job, **options)[0]
