"""Sizes that no axis of the mesh divides, padded to ones that it does, and a search of what to pad.

A padded program is another program of the same function (``frontends.padding``), which is analysed,
priced and searched as any other is: its price has the work on the padding and the masks.
``search_padding`` searches the program as it is written, then with each colour padded that the
divisibility report names, then with all of those that helped, and keeps the quickest.

Reference: TOAST splits a dim only where the mesh divides its size (section 4.2).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from toast_lab import checks
from toast_lab.advice.priced import priced_text, rank, state_after
from toast_lab.advice.recomputation import AS_WRITTEN
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.conflicts.colouring import ColourGroup
from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidProblem, ToastError, did_you_mean, join_offenders
from toast_lab.frontends.padded_models import padded_model
from toast_lab.ir.model import Model
from toast_lab.search.contract import SearchResult
from toast_lab.search.limits import Budget
from toast_lab.sharding.divisibility import DimRow
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan

FIRST_SHARE = 0.6  #: of the budget, for the program as written and each padding by itself
LEAST_BYTES_SHARE = 0.005  #: of all values; a colour on fewer bytes is not worth a search
MOST_COLOURS = 4  #: that a search tries to pad

#: padded size by the name of a colour
Sizes = Mapping[str, int]


class PaddedChoice(NamedTuple):
    """What is padded, and what the best plan found with it costs.

    Attributes:
        name: ``"vocabulary 50257 to 50304"``, or that the program is as its user wrote it.
        sizes: padded size by the name of a colour, as ``tl.padded`` takes them; empty for the
            program as written.
        time_s: of a step.
        peak_bytes: of a device.
        fits: is that within the memory limit?
    """

    name: str
    sizes: Sizes
    time_s: float
    peak_bytes: float
    fits: bool

    def __str__(self) -> str:
        return priced_text(self.name, self)


@overload
def padded(subject: Model, sizes: Sizes) -> Model: ...
@overload
def padded(subject: Problem, sizes: Sizes) -> Problem: ...
def padded(subject: Model | Problem, sizes: Sizes) -> Model | Problem:
    """A model or a problem with dims padded to sizes that the axes of a mesh divide.

    The model's function takes padded arguments (``tl.padded_arguments``) and gives padded results
    (``tl.cut_results``); what it computes is the same.

    Args:
        subject: what to pad; its function has to be known.
        sizes: padded size by the name of a colour. Of the colour's sizes, the largest below it is
            padded, with all that is made of it: 25 heads to 32 means 1600 columns to 2048.

    Raises:
        InvalidProblem: no colour of a name, no size below the padded one, or no argument has the
            colour (all are listed); or the function is not known.
        FrontendError: the function cannot be traced again.

    Examples:
        >>> import jax, toast_lab as tl
        >>> table, ids = jax.ShapeDtypeStruct((50, 8), "float32"), jax.numpy.zeros(16, int)
        >>> model = tl.from_jax(lambda table, ids: table[ids] @ table.T, table, ids, name="tied")
        >>> own = tl.padded(model, {"vocab": 52})
        >>> own.program.dims(0), str(own.padding)
        ((52, 8), 'padded: vocab 50 to 52')
    """
    if isinstance(subject, Model):
        return _padded_model(analyse(subject), sizes)
    return subject.of_program(analyse(_padded_model(subject.analysis, sizes)))


def _padded_model(analysis: Analysis, sizes: Sizes) -> Model:
    starts, words, offenders = [], [], []
    for name, padded_size in sizes.items():
        padded_size = checks.whole(f"the padded size of {name}", padded_size, 2)
        group = next((group for group in analysis.groups if group.name == name), None)
        if group is None:
            names = [group.name for group in analysis.groups if group.shardable]
            offenders.append(f"no colour is called {name!r}{did_you_mean(name, names)}")
            continue
        below = [size for size in _sizes_of(analysis, group) if size < padded_size]
        own = [(argument, dim) for argument, dim in _argument_dims(analysis, group)]
        if not below or not own:
            of_colour = ", ".join(map(str, _sizes_of(analysis, group)))
            reason = "no argument has it" if below else f"its sizes are {of_colour}"
            offenders.append(f"{name} cannot be padded to {padded_size}: {reason}")
            continue
        starts += [(argument, dim, below[-1], padded_size) for argument, dim in own]
        words.append(f"{name} {below[-1]} to {padded_size}")
    if offenders:
        raise InvalidProblem(f"these cannot be padded:\n{join_offenders(offenders)}")
    return padded_model(analysis.model, starts, words=words)


def _sizes_of(analysis: Analysis, group: ColourGroup) -> list[int]:
    """The sizes that dims of a colour group have, the smallest first."""
    names = analysis.names
    is_own = (analysis.group[analysis.colour] == group.index) & names.shardable
    return [int(size) for size in np.unique(names.size[is_own]) if size > 1]


def _argument_dims(analysis: Analysis, group: ColourGroup) -> Iterator[tuple[int, int]]:
    program = analysis.program
    for argument in range(program.n_arguments):
        for dim, name in enumerate(program.def_names(argument)):
            if (
                analysis.group[analysis.colour[name]] == group.index
                and program.dims(argument)[dim] > 1
            ):
                yield argument, dim


# -- searching -------------------------------------------------------------------------------------
def candidates(problem: Problem) -> list[dict[str, int]]:
    """What the divisibility report suggests to pad, each by itself, most bytes first.

    Each size is padded for all axes together and for each axis that does not divide it.
    """
    report, mesh = problem.divisibility(), problem.mesh
    rows: dict[str, DimRow] = {}
    for row in (*report.dims, *report.partly):
        if row.bytes_share >= LEAST_BYTES_SHARE:
            rows.setdefault(row.colour, row)
    largest = sorted(rows.values(), key=lambda row: -row.bytes_share)[:MOST_COLOURS]
    return [{row.colour: size} for row in largest for size in _padded_sizes(row, mesh)]


def _padded_sizes(row: DimRow, mesh: Mesh) -> list[int]:
    """Multiples of axes that do not divide a size, alone and together, at most half larger."""
    axes = [size for size in mesh.sizes if size > 1]
    ways = {
        math.prod(chosen)
        for count in range(1, len(axes) + 1)
        for chosen in itertools.combinations(axes, count)
    }
    sizes = {-(-row.size // way) * way for way in ways if row.size % way}
    return sorted(size for size in sizes if size <= 1.5 * row.size)


def with_padding(
    problem: Problem, actions: Sequence[str]
) -> Iterator[tuple[Sizes, str, Problem, list[str]]]:
    """What actions may become with one colour padded: (sizes, what changes, problem, actions).

    Each colour that the divisibility report names is padded for all axes, and its own action is
    taken after the others on each axis.
    """
    largest = {colour: size for sizes in candidates(problem) for colour, size in sizes.items()}
    for colour, size in largest.items():
        own = padded(problem, {colour: size})
        for axis in problem.mesh.axes:
            further = f"{_colour_in(problem, own, colour)}->{axis}"
            yield {colour: size}, f"{_name(own)}, {further}", own, [*actions, further]


def padding_prices(problem: Problem, plan: ShardingPlan) -> tuple[PaddedChoice, ...]:
    """What a plan would cost with one size padded and then split, the best first.

    Every size that the divisibility report names is padded, and split on each axis after what the
    plan does already. A search with padding may find better.

    Raises:
        InvalidProblem: the program's function is not known, so that nothing can be padded.
        FrontendError: the function cannot be traced again.

    Examples:
        >>> import jax, toast_lab as tl
        >>> table, ids = jax.ShapeDtypeStruct((50, 4096), "float32"), jax.numpy.zeros(64, int)
        >>> model = tl.from_jax(lambda table, ids: table[ids] @ table.T, table, ids, name="tied")
        >>> problem = tl.Problem(tl.analyse(model), {"x": 4})
        >>> [row.name for row in tl.padding_prices(problem, tl.replicated(problem))]
        ['vocab 50 to 52, vocab->x']
    """
    plan.check_is_of(problem.analysis.program, problem.mesh)
    rows = []
    for sizes, name, own, actions in with_padding(problem, plan.actions):
        reached = state_after(own, actions)
        if reached is not None:
            quick = own.pricer().quick(reached[0])
            rows.append(PaddedChoice(name, sizes, quick.time_s, quick.peak_bytes, fits=quick.fits))
    return tuple(sorted(rows, key=rank))


def _colour_in(problem: Problem, own: Problem, colour: str) -> str:
    """The name that a colour has in a padded program, where names come from use, too."""
    analysis, other = problem.analysis, own.analysis
    group = next(group for group in analysis.groups if group.name == colour)
    dims = _argument_dims(analysis, group)
    names = [
        other.groups[other.group[other.colour[other.program.def_names(argument)[dim]]]].name
        for argument, dim in dims
    ]
    return colour if colour in other.group_name or not names else names[0]


def search_padding(
    problem: Problem,
    wanted: bool | Sizes,
    budget: Budget,
    search_once: Callable[[Problem, Budget], SearchResult[Any]],
) -> tuple[SearchResult[Any], tuple[PaddedChoice, ...]]:
    """The best result over what may be padded, and what each came to, the best first.

    Args:
        problem: the program as it is written, with its mesh, machine, limit and pins.
        wanted: True tries what ``candidates`` gives; sizes fix what is padded.
        budget: of all searches together.
        search_once: searches one problem.

    Raises what ``padded`` and ``search_once`` raise; a candidate that cannot be padded is left out,
    and the message says so.
    """
    if isinstance(wanted, Mapping):
        own = padded(problem, wanted)
        result = search_once(own, budget)
        return result, (_choice(_name(own), wanted, result.cost),)
    tried = candidates(problem)
    part = budget.part(FIRST_SHARE / (len(tried) + 1))
    results: dict[str, tuple[Sizes, Problem, SearchResult[Any]]] = {}
    results[AS_WRITTEN] = {}, problem, search_once(problem, part)
    left_out = []

    def add(sizes: Sizes, own_budget: Budget) -> None:
        try:
            own = padded(problem, sizes)
        except ToastError as error:
            left_out.append(f"{', '.join(sizes)}: {str(error).splitlines()[-1]}")
            return
        results.setdefault(_name(own), (sizes, own, search_once(own, own_budget)))

    for sizes in tried:
        add(sizes, part)
    rest = budget.part(1.0 - FIRST_SHARE)
    helpful = _helpful(results)
    if len(helpful) > 1:
        rest = budget.part((1.0 - FIRST_SHARE) / 2.0)
        add(helpful, rest)
    best = min(results, key=lambda name: rank(results[name][2].cost))
    chosen, own, first = results[best]
    longer = search_once(own, rest)
    results[best] = chosen, own, min(longer, first, key=lambda result: rank(result.cost))
    rows = [_choice(name, sizes, result.cost) for name, (sizes, _, result) in results.items()]
    rows.sort(key=rank)
    sentence = f"Of what may be padded: {'; '.join(map(str, rows))}."
    if left_out:
        sentence += f" Not tried: {'; '.join(left_out)}."
    result = results[best][2]
    return dataclasses.replace(result, message=f"{result.message} {sentence}"), tuple(rows)


def _helpful(results: Mapping[str, tuple[Sizes, Problem, SearchResult[Any]]]) -> dict[str, int]:
    """Of each colour that helps by itself the padded size that helps most."""
    as_written = rank(results[AS_WRITTEN][2].cost)
    better = [
        (rank(result.cost), sizes)
        for sizes, _, result in results.values()
        if sizes and rank(result.cost) < as_written
    ]
    helpful: dict[str, int] = {}
    for _, sizes in sorted(better, key=lambda row: row[0]):
        for colour, size in sizes.items():
            helpful.setdefault(colour, size)
    return helpful


def _name(problem: Problem) -> str:
    padding = problem.analysis.model.padding
    assert padding is not None
    return ", ".join(padding.words)


def _choice(name: str, sizes: Sizes, cost: Cost) -> PaddedChoice:
    return PaddedChoice(name, sizes, time_s=cost.time_s, peak_bytes=cost.peak_bytes, fits=cost.fits)
