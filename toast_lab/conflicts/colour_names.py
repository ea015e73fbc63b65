"""What colours are called: by what the user wrote.

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

A colour whose candidates are all taken gets a number behind the first of them.
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
#: last words of paths that only say what every module has, so that the word before tells more
_GENERIC = frozenset(
    ("kernel", "bias", "weight", "weights", "scale", "embedding", "value", "w", "b", "gamma")
)
_GENERIC |= frozenset(("beta", "offset", "running_mean", "running_var"))


def last_key(path: str) -> str:
    """``params['layers'][0]['wq']`` -> ``wq``."""
    words = _WORD.findall(path)
    return words[-1] if words else path


def name_colours(names: Names, colour: np.ndarray, model: Model) -> tuple[str, ...]:
    """[colours] the name of each, all different.

    Args:
        names: of the program.
        colour: [N] colour of each name.
        model: whose program that is, with what it says of dims.
    """
    program = names.program
    colour_count = int(colour.max(initial=-1)) + 1
    hints = _hints(program, colour, model)
    weak = _candidates(names, colour, model)
    # Hints are what somebody chose: they are numbered rather than left
    taken: dict[str, int] = {}  # name -> how many numbers were tried for it
    colour_name = [""] * colour_count

    def number(base: str) -> str:
        candidate, tried = base, taken.get(base, 0)
        while candidate in taken:
            tried += 1
            candidate = f"{base}_{tried}"
        taken[base] = tried
        taken.setdefault(candidate, 0)
        return candidate

    for index in sorted(hints):
        colour_name[index] = number(hints[index].most_common(1)[0][0])
    for index in range(colour_count):
        if colour_name[index]:
            continue
        free = next((name for name in weak[index] if name not in taken), None)
        base = free or next(iter(weak[index]), f"name{index}")
        colour_name[index] = number(base)
    return tuple(colour_name)


def _hints(program: Program, colour: np.ndarray, model: Model) -> dict[int, Counter[str]]:
    """What the user calls dims of arguments, by colour."""
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
    """What else a colour could be called, the best first."""
    program = names.program
    candidates: dict[int, dict[str, None]] = defaultdict(dict)
    for index, name in _of_sizes(program, colour, model):
        candidates[index][name] = None
    letters: dict[int, Counter[str]] = defaultdict(Counter)
    for name_index, letter in _letters(program):
        letters[int(colour[name_index])][letter] += 1
    # Where several colours have one letter, it is that of the colour with most votes
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
    """Sizes that the model was made with and that one colour of arguments alone has.

    Or one of each repeated layer: what carries them differs in numbers only.
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
            alike = carriers.get(size, {})
            if len(set(map(frozenset, alike.values()))) == 1:
                yield from ((index, text) for index in sorted(alike))


def _letters(program: Program) -> Iterator[tuple[int, str]]:
    """(name, letter) of dims of products that einsums make."""
    for op in program.ops():
        if program.kind[op] != "dot_general":
            continue
        specs = _EINSUM.findall(program.name_stack[op])
        operands = list(program.uses(op))
        if not specs or len(operands) != 2:
            continue
        sides = specs[-1][0].split(",")
        if len(sides) != 2 or "transpose(" in program.name_stack[op]:
            continue
        rows = [program.use_names(use) for use in operands]
        fitting = [
            pair for pair in (sides, sides[::-1]) if _fits(program, rows, pair, specs[-1][1])
        ]
        if len(fitting) == 1 or (fitting and sides[0] == sides[1]):
            for row, letters in zip(rows, fitting[0], strict=True):
                yield from zip(row, letters, strict=True)


def _fits(program: Program, rows: list[list[int]], letters: list[str], result: str) -> bool:
    """Can the dims of two operands have these letters?

    Dims that are one factor have one letter, others have different ones.
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
    """Colours with the arguments that carry them; vectors last."""
    weights = _weights(program)
    vectors: list[tuple[int, str]] = []
    for argument in range(program.n_arguments):
        word, names = _telling_word(program.value_name[argument]), program.def_names(argument)
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
    """Matrices among the arguments that are the right side of a product, with the dim summed."""
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
    """Colours with the values that carry them: variables of the source, then kinds of ops."""
    first_kind: dict[tuple[int, str], None] = {}
    rows = colour[program.def_dim_factor]
    first_seen = np.unique(np.stack([rows, program.dim_value]), axis=1) if len(rows) else rows
    seen: set[tuple[int, str]] = set()
    for index, value in first_seen.T.tolist() if len(rows) else ():
        if value < program.n_arguments:
            continue
        dims = program.def_names(value)
        dim = next(i for i, name in enumerate(dims) if colour[name] == index)
        name, size = program.value_name[value], program.dims(value)[dim]
        if name.startswith("%"):
            maker = _maker(program, int(program.value_op[value]))
            first_kind.setdefault((index, f"{maker}_{size}"))
            continue
        text = f"{re.sub(r'_[0-9]+$', '', name)}_{size}"
        if (index, text) not in seen:
            seen.add((index, text))
            yield index, re.sub(r"\W", "_", text)
    for index, text in first_kind:
        yield index, re.sub(r"\W", "_", text)


def _maker(program: Program, op: int) -> str:
    """What an op is called in a colour's name: ``eigh`` and not the call of a library for it."""
    if program.kind[op] == "custom_call":
        return program.name_stack[op].rpartition("/")[2] or "custom_call"
    return program.kind[op].removeprefix("chlo.")


def _telling_word(path: str) -> str:
    """The word of an argument's path that tells it from others."""
    words = _WORD.findall(path)
    if not words:
        return re.sub(r"\W+", "_", path).strip("_") or "argument"
    telling = [word for word in words if word not in _GENERIC]
    return words[-1] if words[-1] not in _GENERIC or not telling else telling[-1]
