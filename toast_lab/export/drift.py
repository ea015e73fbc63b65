"""``plan.to_test()``: a pytest file that fails when the compiled program of a plan drifts.

It loads the model as the user does, reads the saved plan, compiles ahead of time, and compares
collectives, bytes and memory with the recorded ones. It also fails, with the plan's notes, if the
model has changed so that the plan no longer fits.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toast_lab._version import __version__
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.plan import ShardingPlan, model_of

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

PEAK_TOLERANCE = 0.05


def to_test(
    plan: ShardingPlan,
    load: str,
    plan_file: str,
    *,
    sizes: Mapping[str, Any] | None = None,
    topology: str | None = None,
    model: Model | None = None,
    **options: Any,
) -> str:
    """The source of a test.

    Args:
        plan: the plan to guard.
        load: argument of ``tl.load``: a built-in model or ``"package.module:make"``.
        plan_file: path of the saved plan, relative to the test's folder.
        sizes: for ``tl.load``.
        topology: to compile for, see ``tl.compile``; by default as many virtual CPU devices as the
            mesh has.
        model: see ``minimal_constraints``.
        options: for ``tl.compile``.

    Raises:
        InvalidProblem: the sizes cannot be written as literals, or the compiler refuses the plan
            for lack of memory.
    """
    model = model_of(plan, model)
    plain_sizes = dict(sizes or {})
    try:
        if ast.literal_eval(repr(plain_sizes)) != plain_sizes:
            raise ValueError
    except (ValueError, SyntaxError):
        raise InvalidProblem(
            f"sizes {plain_sizes!r} are not plain values that a test file could hold"
        ) from None
    topology = topology or f"cpu:{plan.mesh.n_devices}"
    compiled = compile_plan(model, plan, topology, **options)
    if compiled.refused:
        raise InvalidProblem(
            f"the compiler refuses this plan for {topology}: {compiled.refusal[:200]}"
        )
    record = json.dumps(recorded(compiled), indent=4)
    return f'''"""The sharding of {model.name} on {plan.mesh} stays as planned.\
 Written by TOAST Lab {__version__}."""

from pathlib import Path

import toast_lab as tl
from toast_lab.export.drift import drifted

RECORDED = {record}


def test_the_sharding_of_{model.name}_has_not_drifted():
    model = tl.load({load!r}, **{plain_sizes!r})
    plan = tl.Plan.load(Path(__file__).parent / {plan_file!r}, tl.analyse(model))
    assert not plan.notes, "the plan no longer fits the model: " + "; ".join(plan.notes)
    compiled = tl.compile(model, plan, {topology!r})
    differences = drifted(RECORDED, compiled)
    assert not differences, "\\n".join(differences)
'''


def recorded(compiled: Compiled) -> dict[str, Any]:
    """The figures of a compiled program that a test compares."""
    totals: dict[str, dict[str, float]] = {}
    for collective in compiled.collectives:
        axes_text = "?" if collective.axes is None else ",".join(collective.axes)
        total = totals.setdefault(
            f"{collective.kind} over {axes_text}", {"count": 0.0, "bytes": 0.0}
        )
        total["count"] += collective.times * max(1, len(collective.parts))
        total["bytes"] += collective.times * collective.bytes
    return {"collectives": dict(sorted(totals.items())), "peak_bytes": compiled.peak_bytes}


def drifted(record: Mapping[str, Any], compiled: Compiled) -> list[str]:
    """The differences of a compiled program from the record, joined to one text; empty if none.

    Memory may differ by 5%.
    """
    if compiled.refused:
        return [f"the compiler refuses it for lack of memory: {compiled.refusal[:200]}"]
    current_record, differences = recorded(compiled), []
    recorded_collectives = record["collectives"]
    for key in sorted({*recorded_collectives, *current_record["collectives"]}):
        recorded_row, current_row = (
            collectives.get(key, {"count": 0.0, "bytes": 0.0})
            for collectives in (recorded_collectives, current_record["collectives"])
        )
        if recorded_row != current_row:
            differences.append(
                f"{key}: {recorded_row['count']:g} of {recorded_row['bytes']:g} bytes recorded, "
                f"{current_row['count']:g} of {current_row['bytes']:g} bytes now"
            )
    current_peak, recorded_peak = current_record["peak_bytes"], record["peak_bytes"]
    if abs((current_peak or 0) - (recorded_peak or 0)) > PEAK_TOLERANCE * (recorded_peak or 0):
        differences.append(
            f"peak memory of a device: {recorded_peak} bytes recorded, {current_peak} now"
        )
    return [join_offenders(differences, 20)] if differences else []
