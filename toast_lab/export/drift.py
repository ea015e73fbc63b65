"""``plan.to_test()``: a pytest file that fails when what the compiler makes of a plan drifts.

It loads the model as the user does, reads the saved plan, compiles ahead of time, and compares
collectives, bytes and memory with what was recorded.  A change of the model that the plan no longer
fits fails as well, with the plan's notes.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toast_lab import __version__
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.frontends.model import model_of
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.frontends import Model

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
    """The text of a test.

    Args:
        plan: what is to stay as it is.
        load: what ``tl.load`` takes: a built-in model or ``"package.module:make"``.
        plan_file: where the test finds the saved plan, from its own folder.
        sizes: for ``tl.load``.
        topology: what is compiled for, see ``tl.compile``; as many virtual CPU devices as the mesh
            has by default.
        model: see ``minimal_constraints``.
        options: for ``tl.compile``.

    Raises:
        InvalidProblem: sizes that cannot be written down, or the compiler refuses the plan for lack
            of memory.
    """
    model = model_of(plan.program, model)
    given = dict(sizes or {})
    try:
        if ast.literal_eval(repr(given)) != given:
            raise ValueError
    except (ValueError, SyntaxError):
        raise InvalidProblem(
            f"sizes {given!r} are no plain values that a test file could hold"
        ) from None
    topology = topology or f"cpu:{plan.mesh.n_devices}"
    made = compile_plan(model, plan, topology, **options)
    if made.refused:
        raise InvalidProblem(f"the compiler refuses this plan for {topology}: {made.refusal[:200]}")
    record = json.dumps(recorded(made), indent=4)
    return f'''"""The sharding of {model.name} on {plan.mesh} stays as planned.\
 Written by TOAST Lab {__version__}."""

from pathlib import Path

import toast_lab as tl
from toast_lab.export.drift import drifted

RECORDED = {record}


def test_the_sharding_of_{model.name}_has_not_drifted():
    model = tl.load({load!r}, **{given!r})
    plan = tl.Plan.load(Path(__file__).parent / {plan_file!r}, tl.analyse(model))
    assert not plan.notes, "the plan no longer fits the model: " + "; ".join(plan.notes)
    compiled = tl.compile(model, plan, {topology!r})
    differences = drifted(RECORDED, compiled)
    assert not differences, "\\n".join(differences)
'''


def recorded(made: Compiled) -> dict[str, Any]:
    """What a test remembers of a compiled program."""
    rows: dict[str, list[float]] = {}
    for c in made.collectives:
        row = rows.setdefault(
            f"{c.kind} over {'?' if c.axes is None else ','.join(c.axes)}", [0.0, 0.0]
        )
        row[0] += c.times * max(1, len(c.parts))
        row[1] += c.times * c.bytes
    return {
        "collectives": {
            key: {"count": n, "bytes": size} for key, (n, size) in sorted(rows.items())
        },
        "peak_bytes": made.peak_bytes,
    }


def drifted(record: Mapping[str, Any], made: Compiled) -> list[str]:
    """How a compiled program differs from what was recorded, a sentence each.

    Memory may differ by 5%.
    """
    if made.refused:
        return [f"the compiler refuses it for lack of memory: {made.refusal[:200]}"]
    now, found = recorded(made), []
    before = record["collectives"]
    for key in sorted({*before, *now["collectives"]}):
        then, here = (
            side.get(key, {"count": 0.0, "bytes": 0.0}) for side in (before, now["collectives"])
        )
        if then != here:
            found.append(
                f"{key}: {then['count']:g} of {then['bytes']:g} bytes recorded, "
                f"{here['count']:g} of "
                f"{here['bytes']:g} bytes now"
            )
    peak, limit = now["peak_bytes"], PEAK_TOLERANCE * (record["peak_bytes"] or 0)
    if abs((peak or 0) - (record["peak_bytes"] or 0)) > limit:
        found.append(f"peak memory of a device: {record['peak_bytes']} bytes recorded, {peak} now")
    return [join_offenders(found, 20)] if found else []
