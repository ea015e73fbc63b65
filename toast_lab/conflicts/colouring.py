"""``Colouring``: the colours, conflicts and groups of a program, before they have names.

``Analysis`` is a colouring whose colours are named.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts import compatibility, dimension_graph, repeated
from toast_lab.conflicts.given_names import GivenNames, given_names
from toast_lab.ir.model import Model
from toast_lab.ir.program import Program
from toast_lab.nda.names import Names
from toast_lab.ragged import Ragged, row_lists


class Colour(NamedTuple):
    """Names that should be sharded alike."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    name: str
    group: int
    names: np.ndarray  #: the dimension names of this colour
    size: int  #: the largest of their sizes (the whole dim; slices of it may be smaller)
    shardable: bool  #: at least one name may be sharded


class Conflict(NamedTuple):
    """Two names of one colour that meet on one tensor.

    ``sides`` holds the names on side 0 and side 1 of its compatibility set.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    sides: tuple[int, int]
    colour: int
    set: int
    places: tuple[dimension_graph.ConflictPlace, ...]


class CompatibilitySet(NamedTuple):
    """Conflicts resolved by one bit.

    Sets with the same ``resolution`` are tied (repeated layers).
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    colour: int
    conflicts: tuple[int, ...]
    resolution: int  #: resolution class
    flipped: bool  #: side 0 of the class is side 1 of this set


class ColourGroup(NamedTuple):
    """Colours that an action shards together, and the resolution classes that it meets."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    name: str
    colours: tuple[int, ...]
    arguments: tuple[int, ...]  #: arguments that carry one of the colours
    resolutions: tuple[int, ...]
    n_names: int  #: names with size above 1
    size: int
    shardable: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Colouring:
    """Colours, conflicts, compatibility sets and groups of one program.

    Arrays are indexed by name (``N``) or conflict (``K``).
    """

    model: Model
    names: Names
    colour: np.ndarray  #: [N] colour of each name
    group: np.ndarray  #: [colours] colour group
    pairs: tuple[tuple[int, int], ...]  #: [K] conflicts, smaller name first
    places: tuple[tuple[dimension_graph.ConflictPlace, ...], ...]  #: [K]
    sets: compatibility.Sets
    ties: repeated.Ties
    argument_groups: tuple[tuple[int, ...], ...]
    #: colour names that the user chose, by the names that ``analyse`` gave
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    phases: str = "joined"  #: as ``analyse`` was asked

    @property
    def program(self) -> Program:
        """The program of the model."""
        return self.model.program

    @functools.cached_property
    def given_names(self) -> GivenNames:
        """The words that the user wrote for colours."""
        return given_names(self.program, self.colour, self.model)

    @functools.cached_property
    def colour_name(self) -> tuple[str, ...]:
        """[colours] name of each colour; numbers only, as long as none is named."""
        return tuple(f"colour{index}" for index in range(int(self.colour.max(initial=-1)) + 1))

    @functools.cached_property
    def group_name(self) -> tuple[str, ...]:
        """[groups] name of each colour group: that of its first colour."""
        return tuple(
            self.colour_name[first] for first in np.unique(self.group, return_index=True)[1]
        )

    @functools.cached_property
    def colours(self) -> tuple[Colour, ...]:
        """All colours, in program order."""
        count = len(self.colour_name)
        members = Ragged.by_key(self.colour, count)
        size = np.zeros(count, np.int64)
        np.maximum.at(size, self.colour, self.names.size)
        shardable = np.zeros(count, bool)
        shardable[self.colour[self.names.shardable]] = True
        columns = self.colour_name, self.group.tolist(), size.tolist(), shardable.tolist()
        return tuple(
            Colour(
                index=index,
                name=name,
                group=group,
                names=members.row(index),
                size=largest,
                shardable=is_shardable,
            )
            for index, (name, group, largest, is_shardable) in enumerate(zip(*columns, strict=True))
        )

    @functools.cached_property
    def conflicts(self) -> tuple[Conflict, ...]:
        """All conflicts, in program order."""
        return tuple(
            Conflict(
                index=index,
                sides=pair[::-1] if self.sets.flipped[index] else pair,
                colour=int(self.colour[pair[0]]),
                set=int(self.sets.set_of[index]),
                places=self.places[index],
            )
            for index, pair in enumerate(self.pairs)
        )

    @functools.cached_property
    def compatibility_sets(self) -> tuple[CompatibilitySet, ...]:
        """All compatibility sets, in the order of their first conflict."""
        members = Ragged.by_key(self.sets.set_of, len(self.ties.class_of))
        return tuple(
            CompatibilitySet(
                index=index,
                colour=self.conflicts[members.row(index)[0]].colour,
                conflicts=tuple(members.row(index).tolist()),
                resolution=int(resolution),
                flipped=bool(self.ties.flipped[index]),
            )
            for index, resolution in enumerate(self.ties.class_of)
        )

    @functools.cached_property
    def groups(self) -> tuple[ColourGroup, ...]:
        """All colour groups; an action shards one of them."""
        group_count = len(self.group_name)
        group_of = self.group[self.colour]
        arguments: dict[int, dict[int, None]] = defaultdict(dict)
        for argument in range(self.program.n_arguments):
            for group in group_of[self.program.def_names(argument)].tolist():
                arguments[group][argument] = None
        resolutions: dict[int, dict[int, None]] = defaultdict(dict)
        for compatible in self.compatibility_sets:
            resolutions[int(self.group[compatible.colour])][compatible.resolution] = None
        members = Ragged.by_key(self.group, group_count)
        colours = row_lists(members.ptr, members.flat)
        n_names = np.bincount(group_of[self.names.size > 1], minlength=group_count).tolist()
        return tuple(
            ColourGroup(
                index=index,
                name=name,
                colours=tuple(colours[index]),
                arguments=tuple(arguments[index]),
                resolutions=tuple(resolutions[index]),
                n_names=n_names[index],
                size=max(self.colours[colour].size for colour in colours[index]),
                shardable=any(self.colours[colour].shardable for colour in colours[index]),
            )
            for index, name in enumerate(self.group_name)
        )
