"""Edits of annotations in words, and as the lines of code to write.

Start reading at ``code_of``.
"""

from __future__ import annotations

import re
from collections import defaultdict

from toast_lab.audit.places_alike import PlacesAlike, without
from toast_lab.ir.locations import frames, place_text
from toast_lab.ir.source_lines import op_frame, source_text
from toast_lab.lowering.specs import partition_text
from toast_lab.sharding.plan import Spec, spec_text
from toast_lab.text import first_items_text
from toast_lab.written.annotated import Edits

_TARGET = re.compile(r"\s*([A-Za-z_]\w*)\s*=[^=]")
_SUFFIX = re.compile(r"_\d+$")
#: Most lines of code that one change has.
_MOST_LINES = 6


def p_text(spec: Spec) -> str:
    """``P("data", None)``."""
    return partition_text(spec).replace("'", '"')


def text_of(roles: PlacesAlike, edits: Edits) -> str:
    """What edits change, as a phrase."""
    parts = []
    by_role = _by_role(roles, edits)
    for (paths, before, after), _ in list(by_role.items())[:3]:
        instead = f" instead of {spec_text(before)}" if before is not None else ""
        parts.append(f"shard {paths} as {spec_text(after)}{instead}")
    if len(by_role) > 3:
        parts.append(f"and {len(by_role) - 3} more arguments as their counterparts")
    for place, old, new in _by_place(roles, edits):
        parts.append(
            f"remove the constraint at {place}"
            if new is None
            else f"constrain to {spec_text(new)} instead of {spec_text(old)} at {place}"
        )
    for name, place, _, spec in _by_line(roles, edits):
        parts.append(f"constrain {name} to {spec_text(spec)} at {place}")
    return "; ".join(parts)


def code_of(roles: PlacesAlike, edits: Edits) -> tuple[str, ...]:
    """The lines to write for some edits."""
    lines = []
    for paths, before, after in _by_role(roles, edits):
        now = (
            f"in its sharding, instead of {p_text(before)}" if before is not None else "it has none"
        )
        lines.append(f"{paths}: {p_text(after)}  # {now}")
    for place, old, new in _by_place(roles, edits):
        lines.append(
            f"# remove with_sharding_constraint(..., {p_text(old)})  # {place}"
            if new is None
            else f"jax.lax.with_sharding_constraint(..., {p_text(new)})  # {place}, instead of "
            f"{p_text(old)}"
        )
    for name, place, source, spec in _by_line(roles, edits):
        after_line = f", after: {source}" if source else ""
        call = f"jax.lax.with_sharding_constraint({name}, {p_text(spec)})"
        if name.startswith("<"):
            lines.append(f"{call}  # {place}, in: {source}" if source else f"{call}  # {place}")
        else:
            lines.append(f"{name} = {call}  # {place}{after_line}")
    more = len(lines) - _MOST_LINES
    return (*lines[:_MOST_LINES], *([f"# and {more} more lines alike"] if more > 0 else ()))


def _by_role(roles: PlacesAlike, edits: Edits) -> dict[tuple[str, Spec | None, Spec], list[int]]:
    """Edited arguments by their new spec: (paths, old spec or None without one, new spec)."""
    grouped: dict[tuple[Spec | None, Spec], list[int]] = defaultdict(list)
    for argument, spec in edits.arguments:
        rank = len(roles.program.dims(argument))
        written = roles.written.get(argument)
        before = None if written is None else without(written, "*")
        grouped[before, spec if spec is not None else ((),) * rank].append(argument)
    return {
        (first_items_text(dict.fromkeys(roles.role[a] for a in arguments)), *specs): arguments
        for specs, arguments in grouped.items()
    }


def _by_place(roles: PlacesAlike, edits: Edits) -> list[tuple[str, Spec, Spec | None]]:
    """Edited constraints of the user: (place, old spec, new spec)."""
    replaced, places = dict(edits.replaced), []
    interface = {*roles.of_argument.values(), *roles.of_result.values()}
    for site in roles.constraint_sites:
        if {*site.ops} == {*replaced} - interface:
            before = without(site.spec, "*")
            places.append((place_text(site.place, 2), before, replaced[site.ops[0]]))
    return places


def _by_line(roles: PlacesAlike, edits: Edits) -> list[tuple[str, str, str, Spec]]:
    """New constraints: (variable, place, text of the line behind which it goes, spec)."""
    program, lines = roles.program, dict[tuple[str, str], tuple[str, str, str, Spec]]()
    for value, spec in edits.constraints:
        if value < program.n_arguments:
            name = program.value_name[value]
            lines[name, ""] = name, "before its first use", "", spec
            continue
        op = int(program.value_op[value])
        frame = op_frame(program, op)
        source = source_text(frame)
        name = _SUFFIX.sub("", program.value_name[value])
        if not name.isidentifier():
            target = _TARGET.match(source)
            kind = program.kind[op].removeprefix("sdy.")
            name = target.group(1) if target else f"<result of {kind}>"
        own_frames = frames(program.locations[int(program.location[op])])
        place = frame.short or (own_frames[0].short if own_frames else "unknown line")
        lines.setdefault((name, place), (name, place, source, spec))
    return list(lines.values())
