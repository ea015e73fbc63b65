"""Check whether a saved search can be replayed on a problem, by its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toast_lab._version import __version__
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.search.limits import Status
from toast_lab.search.methods import Method, method_named
from toast_lab.search.saved_search import SavedSearch


def about_problem(problem: Problem) -> dict[str, Any]:
    """The facts by which a saved search identifies its problem."""
    return {
        "program": problem.analysis.program.digest(),
        "mesh": str(problem.mesh),
        "machine": problem.machine.name,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "memory_weight": problem.memory_weight,
        "paper_mode": problem.paper_mode,
        "pins": [] if problem.pins is None else problem.pins.texts,
    }


def reopened(
    problem: Problem,
    resume: SavedSearch | PathLike,
    method: str | None = None,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> SavedSearch:
    """A saved search, once it is known to be one of ``problem`` that can be replayed.

    Args:
        problem: the problem to search.
        resume: the saved search, or the path of its file.
        method: the method that it must be of; None: any.
        seed: the seed that it must be of; None: any.
        options: options that must not contradict its own.

    Raises:
        InvalidProblem: the file is no saved search or is damaged; or it is one of another version,
            problem, method, seed or options, or of a search whose process died.
    """
    saved = resume if isinstance(resume, SavedSearch) else SavedSearch.load(resume)
    facts = saved.facts
    if facts.get("status") == Status.CRASHED.name:
        raise InvalidProblem(
            "this search cannot be resumed: its process died, and with it what a replay needs. "
            "Start a new search"
        )
    request = about_problem(problem)
    request |= {"method": method} if method else {}
    request |= {"seed": seed} if seed is not None else {}
    differences = [
        f"{name} {facts[name]!r}, not {value!r}"
        for name, value in request.items()
        if facts[name] != value
    ]
    differences += _other_options(method_named(facts["method"]), facts["options"], options or {})
    if differences:
        raise InvalidProblem(
            f"this search cannot be resumed here: it has {'; '.join(differences)}. {saved.remedy}"
        )
    if facts["version"] != __version__:
        raise InvalidProblem(
            f"this search cannot be resumed: version {facts['version']} of TOAST Lab made it, and "
            f"{__version__} may search otherwise. {saved.remedy}, or use that version"
        )
    return saved


def _other_options(
    method: type[Method], known: Mapping[str, Any], given: Mapping[str, Any]
) -> list[str]:
    """The options given that would make a replay go another way."""
    texts = []
    for name, option in method.options().items():
        # Values that no file can hold have to be given again.
        if name not in given or not option.is_plain(given[name]) or not option.steers:
            continue
        value = known.get(name, option.default)
        if value != given[name]:
            texts.append(f"option {name}={value!r}, not {given[name]!r}")
    return texts
