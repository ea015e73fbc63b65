"""Saved plans: as JSON, in files, and read back for the same program or a relative of it.

``portable`` defines the content of the JSON; ``plan_check`` validates every field before use.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, ToastError, join_offenders
from toast_lab.files import PathLike, write_whole
from toast_lab.sharding import plan_check, portable
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.sharding.plan import ShardingPlan, make_plan

FORMAT = 2  #: of saved plans


def to_json(plan: ShardingPlan) -> dict[str, Any]:
    """A plan as plain data, keyed by paths and names; see ``portable``."""
    return {
        "format": FORMAT,
        "program": {"name": plan.program.name, "digest": plan.program.digest()},
        "mesh": dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
        "actions": list(plan.history),
        "key": f"{plan.key:016x}",
        **_renames(plan),
        **({"judged": dict(plan.judged)} if plan.judged is not None else {}),
        **portable.to_json(plan.program, plan.mesh, plan.sharding),
    }


def _renames(plan: ShardingPlan) -> dict[str, dict[str, str]]:
    """The users' names of colours by the names of the analysis; empty if none was renamed."""
    renames = {} if plan.analysis is None else dict(plan.analysis.renames)
    return {"colours": renames} if renames else {}


def save(plan: ShardingPlan, path: PathLike) -> None:
    """Write a plan as JSON with a checksum, whole or not at all.

    Raises:
        NotSaved: it cannot be written; an existing file is left as it was.
    """
    write_whole(path, portable.file_text(to_json(plan)), "the plan")


def load(path: PathLike, analysis: Analysis, mesh: Mesh | None = None) -> ShardingPlan:
    """Read a plan, for the program it was made for or for a relative of it; see ``from_json``.

    A file without a checksum is read as it stands: earlier versions wrote none, and people who edit
    a file by hand remove it.

    Raises:
        InvalidPlan: the file is not a plan, is cut off or damaged, or is for another kind of
            program.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidPlan(f"{path}: cannot read this plan: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(
            f"{path}: cannot read this plan: {_why_no_json(error)}; give a file that a plan was "
            "saved to"
        ) from None
    portable.check_undamaged(data, str(path))
    return from_json(data, analysis, mesh, str(path))


def from_json(
    data: Any, analysis: Analysis, mesh: Mesh | None = None, where: str = "plan"
) -> ShardingPlan:
    """Rebuild a plan from ``to_json`` data.

    The program may have other sizes or another number of layers. The parts of the plan that do not
    fit it are left out, and the plan's ``notes`` list them.

    Args:
        data: the result of ``to_json``, not yet validated.
        analysis: of the program to shard.
        mesh: with the same axes as the saved one; by default the saved one.
        where: the file, for messages.

    Raises:
        InvalidPlan: the data are not a plan, are damaged, or are for another kind of program.
    """
    if not isinstance(data, dict) or "format" not in data:
        raise InvalidPlan(f"{where}: not a TOAST Lab plan, it has no format")
    if data["format"] != FORMAT:
        raise InvalidPlan(
            f"{where}: this plan has format {data['format']!r}, but this version reads format "
            f"{FORMAT}. Search again, or load it with the version that wrote it."
        )
    if offences := list(plan_check.offenders(data, portable.ROUNDS)):
        raise InvalidPlan(
            f"{where}: damaged, or not a TOAST Lab plan; give another copy of it, or save it "
            f"again:\n{join_offenders(offences)}"
        )
    try:
        saved_mesh = make_mesh(data["mesh"])
    except ToastError as error:
        raise InvalidPlan(f"{where}: damaged plan: {error}") from None
    program, mesh = analysis.program, mesh or saved_mesh
    applied = portable.apply(data, program, mesh, where)
    is_same_problem = data["program"]["digest"] == program.digest() and saved_mesh == mesh
    if is_same_problem and applied.notes:
        raise InvalidPlan(f"{where}: damaged plan: {join_offenders(list(applied.notes))}")
    renames = dict(data.get("colours", {}))
    if (
        is_same_problem
        and renames
        and not analysis.renames
        and all(analysis.colour_index(name) is not None for name in renames)
    ):
        analysis = analysis.renamed(renames)
    plan = make_plan(
        analysis,
        mesh,
        applied.sharding,
        tuple(_in_names_of_today(analysis, action) for action in data.get("actions", ())),
        key=int(data.get("key", "0"), 16) if is_same_problem else 0,
        notes=applied.notes,
    )
    plan.check()
    # A judgement holds only for the program and mesh that were judged
    judged = data.get("judged") if is_same_problem else None
    return plan if judged is None else dataclasses.replace(plan, judged=judged)


def _in_names_of_today(analysis: Analysis, action: str) -> str:
    """The text of an action, whose colour may have the name that an earlier version gave it."""
    colour = re.split("@|->", action, maxsplit=1)[0]
    rest = action[len(colour) :]
    index = analysis.colour_index(colour) if rest else None
    if index is None or colour in analysis.colour_name:
        return action
    return f"{analysis.group_name[analysis.group[index]]}{rest}"


def _why_no_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return (
            f"it is not JSON, or is cut off, at line {error.lineno}, column {error.colno}: "
            f"{error.msg}"
        )
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text: byte {error.start} is {error.object[error.start]:#04x}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
