"""Loops whose number of rounds the program does not state, and what they are counted as.

A ``while`` that ends by what it computes (an adaptive solver, a decoder that stops at a token) runs
for a number of rounds that nobody knows before it has run. It counts as one round unless the user
gives a number. Start reading at ``with_rounds``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab import checks
from toast_lab.errors import InvalidInput, did_you_mean, join_offenders
from toast_lab.ir.program import Program, Region
from toast_lab.text import counted, line_text

#: A number for all loops of unknown rounds, or numbers by source line ("solve.py:12").
Rounds = float | Mapping[str, float]


HOW_TO_GIVE = "give them with model.with_rounds(...) or --loop-rounds"


class UnknownLoop(NamedTuple):
    """A loop whose rounds the program does not state."""

    #: index of the ``shard_map`` whose body it is in, -1: none; index of its body among the regions
    body: tuple[int, int]
    where: str  #: the user's source line
    rounds: float  #: what it is counted as


def unknown_loops(program: Program) -> list[UnknownLoop]:
    """The loops whose rounds are unknown, in program order, outer ones first.

    Those inside shard_maps come last.
    """
    own = [
        UnknownLoop(
            body=(-1, index),
            where=program.where(min(program.regions[region.parent].begin, program.n_ops - 1)),
            rounds=region.times,
        )
        for index, region in enumerate(program.regions)
        if region.kind == "body" and not region.known
    ]
    inside = [
        loop._replace(body=(position, loop.body[1]))
        for position, shard_map in enumerate(program.shard_maps)
        for loop in unknown_loops(shard_map.body)
    ]
    return own + inside


def with_rounds(program: Program, rounds: Rounds) -> Program:
    """The program with these rounds of its loops whose rounds are unknown.

    Args:
        program: the program.
        rounds: a number for all of them, or numbers by source line; loops of other lines keep
            theirs.

    Raises:
        InvalidInput: a number below 0 or none at all, a line without such a loop, or the program
            has no loop of unknown rounds (all offenders are listed).
    """
    loops = unknown_loops(program)
    if not loops:
        raise InvalidInput(
            f"{program.name} has no loop of unknown rounds, so none can be given: leave them out"
        )
    by_line = rounds if isinstance(rounds, Mapping) else dict.fromkeys(_lines(loops), rounds)
    offences = []
    for line, count in by_line.items():
        if offence := checks.number_offence(count, 0.0):
            offences.append(f"rounds at {line}: {offence}")
        if not any(_is_at(loop, line) for loop in loops):
            hint = did_you_mean(line, _lines(loops))
            offences.append(f"no loop of unknown rounds at {line}{hint}; there are some at:")
            offences += [f"  {other}" for other in _lines(loops)]
    if offences:
        raise InvalidInput("these rounds are wrong:\n" + join_offenders(offences))
    return counting(program, rounds)


def counting(program: Program, rounds: Rounds) -> Program:
    """``with_rounds`` for another program of the same function: what it lacks is left out."""
    loops = unknown_loops(program)
    by_line = rounds if isinstance(rounds, Mapping) else dict.fromkeys(_lines(loops), rounds)
    counts = {
        loop.body: float(count)
        for line, count in by_line.items()
        for loop in loops
        if _is_at(loop, line)
    }
    return _counted(program, counts) if counts else program


def with_rounds_of(program: Program, other: Program) -> Program:
    """The program with the rounds that ``other`` counts, if their loops are the same."""
    counts = {loop.body: loop.rounds for loop in unknown_loops(other)}
    same_loops = [loop.body for loop in unknown_loops(program)] == [*counts]
    return _counted(program, counts) if counts and same_loops else program


def rounds_notes(program: Program) -> tuple[str, ...]:
    """A sentence for each source line and number of rounds that the program does not state."""
    groups = Counter((loop.where, loop.rounds) for loop in unknown_loops(program))
    return tuple(
        f"the rounds of {'the loop' if loops == 1 else counted(loops, 'loop')} at "
        f"{line_text(where)} are not known and counted as {count:g}"
        # Nobody but the user makes it another number than 1
        + (f": {HOW_TO_GIVE}" if count == 1 else ", the number that was given")
        for (where, count), loops in groups.items()
    )


def recounted_notes(notes: Sequence[str], before: Program, program: Program) -> tuple[str, ...]:
    """Notes on the program ``before`` as notes on ``program``, which counts other rounds."""
    replaced = rounds_notes(before)
    return (*(note for note in notes if note not in replaced), *rounds_notes(program))


def op_trips(regions: Sequence[Region], region_of_op: np.ndarray) -> np.ndarray:
    """[O] how often each op runs, by its innermost region (-1: outside all)."""
    # Outer regions come first; the last entry is for ops outside all regions.
    trips = np.ones(len(regions) + 1)
    for i, region in enumerate(regions):
        trips[i] = trips[region.parent] * region.times
    return trips[region_of_op]


def _counted(program: Program, counts: Mapping[tuple[int, int], float]) -> Program:
    """The program whose loops run as often as ``counts`` says."""
    shard_maps, flops = [], program.flops.copy()
    for position, shard_map in enumerate(program.shard_maps):
        inside = {(-1, body): count for (where, body), count in counts.items() if where == position}
        if inside:
            shard_map = shard_map._replace(body=_counted(shard_map.body, inside))
            flops[shard_map.op] = shard_map.flops
        shard_maps.append(shard_map)
    loop_rounds = {
        program.regions[body].parent: count for (where, body), count in counts.items() if where < 0
    }
    regions = []
    for region in program.regions:
        count = loop_rounds.get(region.parent) if region.kind in ("body", "cond") else None
        if count is not None:
            region = region._replace(times=count + (region.kind == "cond"))
        regions.append(region)
    trips = op_trips(regions, program.region)
    return dataclasses.replace(
        program, regions=tuple(regions), trips=trips, shard_maps=tuple(shard_maps), flops=flops
    )


def _lines(loops: Sequence[UnknownLoop]) -> list[str]:
    return [*dict.fromkeys(line_text(loop.where) for loop in loops)]


def _is_at(loop: UnknownLoop, line: str) -> bool:
    return line in (loop.where, line_text(loop.where))
