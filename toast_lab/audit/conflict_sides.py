"""The sharding conflict behind a finding: its colour, the side taken, and what the other costs.

Start reading at ``ConflictSides``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from toast_lab.audit.detecting import tensor_text
from toast_lab.audit.trials import Outcome
from toast_lab.cost.problem import Problem
from toast_lab.explain.board import Board, conflicts
from toast_lab.text import line_text

#: Programs with more resolutions than this are not priced side by side.
MOST_RESOLUTIONS = 64


class ConflictSides:
    """Tells which side of a conflict a program takes, and where."""

    def __init__(self, problem: Problem, written: Outcome) -> None:
        self.problem, self.written = problem, written
        self.analysis = problem.analysis

    @functools.cached_property
    def _board(self) -> Board | None:
        resolutions = {s.resolution for s in self.analysis.compatibility_sets}
        return conflicts(self.problem) if len(resolutions) <= MOST_RESOLUTIONS else None

    def behind(self, values: Iterable[int], axes: Iterable[str]) -> str:
        """The first conflict on these tensors, as a sentence; "" if there is none."""
        tensors = {*values}
        for conflict in self.analysis.conflicts:
            place = next((p for p in conflict.places if p.value in tensors), None)
            if place is None:
                continue
            settled = self.analysis.compatibility_sets[conflict.set]
            program = self.analysis.program
            colour = self.analysis.colour_name[settled.colour]
            sentence = (
                f"dims {place.first_dim} and {place.second_dim} of "
                f"{tensor_text(program, place.value)} both have colour {colour}"
            )
            taken = self._sides(settled.index, axes)
            sides = [
                f"side {side} at {', '.join(lines[:3])}" for side, lines in sorted(taken.items())
            ]
            if len(taken) > 1:
                sentence += f"; the code takes two sides: {' and '.join(sides)}"
            elif sides:
                sentence += f"; the code takes {sides[0]}"
            return sentence + self._prices(settled.index, axes)
        return ""

    def _sides(self, index: int, axes: Iterable[str]) -> dict[int, list[str]]:
        """The lines at which each side of a compatibility set is sharded over one of ``axes``."""
        program, plan = self.analysis.program, self.written.meaning.plan
        settled = self.analysis.compatibility_sets[index]
        taken: dict[int, list[str]] = {}
        for number in settled.conflicts:
            conflict = self.analysis.conflicts[number]
            for place in conflict.places:
                for axis in axes:
                    dim = int(plan.value_dim[place.value, plan.mesh.axes.index(axis)])
                    if dim not in (place.first_dim, place.second_dim):
                        continue
                    names = (
                        program.def_names(place.value)
                        if place.use < 0
                        else program.use_names(place.use)
                    )
                    side = int(names[dim] != conflict.sides[settled.flipped])
                    line = line_text(program.where(place.op(program)))
                    lines = taken.setdefault(side, [])
                    if line not in lines:
                        lines.append(line)
        return taken

    def _prices(self, index: int, axes: Iterable[str]) -> str:
        """What either side costs alone, on the first of the axes that allows both."""
        if self._board is None:
            return ""
        dispute = next((d for d in self._board.disputes if index in d.sets), None)
        for axis in axes:
            options = {
                option.bit: option
                for option in (dispute.options if dispute is not None else ())
                if option.axis == axis and option.possible
            }
            if len(options) == 2:
                return (
                    "; alone on "
                    + axis
                    + ", "
                    + ", ".join(
                        f"side {bit} takes {option.time_s * 1e3:.3f} ms ({option.action})"
                        for bit, option in sorted(options.items())
                    )
                )
        return ""
