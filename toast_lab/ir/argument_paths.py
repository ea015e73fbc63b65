"""Argument paths, as ``jax.tree_util.keystr`` writes them, and the words they are made of."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_INDEX = re.compile(r"\[\d+\]|(?<=[._])\d+(?=[._'\]]|$)|^\d+$")
_WORD = re.compile(r"\w+")
_DEEPEST_ROOT = 3  #: most words that lead to the parameters in a tree, as ``opt_state[0].mu``


def folded_path(path: str) -> str:
    """The path of a layer's value, with its index replaced so that it stands for every layer.

    >>> folded_path("params['layers'][3]['w1']"), folded_path("blocks.3.weight")
    ("params['layers'][*]['w1']", 'blocks.*.weight')
    """
    return _INDEX.sub(lambda index: "[*]" if index[0].startswith("[") else "*", path)


def own_words(paths: Sequence[str]) -> list[list[str]]:
    """The words of arguments' paths, without the roots of trees that are equal below their roots.

    >>> own_words(["p['w1']", "p['w2'][3]", "opt[0].mu['w1']", "opt[0].mu['w2'][3]"])
    [['w1'], ['w2.3'], ['w1'], ['w2.3']]
    """
    words = [_named(_WORD.findall(path) or [path]) for path in paths]
    paths_below: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for path_words in words:
        for depth in range(1, min(len(path_words) - 1, _DEEPEST_ROOT) + 1):
            if "*" not in folded_path(path_words[depth - 1]):
                paths_below[tuple(path_words[:depth])].add(tuple(path_words[depth:]))
    tree_counts = Counter(frozenset(path_below) for path_below in paths_below.values())
    roots = {
        root for root, path_below in paths_below.items() if tree_counts[frozenset(path_below)] > 1
    }
    return [
        next(
            (
                path_words[depth:]
                for depth in range(1, len(path_words))
                if tuple(path_words[:depth]) in roots
            ),
            path_words,
        )
        for path_words in words
    ]


def _named(words: list[str]) -> list[str]:
    """Words of a path, with list indices at its end joined to the name before them."""
    name_end = len(words)
    while name_end > 1 and not words[name_end - 1].isidentifier():
        name_end -= 1
    return [*words[: name_end - 1], ".".join(words[name_end - 1 :])]
