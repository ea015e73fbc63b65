"""Names that the user wrote for colours: for dims of arguments, for sizes, and in einsums."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.argument_words import last_key
from toast_lab.ir.model import Model, Recipe
from toast_lab.ir.program import REDUCTION, Program
from toast_lab.ir.random_keys import hidden_dims

_NUMBER = re.compile(r"\d+")
_EINSUM = re.compile(r"(?<![\w,])([a-zA-Z]+(?:,[a-zA-Z]+)+)->([a-zA-Z]*)(?!\w)")


class GivenNames(NamedTuple):
    """The user's words for colours, by colour."""

    of_dims: dict[int, str]  #: ``dim_names`` of arguments, or logical axes of flax
    #: sizes that the model was made with (``d_model=512``, or defaults of the user's ``make``),
    #: where a colour is the only one of that size, or repeated layers alone have it
    of_sizes: dict[int, tuple[str, ...]]
    letters: dict[int, tuple[str, ...]]  #: of the einsums that its dims go through, best first

    def of(self, colour: int) -> str:
        """The best word for a colour, empty if there is none."""
        words = (*self.of_sizes.get(colour, ()), *self.letters.get(colour, ()), "")
        return self.of_dims.get(colour, words[0])


def given_names(program: Program, colour: np.ndarray, model: Model) -> GivenNames:
    """Collect the user's words.

    Args:
        program: of the model.
        colour: [N] colour of each name.
        model: with its names and sizes of dims.
    """
    of_sizes: dict[int, dict[str, None]] = defaultdict(dict)
    for index, word in _of_sizes(program, colour, model):
        of_sizes[index][word] = None
    votes = _votes(program, colour, model)
    return GivenNames(
        of_dims={index: votes[index].most_common(1)[0][0] for index in sorted(votes)},
        of_sizes={index: tuple(words) for index, words in of_sizes.items()},
        letters=_letters_of_colours(program, colour),
    )


def _votes(program: Program, colour: np.ndarray, model: Model) -> dict[int, Counter[str]]:
    """Names that the user gave to dims of arguments, with their counts, by colour."""
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for argument in range(program.n_arguments):
        path = program.value_name[argument]
        hints = model.dim_names.get(path, model.dim_names.get(last_key(path), ()))
        names_of_dims = program.def_names(argument)
        rank = len(names_of_dims)
        if len(hints) in (rank, rank - hidden_dims(program, argument)):
            for name, hint in zip(names_of_dims, hints, strict=False):
                if hint is not None:
                    votes[int(colour[name])][hint] += 1
    return votes


def _of_sizes(program: Program, colour: np.ndarray, model: Model) -> Iterator[tuple[int, str]]:
    """(colour, name) of the model's named sizes that the arguments of a single colour have.

    Repeated layers may have one such colour each: the paths that carry it differ in numbers only.
    """
    sizes: dict[str, object] = dict(model.sizes)
    if isinstance(model.function, Recipe):
        sizes |= model.function.sizes
    counts = Counter(size for size in sizes.values() if type(size) is int)
    carriers: dict[int, dict[int, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for argument in range(program.n_arguments):
        path = _NUMBER.sub("*", program.value_name[argument])
        for dim, name in enumerate(program.def_names(argument)):
            carriers[int(program.factor_size[name])][int(colour[name])].add((path, dim))
    for text, size in sizes.items():
        if type(size) is int and size > 1 and counts[size] == 1:
            paths_of_colour = carriers.get(size, {})
            if len(set(map(frozenset, paths_of_colour.values()))) == 1:
                yield from ((index, text) for index in sorted(paths_of_colour))


def _letters_of_colours(program: Program, colour: np.ndarray) -> dict[int, tuple[str, ...]]:
    letters: dict[int, Counter[str]] = defaultdict(Counter)
    for name, letter in _letters(program):
        letters[int(colour[name])][letter] += 1
    # A letter of several colours goes to the colour with the most votes for it.
    owner: dict[str, tuple[int, int]] = {}
    for index, votes in letters.items():
        for letter, count in votes.items():
            if count > owner.get(letter, (0, -1))[0]:
                owner[letter] = (count, index)
    return {
        index: tuple(letter for letter, _ in votes.most_common() if owner[letter][1] == index)
        for index, votes in letters.items()
    }


def _letters(program: Program) -> Iterator[tuple[int, str]]:
    """(name, letter) for the dims of products that come from einsums."""
    for op in program.ops():
        if program.kind[op] != "dot_general":
            continue
        specs = _EINSUM.findall(program.name_stack[op])
        operands = list(program.uses(op))
        if not specs or len(operands) != 2:
            continue
        operand_letters = specs[-1][0].split(",")
        if len(operand_letters) != 2 or "transpose(" in program.name_stack[op]:
            continue
        rows = [program.use_names(use) for use in operands]
        fitting = [
            pair
            for pair in (operand_letters, operand_letters[::-1])
            if _fits(program, rows, pair, specs[-1][1])
        ]
        if len(fitting) == 1 or (fitting and operand_letters[0] == operand_letters[1]):
            for row, letters in zip(rows, fitting[0], strict=True):
                yield from zip(row, letters, strict=True)


def _fits(program: Program, rows: list[list[int]], letters: list[str], result: str) -> bool:
    """Can the dims of two operands have these letters?

    Dims of one factor have one letter, those of different factors have different letters, and just
    the letters that are summed over are missing in the result.
    """
    if [len(row) for row in rows] != [len(text) for text in letters]:
        return False
    letter_of: dict[int, str] = {}
    for row, text in zip(rows, letters, strict=True):
        for name, letter in zip(row, text, strict=True):
            if letter_of.setdefault(name, letter) != letter:
                return False
    summed = {name for row in rows for name in row if program.factor_class[name] == REDUCTION}
    return len(set(letter_of.values())) == len(letter_of) and all(
        (letter_of[name] in result) != (name in summed) for name in letter_of
    )
