"""Links: a view of a built-in model, written into the address and read from it.

``model=attention&sequence=128&mesh=data=4,model=2&machine=tpu-v5e&step=graph&level=names``
``&names=3-5&conflicts=0&act=...``

A link never names code or a file, whatever is in it: ``model`` is looked up among the built-in
models and nowhere else, and a size has to be one of that model's, of its type and within bounds.
Refused fields are reported and left out. Selection and plan are valid for one program only, so
``program`` has the beginning of its digest; for another program they are left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from toast_lab.errors import ToastError
from toast_lab.machines.catalogue import MACHINES
from toast_lab.models import registry
from toast_lab.sharding.mesh import make_mesh

MAX_QUERY = 6000  #: characters; a longer address is not read at all
MAX_TEXT = 120
MAX_ACTIONS = 64
MAX_NAMES = 4000  #: selected names; written as ranges they may take few characters
MAX_NAMES_TEXT = 600
LARGEST_SIZE = 2**20
MOST_REPEATS = 256  #: layers, steps, blocks: they make a program long, and its loading slow
REPEATS = ("layers", "steps", "blocks", "hidden_layers")
SERVER_FIELDS = ("state", "job")  #: fields that the server reads, before the link is read


class LinkedView(NamedTuple):
    """The view that a link asks for; a field that it does not mention is None or empty."""

    model: str = ""
    sizes: Mapping[str, Any] = MappingProxyType({})
    mesh: str = ""
    machine: str = ""
    memory_gib: float | None = None
    step: str = ""
    level: str = ""
    program: str = ""
    names: tuple[int, ...] = ()
    conflicts: tuple[int, ...] = ()
    actions: tuple[str, ...] = ()
    colours: Mapping[str, str] = MappingProxyType({})  #: names by those of the analysis


# -- writing ---------------------------------------------------------------------------------------


def ranges_text(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges, such as ``3-5.9``.

    >>> ranges_text([9, 3, 4, 5])
    '3-5.9'
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ".".join(f"{start}-{end}" if end > start else f"{start}" for start, end in ranges)


def write(session: Any) -> list[tuple[str, str]]:
    """The view of a session as (key, value) pairs of a query."""
    pairs = _model_pairs(session.loaded.which, session.loaded.sizes)
    if session.loaded.problem is not None:
        pairs.append(("mesh", str(session.loaded.problem.mesh)))
        if session.loaded.machine in MACHINES:
            pairs.append(("machine", session.loaded.machine))
        if session.loaded.memory_gib:
            pairs.append(("memory", f"{session.loaded.memory_gib:g}"))
    pairs.append(("step", session.step))
    if session.selection.level:
        pairs.append(("level", session.selection.level))
    marks: list[tuple[str, str]] = []
    if renames := _renames(session.loaded.analysis):
        marks.append(("colours", ",".join(f"{old}={new}" for old, new in renames.items())))
    if session.selection.conflicts:
        marks.append(("conflicts", ranges_text(session.selection.conflicts)))
    elif session.selection.names:
        marks.append(("names", ranges_text(session.selection.names)))
    if session.loaded.problem is not None:
        marks += [("act", action) for action in session.hand.actions]
    marks = [
        (key, value)
        for key, value in marks
        if len(value) <= (MAX_TEXT if key == "act" else MAX_NAMES_TEXT)
    ]
    if marks:
        pairs += [("program", session.loaded.digest[:12]), *marks]
    return pairs


def _renames(analysis: Any) -> dict[str, str]:
    """Colours' own names, by the analysis's; without those numbered after others."""
    if analysis is None:
        return {}
    return {old: new for old, new in analysis.renames.items() if new in analysis.group_name}


def to_model(session: Any, which: str, sizes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a query for another model on the mesh, machine and page of a session."""
    pairs = [*_model_pairs(which, sizes), ("mesh", str(make_mesh(session.loaded.mesh)))]
    if session.loaded.machine in MACHINES:
        pairs.append(("machine", session.loaded.machine))
    return [*pairs, ("step", session.step)]


def _model_pairs(which: str, sizes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs for a built-in model and the sizes that it changes; none for any other model."""
    if not which:
        return []
    defaults = registry.sizes(which)
    return [("model", which)] + [
        (key, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))
        for key, value in sizes.items()
        if key in defaults and value != defaults[key]
    ]


def query(pairs: list[tuple[str, str]]) -> str:
    """The query as the address holds it; characters that are harmless there stay readable."""
    return urlencode(pairs, safe="=,@>")


# -- reading ---------------------------------------------------------------------------------------


def read(query_text: str, steps: Iterable[str]) -> tuple[LinkedView, list[str]]:
    """(the view that a query asks for, what was refused and why).

    Args:
        query_text: the text behind the question mark.
        steps: names of the pages.
    """
    query_text = query_text.lstrip("?")
    if len(query_text) > MAX_QUERY:
        return LinkedView(), [
            f"the address has {len(query_text):,} characters, more than {MAX_QUERY:,}, and is "
            "ignored"
        ]
    try:
        pairs = parse_qsl(query_text, max_num_fields=200, errors="replace")
    except ValueError:
        return LinkedView(), ["the address has more than 200 fields, and is ignored"]
    texts_by_key: dict[str, list[str]] = {}
    for key, value in pairs:
        texts_by_key.setdefault(key, []).append(value)
    refused: list[str] = []
    values: dict[str, Any] = {}
    fields = {key: texts[-1] for key, texts in texts_by_key.items()}
    model = fields.get("model", "")
    if model and model not in registry.MODELS:
        refused.append(
            f"model={_short(model)}: a link opens built-in models only "
            f"({', '.join(registry.MODELS)})"
        )
        model = ""
    defaults = registry.sizes(model) if model else {}
    sizes: dict[str, Any] = {}
    for key, value in fields.items():
        try:
            if key in defaults:
                sizes[key] = _size(model, key, defaults[key], value)
            elif key in _READERS:
                values["memory_gib" if key == "memory" else key] = _READERS[key](value)
            elif key not in ("model", "step", "act", *SERVER_FIELDS):
                refused.append(f"{_short(key)}: no such field" + ("" if model else " of a link"))
        except (ValueError, OverflowError, ToastError) as error:
            refused.append(f"{key}={_short(value)}: {error}")
    step = fields.get("step", "")
    if step and step not in steps:
        refused.append(f"step={_short(step)}: there is no such page")
    elif step:
        values["step"] = step
    actions = texts_by_key.get("act", [])
    if len(actions) > MAX_ACTIONS or any(len(action) > MAX_TEXT for action in actions):
        refused.append(
            f"act: must be at most {MAX_ACTIONS} actions of at most {MAX_TEXT} characters"
        )
    else:
        values["actions"] = tuple(actions)
    return LinkedView(model=model, sizes=sizes, **values), refused


def asked(query_text: str) -> list[tuple[str, str]]:
    """The pairs of a query, without those for the server.

    >>> asked("?model=gns&step=graph&state=abc")
    [('model', 'gns'), ('step', 'graph')]
    """
    pairs = parse_qsl(query_text.lstrip("?"), max_num_fields=200, errors="replace")
    return [(key, value) for key, value in pairs if key not in SERVER_FIELDS]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _size(model: str, key: str, default: Any, text: str) -> Any:
    if len(text) > MAX_TEXT:
        raise ValueError(f"has more than {MAX_TEXT} characters")
    choices = registry.choices(model).get(key)
    if choices is not None:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text
    if isinstance(default, bool):
        if text not in ("True", "False"):
            raise ValueError("must be True or False")
        return text == "True"
    most = MOST_REPEATS if key in REPEATS else LARGEST_SIZE
    if isinstance(default, tuple):
        numbers = [_whole(number_text, most) for number_text in text.split(",")]
        if len(numbers) > 16:
            raise ValueError("must be at most 16 numbers")
        return tuple(numbers)
    if isinstance(default, int):
        return _whole(text, most)
    raise ValueError("cannot be set by a link")


def _whole(text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise ValueError(f"must be a whole number from 1 to {most:,}")
    return int(text)


def _mesh(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"has more than {MAX_TEXT} characters")
    return str(make_mesh(text))


def _machine(text: str) -> str:
    if text not in MACHINES:
        raise ValueError("a link can name built-in machines only")
    return text


def _memory(text: str) -> float:
    value = float(text) if len(text) <= 20 else float("nan")
    if not 0 < value < 1e6:
        raise ValueError("must be a number of GiB above 0 and below 1,000,000")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    if len(text) > MAX_NAMES_TEXT or not re.fullmatch(
        r"\d{1,7}(-\d{1,7})?(\.\d{1,7}(-\d{1,7})?)*", text
    ):
        raise ValueError("must be numbers and ranges, as in 3-5.9")
    numbers: list[int] = []
    for range_text in text.split("."):
        start_text, _, end_text = range_text.partition("-")
        start, stop = int(start_text), int(end_text or start_text)
        if stop - start + len(numbers) >= MAX_NAMES:
            raise ValueError(f"has more than {MAX_NAMES:,} numbers")
        numbers += range(start, stop + 1)
    return tuple(numbers)


def _colours(text: str) -> dict[str, str]:
    pairs = [pair.partition("=")[::2] for pair in text.split(",")]
    if len(text) > MAX_NAMES_TEXT or not all(map(str.isidentifier, itertools.chain(*pairs))):
        raise ValueError(f"must be like k=sequence,h=heads, of at most {MAX_NAMES_TEXT} characters")
    return dict(pairs)


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,24}", text):
        raise ValueError("must be a word of a-z, 0-9 and _, of at most 24 characters")
    return text


_READERS: dict[str, Any] = {
    "mesh": _mesh,
    "machine": _machine,
    "memory": _memory,
    "level": _word,
    "program": _word,
    "names": _numbers,
    "conflicts": _numbers,
    "colours": _colours,
}


# -- opening ---------------------------------------------------------------------------------------


def open_view(session: Any, view: LinkedView) -> None:
    """Bring a session to a view.

    If it needs another model, that is loaded first, and the rest applied once it is there.
    """
    if view.model and (view.model, dict(view.sizes)) != (session.loaded.which, _own_sizes(session)):
        session.load(
            view.model,
            dict(view.sizes),
            then=lambda loaded: _apply(loaded, view),
            leads_to=view.step,
        )
    else:
        _apply(session, view)


def _own_sizes(session: Any) -> dict[str, Any]:
    """The sizes that differ from the defaults: those that a link holds."""
    defaults = registry.sizes(session.loaded.which) if session.loaded.which else {}
    return {key: value for key, value in session.loaded.sizes.items() if value != defaults.get(key)}


def _apply(session: Any, view: LinkedView) -> None:
    if session.loaded.analysis is None:
        return
    linked = {"mesh": view.mesh, "machine": view.machine, "memory_gib": view.memory_gib}
    settings = {
        key: value
        for key, value in linked.items()
        if value and value != getattr(session.loaded, key)
    }
    if settings:
        session.set_problem(**settings)
    if view.level:
        session.selection.level = view.level
    if view.program and view.program != session.loaded.digest[: len(view.program)]:
        session.notices.say(
            "The link's selection and plan belong to another program and are left out: a link "
            "carries built-in models only. Load its model and open the link again."
            if not view.model
            else "The link's selection and plan belong to another version of this model and are "
            "left out.",
            "error",
        )
    elif view.program:
        if len(view.program) < 12:
            return
        earlier = session.loaded.analysis.renames
        names = {earlier.get(old, old): new for old, new in view.colours.items()}
        if any(old != new for old, new in names.items()):
            with session.notices.guarded():
                session.rename_colours(names)
        analysis = session.loaded.analysis
        n_names, n_conflicts = analysis.names.n, len(analysis.conflicts)
        session.selection.select(
            tuple(name for name in view.names if name < n_names),
            tuple(key for key in view.conflicts if key < n_conflicts),
        )
        if (
            view.actions
            and view.actions != session.hand.actions
            and session.loaded.problem is not None
        ):
            with session.notices.guarded():
                session.hand.take(list(view.actions))
    if view.step:
        session.step = view.step
