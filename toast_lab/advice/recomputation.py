"""A search that also chooses what the layers of a model keep for the backward pass.

Each choice makes another program of the same function (``frontends.recomputing``), which is
searched as any other is: its price has the second forward pass with its collectives, and its peak
lacks what is not kept. All choices are searched for a share of the budget, and the best for the
rest of it.

Reference: TOAST has no recomputation. Its section 4.5 penalises plans over the memory limit; here a
plan that fits ranks before one that does not, and then the faster one does, since C(s) is relative
to the unsharded time of each program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.advice.priced import priced_text, rank
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.frontends.checkpoints import POLICIES
from toast_lab.frontends.recomputing import Layer, layers_of, recomputed
from toast_lab.search.contract import SearchResult
from toast_lab.search.limits import Budget

AS_WRITTEN = "as written"
FIRST_SHARE = 0.5  #: of the budget, for all choices; the rest is for the best of them


class KeptChoice(NamedTuple):
    """What layers keep, and what the best plan found with it costs.

    Attributes:
        name: ``"layer keeps its inputs"``, or that the program is as its user wrote it.
        policies: name of a policy by the ``where`` of a layer; empty for the program as written.
        time_s: of a step.
        peak_bytes: of a device.
        fits: is that within the memory limit?
    """

    name: str
    policies: Mapping[str, str]
    time_s: float
    peak_bytes: float
    fits: bool

    def __str__(self) -> str:
        return priced_text(self.name, self)


def choices_of(
    problem: Problem, wanted: bool | str | Mapping[str, str]
) -> dict[str, tuple[Mapping[str, str], Problem]]:
    """The programs to search: (policies, problem) by name.

    Args:
        problem: the program as it is written, with its mesh, machine, limit and pins.
        wanted: True for every policy, each for all layers alike; the name of a policy for all
            layers; or policies by the name of a layer.

    Raises:
        InvalidProblem: no layer of this name, no such policy, or nothing to choose.
        FrontendError: no choice can be traced (the reason of each is said).
    """
    model = problem.analysis.model
    layers = layers_of(model)
    if not layers:
        raise InvalidProblem(
            f"{model.name} has no layers that could be recomputed: no function of its own files is "
            "called several times, or in a loop, by code that is differentiated"
        )
    chosen: dict[str, tuple[Mapping[str, str], Problem]] = {}
    if wanted is True:
        chosen[AS_WRITTEN] = {}, problem
    digests = {problem.analysis.program.digest()} if chosen else set()
    offenders = []
    for policies in _policies(layers, wanted):
        try:
            own = problem_of(problem, policies)
        except Exception as error:
            offenders.append(f"{_name(layers, policies)}: {error}")
            continue
        digest = own.analysis.program.digest()
        if digest not in digests:
            digests.add(digest)
            chosen[_name(layers, policies)] = policies, own
    if not chosen or (offenders and len(chosen) < 2):
        raise InvalidProblem(f"nothing can be recomputed:\n{join_offenders(offenders)}")
    return chosen


def problem_of(problem: Problem, policies: Mapping[str, str]) -> Problem:
    """``problem`` with what layers keep for the backward pass, without its price list.

    Raises what ``recomputed`` raises, and InvalidProblem if its pins cannot be kept.
    """
    return problem.of_program(analyse(recomputed(problem.analysis.model, policies)))


def _policies(
    layers: Sequence[Layer], wanted: bool | str | Mapping[str, str]
) -> list[Mapping[str, str]]:
    if isinstance(wanted, Mapping):
        known = {layer.name: layer.where for layer in layers}
        if unknown := [name for name in wanted if name not in known]:
            raise InvalidProblem(
                f"no layer is called {', '.join(map(repr, unknown))}; layers: {', '.join(known)}"
            )
        return [{known[name]: policy for name, policy in wanted.items()}]
    names = POLICIES if wanted is True else [wanted]
    return [{layer.where: str(policy) for layer in layers} for policy in names]


def _name(layers: Sequence[Layer], policies: Mapping[str, str]) -> str:
    return ", ".join(
        f"{layer.name} {POLICIES.get(policies[layer.where], policies[layer.where])}"
        for layer in layers
        if layer.where in policies
    )


def search_choices(
    problem: Problem,
    wanted: bool | str | Mapping[str, str],
    budget: Budget,
    search_once: Callable[[Problem, Budget], SearchResult[Any]],
) -> tuple[SearchResult[Any], tuple[KeptChoice, ...]]:
    """The best result over all choices, and what each came to, the best first.

    Args:
        problem: as for ``choices_of``.
        wanted: as for ``choices_of``.
        budget: of all searches together.
        search_once: searches one problem.

    Raises what ``choices_of`` and ``search_once`` raise.
    """
    choices = choices_of(problem, wanted)
    if len(choices) == 1:
        ((name, (policies, own)),) = choices.items()
        result = search_once(own, budget)
        return result, (_choice(name, policies, result.cost),)
    part = budget.part(FIRST_SHARE / len(choices))
    results = {name: search_once(own, part) for name, (_, own) in choices.items()}
    best = min(results, key=lambda name: rank(results[name].cost))
    longer = search_once(choices[best][1], budget.part(1.0 - FIRST_SHARE))
    results[best] = min(longer, results[best], key=lambda result: rank(result.cost))
    rows = [_choice(name, choices[name][0], result.cost) for name, result in results.items()]
    rows.sort(key=rank)
    sentence = f"Of what layers may keep for the backward pass: {'; '.join(map(str, rows))}."
    result = results[best]
    return dataclasses.replace(result, message=f"{result.message} {sentence}"), tuple(rows)


def _choice(name: str, policies: Mapping[str, str], cost: Cost) -> KeptChoice:
    return KeptChoice(
        name, policies, time_s=cost.time_s, peak_bytes=cost.peak_bytes, fits=cost.fits
    )
