"""Names for colours, which people read in every text and write in actions.

Each colour group is named by the first of these that it has:

* names that the user gave to dims of arguments (``dim_names``), or that flax put on them;
* sizes that the model was made with (``d_model=512``, or defaults of the user's ``make``);
* the part that it plays (``colour_roles``), in the word that people use: ``batch``, ``sequence``,
  ``d_model``, ``hidden``. The group on most ops has the word alone, others have the argument that
  makes it before it: ``policy_hidden``. Of several hidden layers or channels that are not alike,
  each has its argument;
* letters of the einsums that its dims go through;
* the argument that carries it: ``w1_in`` and ``w1_out`` for the dims of a weight that products sum
  over and make, ``conv1_kernel_height`` for those of its window, ``table_dim1`` for other dims, the
  argument alone for a vector;
* the variable that carries it, or the function or op that makes it: ``scores_dim1``.

No name depends on a size or on the number of layers. An argument whose word is taken gets the
words before it in its path (``layers1_mlp_up_hidden``). Further colours of a group, those of later
layers, have its name and a number.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from toast_lab.conflicts.argument_words import distinct_text, last_key, module_words
from toast_lab.conflicts.colour_roles import ColourRoles, PlayedRole, roles
from toast_lab.conflicts.colouring import ColourGroup, Colouring
from toast_lab.conflicts.data_arguments import argument_roots
from toast_lab.conflicts.uses_of_colours import products_by_colour
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import CONVOLUTION, DOT, REDUCTION, Program

_WINDOWS = {1: ("kernel",), 2: ("kernel_height", "kernel_width")}
_WINDOWS[3] = ("kernel_depth", "kernel_height", "kernel_width")
MOST_VALUES = 20  #: of a colour that are looked at for a name
_SCOPE = re.compile(r"[A-Za-z]\w*")


def name_colours(colouring: Colouring) -> tuple[str, ...]:
    """[colours] name of each colour, all different."""
    naming = _Naming(colouring)
    naming.take_given_names()
    if any(_is_shown(group) and not naming.is_named(group) for group in colouring.groups):
        naming.take_roles(roles(colouring))
    naming.take_the_rest()
    return tuple(naming.name)


def _needs_argument(word: str, group: ColourGroup, rivals: list[ColourGroup]) -> bool:
    """Is a role's word alone too little for a group, since others that have it are its equals?"""
    repeated = [rival for rival in rivals if len(rival.colours) > 1]
    stands_out = rivals == [group] or repeated == [group]
    return word in ("hidden", "channels") and not stands_out


def _is_shown(group: ColourGroup) -> bool:
    return group.shardable and group.n_names > 1


class _Naming:
    """Names given so far."""

    def __init__(self, colouring: Colouring) -> None:
        self.colouring, self.program = colouring, colouring.program
        self.name = [""] * len(colouring.colours)
        self._data: frozenset[int] = frozenset()  # arguments, once roles are known
        self._taken: dict[str, int] = {}  # name -> how many numbers were tried for it

    def is_named(self, group: ColourGroup) -> bool:
        """Does the first colour of a group have a name?"""
        return bool(self.name[group.colours[0]])

    def _numbered(self, base: str) -> str:
        candidate, tried = base, self._taken.get(base, 0)
        while candidate in self._taken:
            tried += 1
            candidate = f"{base}_{tried}"
        self._taken[base] = tried
        self._taken.setdefault(candidate, 0)
        return candidate

    def _name_group(self, group: ColourGroup, name: str) -> None:
        """Name the unnamed colours of a group; one whose name is taken gets a number."""
        for colour in group.colours:
            if not self.name[colour]:
                self.name[colour] = self._numbered(name)

    def _free(self, candidates: Iterable[str]) -> str:
        """The first candidate that is not taken, empty if all are."""
        return next((candidate for candidate in candidates if candidate not in self._taken), "")

    # -- the user's words --------------------------------------------------------------------------

    def take_given_names(self) -> None:
        """Take the user's names of dims and of sizes. One that is taken gets a number."""
        given = self.colouring.given_names
        for colour, word in given.of_dims.items():
            self.name[colour] = self._numbered(word)
        for colour in sorted(given.of_sizes):
            words = given.of_sizes[colour]
            if not self.name[colour]:
                self.name[colour] = self._numbered(self._free(words) or words[0])

    # -- roles -------------------------------------------------------------------------------------

    def take_roles(self, parts: ColourRoles) -> None:
        """Name groups by the parts that they play, those on most ops first."""
        _, producing = products_by_colour(parts.weight_products)
        played: dict[int, PlayedRole] = {}
        for row in parts.played:
            played.setdefault(row.group, row)
        self._data = parts.arguments.data
        groups = [
            group
            for index in played
            if played[index].word and not self.is_named(group := self.colouring.groups[index])
        ]
        of_word: dict[str, list[ColourGroup]] = defaultdict(list)
        for group in groups:
            of_word[played[group.index].word].append(group)
        for group in sorted(groups, key=lambda group: (-group.n_names, group.index)):
            word = played[group.index].word
            if word == "outputs" and len(of_word[word]) > 1:
                continue  # the argument that makes it says more
            makers = [product.weight for product in producing.get(group.colours[0], ())]
            carriers = [weight for weight in makers[:1] if weight in group.arguments]
            candidates = self._with_arguments(word, group, carriers)
            if not _needs_argument(word, group, of_word[word]):
                candidates = itertools.chain((word,), candidates)
            if free := self._free(candidates):
                self._name_group(group, free)

    def _with_arguments(self, word: str, group: ColourGroup, makers: list[int]) -> Iterator[str]:
        carriers = self._carriers(group)
        inputs = [argument for argument in carriers if argument in self._data]
        for argument in (*makers, *inputs, *carriers):
            yield f"{self._text(argument, group)}_{word}"
        for text in self._variables.get(group.colours[0], ()):
            yield f"{text}_{word}"

    # -- arguments ---------------------------------------------------------------------------------

    def _text(self, argument: int, group: ColourGroup) -> str:
        """Text for an argument of a group that tells it from those outside the group.

        Numbers of layers do not count for a group of several. Arguments whose dims all have the
        same groups, such as the moments of a weight, are one.
        """
        numbered = len(group.colours) == 1
        modules = self._modules[numbered]
        alike = self._arguments_alike[self._groups_of_dims(argument)]
        words = modules[argument]
        others = set(modules) - {modules[other] for other in alike}
        return distinct_text(words, others)

    def _groups_of_dims(self, argument: int) -> tuple[int, ...]:
        colours = self.colouring.colour[self.program.def_names(argument)]
        return tuple(self.colouring.group[colours].tolist())

    @functools.cached_property
    def _arguments_alike(self) -> dict[tuple[int, ...], list[int]]:
        arguments: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for argument in range(self.program.n_arguments):
            arguments[self._groups_of_dims(argument)].append(argument)
        return arguments

    @functools.cached_property
    def _modules(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """``module_words`` of each argument, without numbers and with them."""
        paths = self.program.value_name[: self.program.n_arguments]
        return (
            [module_words(path, numbered=False) for path in paths],
            [module_words(path) for path in paths],
        )

    def _carriers(self, group: ColourGroup) -> list[int]:
        """Arguments with the first colour of a group, vectors last."""
        arguments = self._arguments_of_colour.get(group.colours[0], ())
        return sorted(arguments, key=lambda argument: len(self.program.dims(argument)) < 2)

    def _of_arguments(self, group: ColourGroup) -> Iterator[str]:
        """Names from the arguments that carry a group."""
        colour = group.colours[0]
        for argument in self._carriers(group):
            names = self.program.def_names(argument)
            dim = next(
                dim for dim, name in enumerate(names) if self.colouring.colour[name] == colour
            )
            text, part = self._text(argument, group), self._part_of_argument(argument, dim)
            yield f"{text}_{part}" if part else text

    def _part_of_argument(self, argument: int, dim: int) -> str:
        """Text for a dim of an argument: "in", "out", "kernel_height", "dim1".

        Of a vector it is its key where its module does not say it ("bias"), else empty.
        """
        rank = len(self.program.dims(argument))
        roles_of_dims = [] if argument in self._data else self._weights.get(argument, [])
        role = roles_of_dims[dim] if roles_of_dims else ""
        if role == "window":
            at = sum(other == "window" for other in roles_of_dims[:dim])
            windows = _WINDOWS.get(sum(other == "window" for other in roles_of_dims), ())
            return windows[at] if windows else f"kernel_dim{at}"
        if role and sum(other == role for other in roles_of_dims) == 1:
            return role
        if rank > 1:
            return f"dim{dim}"
        path = self.program.value_name[argument]
        return "" if last_key(path) in module_words(path) else last_key(path)

    @functools.cached_property
    def _arguments_of_colour(self) -> dict[int, dict[int, None]]:
        arguments: dict[int, dict[int, None]] = defaultdict(dict)
        for argument in range(self.program.n_arguments):
            for name in self.program.def_names(argument):
                arguments[int(self.colouring.colour[name])][argument] = None
        return arguments

    @functools.cached_property
    def _weights(self) -> dict[int, list[str]]:
        """What the first product with each argument does along its dims.

        It sums over them ("in"), makes them ("out"), or slides them over the data ("window").
        """
        program, colour = self.program, self.colouring.colour
        root = argument_roots(program)
        weights: dict[int, list[str]] = {}
        for op in np.flatnonzero(np.isin(program.op_class, (DOT, CONVOLUTION))).tolist():
            uses = list(program.uses(op))[:2]
            arguments = [int(root[program.use_value[use]]) for use in uses]
            # Of two arguments, the right one is the weight.
            at = 1 if arguments[1] >= 0 else 0
            if arguments[at] < 0 or arguments[at] in weights:
                continue
            weight, data = (program.use_names(uses[side]) for side in (at, 1 - at))
            result = program.def_names(program.results(op)[0])
            part_of_colour: dict[int, str] = {}
            for name in weight:
                if name in result:
                    part = "" if name in data else "out"
                else:
                    part = "in" if program.factor_class[name] == REDUCTION else "window"
                part_of_colour.setdefault(int(colour[name]), part)
            weights[arguments[at]] = [
                part_of_colour.get(int(colour[name]), "")
                for name in program.def_names(arguments[at])
            ]
        return weights

    # -- computed values ---------------------------------------------------------------------------

    @functools.cached_property
    def _computed(self) -> dict[int, list[tuple[int, int]]]:
        """(value, dim) of the computed values that carry each colour not on an argument."""
        program = self.program
        colour_of_dim = self.colouring.colour[program.def_dim_factor]
        unnamed = np.array([not name for name in self.name])
        computed: dict[int, list[tuple[int, int]]] = defaultdict(list)
        dims = np.flatnonzero(unnamed[colour_of_dim] & (program.dim_value >= program.n_arguments))
        for row in dims.tolist():
            value = int(program.dim_value[row])
            dim = row - int(program.shape_ptr[value])
            computed[int(colour_of_dim[row])].append((value, dim))
        return computed

    @functools.cached_property
    def _variables(self) -> dict[int, list[str]]:
        """Variables of the source that hold values of each colour, without their dims."""
        return {
            colour: list(
                dict.fromkeys(
                    text for value, _ in values if (text := _variable(self.program, value))
                )
            )
            for colour, values in self._computed.items()
        }

    def _of_computed(self, colour: int) -> Iterator[str]:
        """Names from computed values with a colour: of variables, then of what makes them."""
        values = self._computed.get(colour, ())
        for value, dim in values:
            if text := _variable(self.program, value):
                yield f"{text}_dim{dim}"
        for value, dim in values:
            yield f"{_maker(self.program, int(self.program.value_op[value]))}_dim{dim}"

    # -- the rest ----------------------------------------------------------------------------------

    def take_the_rest(self) -> None:
        """Name the remaining groups, those that can be split first."""
        letters = self.colouring.given_names.letters
        groups = [group for group in self.colouring.groups if not self.is_named(group)]
        for group in sorted(groups, key=lambda group: (not _is_shown(group), group.index)):
            colour = group.colours[0]
            candidates = [
                *letters.get(colour, ()),
                *self._of_arguments(group),
                *itertools.islice(self._of_computed(colour), MOST_VALUES),
            ]
            if _is_shown(group) or not candidates:
                candidates.append(f"name{group.index}")
            self._name_group(group, self._free(candidates) or candidates[0])
        for group in self.colouring.groups:
            self._name_group(group, self.name[group.colours[0]])


def _variable(program: Program, value: int) -> str:
    """The variable that holds a value, as a part of a name; empty if it is not known."""
    name = program.value_name[value]
    return "" if name.startswith("%") else re.sub(r"\W", "_", re.sub(r"_[0-9]+$", "", name))


def _maker(program: Program, op: int) -> str:
    """Text for what makes a value: ``eigh``, or the module around an op that only moves numbers."""
    *scopes, call = ["", *program.name_stack[op].split("/")]
    if program.kind[op] == "custom_call":
        return re.sub(r"\W", "_", call) or "custom_call"
    kind, known = program.kind[op].removeprefix("chlo."), op_kind(program.kind[op])
    if known.done_while_fetched or known.moves_elements:
        inner = [scope for scope in scopes if _SCOPE.fullmatch(scope)]
        kind = inner[-1] if inner else kind
    return re.sub(r"\W", "_", kind)
