"""Names that colours had before they were named by their roles.

People wrote them down in scripts, links and saved plans, so that they still count. They were taken
from the user's words, else from arguments (``w1_in``, ``x_rows``, ``x_512``), variables
(``scores_2048``) and ops (``top_k_8``), with numbers where a name was taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from toast_lab.conflicts.argument_words import telling_word
from toast_lab.conflicts.given_names import GivenNames
from toast_lab.ir.program import REDUCTION, Program


def earlier_names(program: Program, colour: np.ndarray, given: GivenNames) -> tuple[str, ...]:
    """[colours] the earlier name of each colour, all different."""
    colour_count = int(colour.max(initial=-1)) + 1
    candidates: dict[int, dict[str, None]] = defaultdict(dict)
    for words_of in (given.of_sizes, given.letters):
        for index, words in words_of.items():
            candidates[index] |= dict.fromkeys(words)
    for source in (_of_arguments, _of_variables):
        for index, word in source(program, colour):
            candidates[index].setdefault(word)
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

    for index, word in given.of_dims.items():
        colour_name[index] = numbered(word)
    for index in range(colour_count):
        if not colour_name[index]:
            free = next((name for name in candidates[index] if name not in taken), None)
            base = free or next(iter(candidates[index]), f"name{index}")
            colour_name[index] = numbered(base)
    return tuple(colour_name)


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
