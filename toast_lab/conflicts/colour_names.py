"""Names for colours, taken from what the user wrote.

Each colour has candidates, the best first:

* names that the user gave to dims of arguments (``dim_names``), or that flax put on them;
* sizes that the model was made with (``d_model=512``, or defaults of the user's ``make``), where
  a colour is the only one of that size, or repeated layers alone have it;
* letters of the einsums that its dims go through;
* arguments that carry it: ``w1_in`` and ``w1_out`` for the dims of a weight, ``x_rows`` and
  ``x_columns`` for those of other matrices, the argument alone for a vector, and the size
  (``x_512``) where there are more dims;
* variables of the source that carry it, with the size: ``scores_2048``;
* the op that makes the first value with it, with the size: ``top_k_8``.

A colour whose candidates are all taken gets the first of them with a number appended.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from toast_lab.ir.model import Model, Recipe
from toast_lab.ir.program import REDUCTION, Program
from toast_lab.ir.random_keys import hidden_dims
from toast_lab.nda.names import Names

_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d+")
_EINSUM = re.compile(r"(?<![\w,])([a-zA-Z]+(?:,[a-zA-Z]+)+)->([a-zA-Z]*)(?!\w)")
#: last words of paths that many modules share, so that the word before them says more
_GENERIC = frozenset(
    ("kernel", "bias", "weight", "weights", "scale", "embedding", "value", "w", "b", "gamma")
)
_GENERIC |= frozenset(("beta", "offset", "running_mean", "running_var"))


def last_key(path: str) -> str:
    """Last key of a path: ``wq`` for ``params['layers'][0]['wq']``."""
    words = _WORD.findall(path)
    return words[-1] if words else path


def name_colours(names: Names, colour: np.ndarray, model: Model) -> tuple[str, ...]:
    """[colours] name of each colour, all different.

    Args:
        names: the dimension names of the program.
        colour: [N] colour of each name.
        model: the model of that program, with its names and sizes of dims.
    """
    program = names.program
    colour_count = int(colour.max(initial=-1)) + 1
    hints = _hints(program, colour, model)
    candidates = _candidates(names, colour, model)
    # A user chose the hints: one that is taken gets a number and is not dropped.
    taken: dict[str, int] = {}  # name -> how many numbers were tried for it
    colour_name = [""] * colour_count

    def numbered(base: str) -> str:
        candidate, tried = base, taken.get(base, 0)
        while candidate in taken:
            tried += 1
            candidate = f"{base}_{tried}"
        taken[base] = tried
        taken.setdefault(candidate, 0)
        return candidate

    for index in sorted(hints):
        colour_name[index] = numbered(hints[index].most_common(1)[0][0])
    for index in range(colour_count):
        if colour_name[index]:
            continue
        free = next((name for name in candidates[index] if name not in taken), None)
        base = free or next(iter(candidates[index]), f"name{index}")
        colour_name[index] = numbered(base)
    return tuple(colour_name)


def _hints(program: Program, colour: np.ndarray, model: Model) -> dict[int, Counter[str]]:
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


def _candidates(names: Names, colour: np.ndarray, model: Model) -> dict[int, dict[str, None]]:
    """Other names that each colour could have, the best first."""
    program = names.program
    candidates: dict[int, dict[str, None]] = defaultdict(dict)
    for index, name in _of_sizes(program, colour, model):
        candidates[index][name] = None
    letters: dict[int, Counter[str]] = defaultdict(Counter)
    for name_index, letter in _letters(program):
        letters[int(colour[name_index])][letter] += 1
    # A letter of several colours goes to the colour with the most votes for it.
    owner: dict[str, tuple[int, int]] = {}
    for index, votes in letters.items():
        for letter, count in votes.items():
            if count > owner.get(letter, (0, -1))[0]:
                owner[letter] = (count, index)
    for index, votes in letters.items():
        for letter, _ in votes.most_common():
            if owner[letter][1] == index:
                candidates[index][letter] = None
    for index, name in _of_arguments(program, colour):
        candidates[index].setdefault(name)
    for index, name in _of_variables(program, colour):
        candidates[index].setdefault(name)
    return candidates


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


def _of_arguments(program: Program, colour: np.ndarray) -> Iterator[tuple[int, str]]:
    """(colour, name) from the arguments that carry each colour; vectors last."""
    weights = _weights(program)
    vectors: list[tuple[int, str]] = []
    for argument in range(program.n_arguments):
        word, names = telling_word(program.value_name[argument]), program.def_names(argument)
        sizes = program.dims(argument)
        for dim, name in enumerate(names):
            index = int(colour[name])
            if len(names) == 1:
                vectors.append((index, word))
            elif len(names) == 2 and argument in weights:
                yield index, f"{word}_{'in' if dim == weights[argument] else 'out'}"
            elif len(names) == 2:
                yield index, f"{word}_{('rows', 'columns')[dim]}"
            elif sizes.count(sizes[dim]) == 1:
                yield index, f"{word}_{sizes[dim]}"
            else:
                yield index, f"{word}_dim{dim}"
    yield from vectors


def _weights(program: Program) -> dict[int, int]:
    """Argument matrices that are the right operand of a product, with the dim summed over."""
    weights: dict[int, int] = {}
    for op in program.ops():
        if program.kind[op] != "dot_general" or len(program.uses(op)) != 2:
            continue
        use = program.uses(op)[1]
        value, names = int(program.use_value[use]), program.use_names(use)
        if value < program.n_arguments and len(names) == 2:
            summed = [i for i in (0, 1) if program.factor_class[names[i]] == REDUCTION]
            if len(summed) == 1:
                weights.setdefault(value, summed[0])
    return weights


def _of_variables(program: Program, colour: np.ndarray) -> Iterator[tuple[int, str]]:
    """(colour, name) from the values that carry each colour: source variables, then op kinds."""
    kind_names: dict[tuple[int, str], None] = {}
    colour_of_dim = colour[program.def_dim_factor]
    colours_and_values = (
        np.unique(np.stack([colour_of_dim, program.dim_value]), axis=1)
        if len(colour_of_dim)
        else colour_of_dim
    )
    seen: set[tuple[int, str]] = set()
    for index, value in colours_and_values.T.tolist() if len(colour_of_dim) else ():
        if value < program.n_arguments:
            continue
        dims = program.def_names(value)
        dim = next(i for i, name in enumerate(dims) if colour[name] == index)
        name, size = program.value_name[value], program.dims(value)[dim]
        if name.startswith("%"):
            maker = _maker(program, int(program.value_op[value]))
            kind_names.setdefault((index, f"{maker}_{size}"))
            continue
        text = f"{re.sub(r'_[0-9]+$', '', name)}_{size}"
        if (index, text) not in seen:
            seen.add((index, text))
            yield index, re.sub(r"\W", "_", text)
    for index, text in kind_names:
        yield index, re.sub(r"\W", "_", text)


def _maker(program: Program, op: int) -> str:
    """Text for an op in a colour's name: ``eigh`` rather than the library call that computes it."""
    if program.kind[op] == "custom_call":
        return program.name_stack[op].rpartition("/")[2] or "custom_call"
    return program.kind[op].removeprefix("chlo.")


def telling_word(path: str) -> str:
    """The word of an argument's path that says most about it."""
    words = _WORD.findall(path)
    if not words:
        return re.sub(r"\W+", "_", path).strip("_") or "argument"
    specific_words = [word for word in words if word not in _GENERIC]
    return words[-1] if words[-1] not in _GENERIC or not specific_words else specific_words[-1]
