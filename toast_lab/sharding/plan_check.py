"""Validation of the JSON of a saved plan.

Every field is checked before it is used; offences name the field in question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toast_lab import checks

MOST_OPS = 10_000_000  #: most ops that one entry may stand for
MOST_RANK = 127
_NEEDED = ("program", "mesh", "arguments", "ops")


def offenders(data: Any, rounds: int) -> Iterator[str]:
    """Everything that is wrong with the data of a plan (see ``portable``), one sentence each.

    ``rounds`` is the number of labels that each entry must have.
    """
    if not isinstance(data, dict):
        yield f"it is {_kind(data)}, but a plan is an object"
        return
    if missing := [key for key in _NEEDED if key not in data]:
        yield f"it lacks {', '.join(missing)}"
    program = data.get("program", {})
    for key in ("name", "digest"):
        if not isinstance(program, dict) or (
            "program" in data and not isinstance(program.get(key), str)
        ):
            yield f"program must have a {key}, a text, but it is {_shown(program)}"
    mesh = data.get("mesh", {})
    if not isinstance(mesh, dict) or any(checks.whole_offence(size, 1) for size in mesh.values()):
        yield f"mesh must give each axis its size, but it is {_shown(mesh)}"
    actions = data.get("actions", [])
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        yield f"actions must be a list of texts, but it is {_shown(actions)}"
    colours = data.get("colours", {})
    if not isinstance(colours, dict) or not all(isinstance(name, str) for name in colours.values()):
        yield f"colours must be an object from name to name, but it is {_shown(colours)}"
    if offence := _judged_offence(data.get("judged", {"judge": "", "confirmed": False})):
        yield f"judged {offence}"
    key = data.get("key", "0")
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{1,16}", key):
        yield f"key must be up to 16 hexadecimal digits, but it is {_shown(key)}"
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        yield f"arguments must be an object by path, but it is {_kind(arguments)}"
    else:
        for path, dim_of_axis in arguments.items():
            if offence := _dims_offence(dim_of_axis):
                yield f"arguments, {_shown(path)}: {offence}"
    ops = data.get("ops", [])
    if not isinstance(ops, list):
        yield f"ops must be a list of entries, but it is {_kind(ops)}"
        return
    for position, entry in enumerate(ops):
        if offence := _entry_offence(entry, rounds):
            yield f"ops, entry {position}{_named(entry)}: {offence}"


def _judged_offence(judged: Any) -> str:
    """What is wrong with the judgement of the plan; empty if nothing is."""
    if not isinstance(judged, dict) or not isinstance(judged.get("judge"), str):
        return f"must be an object that names its judge, but it is {_shown(judged)}"
    if not isinstance(judged.get("confirmed"), bool):
        return f"must say whether the plan is confirmed, but it is {_shown(judged)}"
    verdict = judged.get("verdict", {})
    if not isinstance(verdict, dict):
        return f"must have a verdict that is an object, but it is {_shown(verdict)}"
    for name in ("priced_s", "judged_s"):
        value = verdict.get(name)
        if value is not None and (offence := checks.number_offence(value, 0.0)):
            return f"has {name}, which {offence}"
    return ""


def _entry_offence(entry: Any, rounds: int) -> str:
    if not isinstance(entry, dict):
        return f"it is {_kind(entry)}, not an object"
    labels, runs = entry.get("labels"), entry.get("runs")
    if not isinstance(labels, list) or len(labels) != rounds:
        return f"labels must be {rounds} texts of hexadecimal digits, but they are {_shown(labels)}"
    for label in labels:
        if not isinstance(label, str) or not re.fullmatch("[0-9a-f]{1,16}", label):
            return f"label {_shown(label)} is not up to 16 hexadecimal digits"
    if not isinstance(runs, list) or not runs:
        return f"runs must be a list with at least one run, but it is {_shown(runs)}"
    total = 0
    for run in runs:
        if offence := _run_offence(run):
            return f"run {_shown(run)}: {offence}"
        total += run[0]
    return f"it stands for {total} ops, more than {MOST_OPS}" if total > MOST_OPS else ""


def _run_offence(run: Any) -> str:
    if not isinstance(run, list) or len(run) not in (1, 3):
        return "a run is [how many] or [how many, axes of the op, axes of its results]"
    if offence := checks.whole_offence(run[0], 1, MOST_OPS):
        return f"how many ops it stands for {offence}"
    if len(run) == 1:
        return ""
    if not isinstance(run[1], dict) or not all(
        isinstance(factor_place, str) for factor_place in run[1].values()
    ):
        return "the axes of an op are given as {axis: place}"
    if not isinstance(run[2], list):
        return "the axes of results are a list with one object each"
    return next((offence for dim_of_axis in run[2] if (offence := _dims_offence(dim_of_axis))), "")


def _dims_offence(dim_of_axis: Any) -> str:
    if not isinstance(dim_of_axis, dict):
        return f"must be an object, {{axis: dim}}, but it is {_shown(dim_of_axis)}"
    for axis, dim in dim_of_axis.items():
        if offence := checks.whole_offence(dim, 0, MOST_RANK):
            return f"the dim on axis {_shown(axis)} {offence}"
    return ""


def _named(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return ""
    op_and_location = [
        str(entry[key])[:60] for key in ("op", "at") if isinstance(entry.get(key), str)
    ]
    return f" ({', '.join(op_and_location)})" if op_and_location else ""


def _kind(value: Any) -> str:
    kind_of_type = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a boolean",
        type(None): "null",
    }
    return kind_of_type.get(type(value), "a number")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
