"""Which arguments, results, values and constraints of a program a person would change together.

One line of code makes a tensor of every layer, and one rule shards the weights of all of them.
Start reading at ``PlacesAlike``.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from typing import NamedTuple

from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.argument_paths import folded_path
from toast_lab.ir.locations import frames
from toast_lab.ir.program import Program
from toast_lab.sharding.plan import Spec
from toast_lab.written.annotated import Edits, interface_constraints

_WORD = re.compile(r"\w+|\*")
#: least share of all arguments that a tree of parameters or moments has
_TREE_SHARE = 0.2
_ALL_FRAMES = 99


class ConstraintSite(NamedTuple):
    """Constraints that one line of the user's code writes."""

    place: str  #: the line and those that call it
    ops: tuple[int, ...]
    spec: Spec


class PlacesAlike:
    """Arguments by role, values by site, constraints by line; of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        paths = program.value_name[: program.n_arguments]
        self.role = [folded_path(path) for path in paths]
        self.words = [_words(role) for role in self.role]
        self.of_argument, self.of_result = interface_constraints(program)
        self.written: dict[int, Spec] = {
            a.value: a.spec for a in program.annotations if a.kind == "argument"
        }

    # -- arguments --------------------------------------------------------------------------------
    @functools.cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        """Arguments by role."""
        grouped: dict[str, list[int]] = defaultdict(list)
        for argument, role in enumerate(self.role):
            grouped[role].append(argument)
        return {role: tuple(arguments) for role, arguments in grouped.items()}

    def alike(self, argument: int) -> tuple[int, ...]:
        """Arguments of the same role and shape."""
        dims = self.program.dims(argument)
        return tuple(
            other for other in self.members[self.role[argument]] if self.program.dims(other) == dims
        )

    @functools.cached_property
    def _trees(self) -> dict[tuple[str, ...], dict[tuple[str, ...], list[int]]]:
        """Large trees of arguments (parameters, moments, not layers), by root and path below it."""
        trees: dict[tuple[str, ...], dict[tuple[str, ...], list[int]]] = {}
        for argument, words in enumerate(self.words):
            for depth in range(1, len(words)):
                tree = trees.setdefault(tuple(words[:depth]), {})
                tree.setdefault(tuple(words[depth:]), []).append(argument)
        least = _TREE_SHARE * self.program.n_arguments
        return {
            root: tree
            for root, tree in trees.items()
            if sum(map(len, tree.values())) >= max(2.0, least)
        }

    @functools.cached_property
    def _siblings(self) -> dict[int, dict[str, int]]:
        """For each argument, the root of each tree with an argument like it, and that argument."""
        program, pairs = self.program, dict[int, dict[str, int]]()
        roots = sorted(self._trees, key=len)
        for first in roots:
            for second in roots:
                mine, theirs = self._trees[first], self._trees[second]
                nested = first[: len(second)] == second or second[: len(first)] == first
                if nested or len(mine.keys() & theirs.keys()) < 0.5 * len(mine):
                    continue
                for tail in mine.keys() & theirs.keys():
                    for argument, other in zip(mine[tail], theirs[tail], strict=False):
                        if program.dims(argument) == program.dims(other):
                            pairs.setdefault(argument, {}).setdefault(".".join(second), other)
        return pairs

    def siblings(self, argument: int) -> tuple[int, ...]:
        """Arguments of other trees with the same path below their roots, and the same shape."""
        return tuple(dict.fromkeys(self._siblings.get(argument, {}).values()))

    def root(self, argument: int) -> str:
        """The root of the tree that the argument belongs to, its whole path if of none."""
        words = self.words[argument]
        for depth in range(1, len(words)):
            if tuple(words[:depth]) in self._trees and self.siblings(argument):
                tree = self._trees[tuple(words[:depth])]
                if all(self.siblings(a) for members in tree.values() for a in members):
                    return ".".join(words[:depth])
        return self.role[argument]

    @functools.cached_property
    def result_of(self) -> dict[int, int]:
        """Number of the result that is an argument's new value: same end of path, same shape."""
        program = self.program
        pairs: dict[int, int] = {}
        for number, (path, value) in enumerate(
            zip(program.output_paths, program.outputs.tolist(), strict=True)
        ):
            words = _words(folded_path(path))
            candidates = {
                argument: _common_end(words, own)
                for argument, own in enumerate(self.words)
                if argument not in pairs and program.dims(argument) == program.dims(value)
            }
            longest = max(candidates.values(), default=0)
            if longest:
                pairs[next(a for a, count in candidates.items() if count == longest)] = number
        return pairs

    def argument_edits(self, specs: dict[int, Spec]) -> Edits:
        """Edits that give arguments, and the results that are their new values, these specs."""
        arguments, results, replaced = {}, {}, {}
        for argument, spec in specs.items():
            arguments[argument] = spec
            if argument in self.of_argument:
                replaced[self.of_argument[argument]] = spec
            number = self.result_of.get(argument)
            if number is None:
                continue
            value = int(self.program.outputs[number])
            given = {a.value: a.spec for a in self.program.annotations if a.kind == "result"}
            if value in given and given[value] == self.written.get(argument, given[value]):
                results[number] = spec
                if number in self.of_result:
                    replaced[self.of_result[number]] = spec
        return Edits(
            arguments=tuple(arguments.items()),
            results=tuple(results.items()),
            replaced=tuple(replaced.items()),
        )

    # -- values -----------------------------------------------------------------------------------
    def is_backward(self, op: int) -> bool:
        """Does the op belong to a backward pass, in which nobody writes constraints?"""
        return "transpose(" in self.program.name_stack[op]

    @functools.cached_property
    def _sites(self) -> dict[tuple[str, str, tuple[int, ...]], list[int]]:
        sites: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
        program = self.program
        for op in program.ops():
            if not self.is_backward(op):
                for value in program.results(op):
                    sites[self._site(value)].append(value)
        return sites

    def _site(self, value: int) -> tuple[str, str, tuple[int, ...]]:
        program = self.program
        op = int(program.value_op[value])
        line = program.locations[int(program.location[op])].split(" < ")[0]
        return line, program.kind[op], program.dims(value)

    def same_line(self, value: int) -> tuple[int, ...]:
        """Values of the forward pass that the same line makes, one for each layer."""
        return tuple(self._sites.get(self._site(value), ()))

    def _own_lines(self, op: int) -> str:
        """The lines of the user's code that lead to an op, innermost first."""
        all_frames = frames(self.program.locations[int(self.program.location[op])])
        own_frames = [frame for frame in all_frames if not frame.in_library] or all_frames
        return " < ".join(frame.text for frame in own_frames)

    # -- constraints ------------------------------------------------------------------------------
    @functools.cached_property
    def constraint_sites(self) -> tuple[ConstraintSite, ...]:
        """The user's constraints by line, without those that only repeat the interface."""
        program = self.program
        repeated = {*self.of_argument.values(), *self.of_result.values()}
        specs = {a.value: a.spec for a in program.annotations if a.kind == "constraint"}
        by_location: dict[tuple[str, Spec], list[int]] = defaultdict(list)
        for op in program.ops():
            if program.kind[op] == CONSTRAINT and op not in repeated:
                spec = specs.get(int(program.results(op)[0]))
                if spec is not None:
                    by_location[self._own_lines(op), spec].append(op)
        # A helper that writes constraints has callers, each of which could be changed alone
        grouped: dict[tuple[int, ...], ConstraintSite] = {}
        for depth in (_ALL_FRAMES, 3, 2, 1):
            together: dict[tuple[str, Spec], list[int]] = defaultdict(list)
            for (location, spec), ops in by_location.items():
                place = " < ".join(location.split(" < ")[:depth])
                together[place, spec].extend(ops)
            for (place, spec), ops in together.items():
                same_rank = {len(program.dims(int(program.results(op)[0]))) for op in ops}
                if len(same_rank) == 1:
                    key = tuple(sorted(ops))
                    grouped.setdefault(key, ConstraintSite(place, key, spec))
        return tuple(grouped.values())


def without(spec: Spec, *axes: str) -> Spec:
    """A spec in which these axes cut no dim."""
    return tuple(tuple(axis for axis in dim if axis not in axes) for dim in spec)


def _words(path: str) -> list[str]:
    """Words of a folded path; a star stands for an index."""
    return _WORD.findall(path)


def _common_end(first: list[str], second: list[str]) -> int:
    """Number of words in which two paths end alike."""
    count = 0
    for mine, theirs in zip(reversed(first), reversed(second), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
