"""The words of arguments' paths that say most about them."""

from __future__ import annotations

import re
from collections.abc import Collection

_WORD = re.compile(r"[A-Za-z_]\w*")
_WORD_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|\d+")
#: last words of paths that many modules share, so that the word before them says more
_GENERIC = frozenset(
    ("kernel", "bias", "weight", "weights", "scale", "embedding", "value", "w", "b", "gamma")
)
_GENERIC |= frozenset(("beta", "offset", "running_mean", "running_var"))


def last_key(path: str) -> str:
    """Last key of a path: ``wq`` for ``params['layers'][0]['wq']``."""
    words = _WORD.findall(path)
    return words[-1] if words else path


def telling_word(path: str) -> str:
    """The word of an argument's path that says most about it."""
    words = _WORD.findall(path)
    if not words:
        return re.sub(r"\W+", "_", path).strip("_") or "argument"
    specific_words = [word for word in words if word not in _GENERIC]
    return words[-1] if words[-1] not in _GENERIC or not specific_words else specific_words[-1]


def module_words(path: str, *, numbered: bool = True) -> tuple[str, ...]:
    """Words of a path without those at its end that many modules share, such as "kernel".

    Args:
        path: of an argument.
        numbered: numbers count as parts of the words before them.

    >>> module_words("params['layers'][0]['mlp']['up']['kernel']")
    ('params', 'layers0', 'mlp', 'up')
    >>> module_words("net.layers[1].weight", numbered=False)
    ('net', 'layers')
    """
    words: list[str] = []
    for word in _WORD_OR_NUMBER.findall(path):
        if not word.isdecimal():
            words.append(word)
        elif numbered:
            words[-1:] = [(words[-1] if words else "argument") + word]
    while len(words) > 1 and words[-1] in _GENERIC:
        words.pop()
    return tuple(words) or ("argument",)


def distinct_text(words: tuple[str, ...], others: Collection[tuple[str, ...]]) -> str:
    """The last of these words, after as few of those before it as tell it from others.

    >>> others = [("net", "down0", "conv1"), ("net", "down0", "conv2"), ("net", "down1", "conv2")]
    >>> distinct_text(("net", "down1", "conv1"), others)
    'down1_conv1'
    """
    chosen = {len(words) - 1}
    rivals = [set(other) for other in others if other[-1] == words[-1]]
    while rivals:
        counts = {
            at: sum(words[at] in rival for rival in rivals)
            for at in reversed(range(len(words) - 1))
            if at not in chosen
        }
        best = min(counts, key=lambda at: counts[at], default=-1)
        if best < 0 or counts[best] == len(rivals):
            break
        chosen.add(best)
        rivals = [rival for rival in rivals if words[best] in rival]
    return "_".join(words[at] for at in sorted(chosen))
