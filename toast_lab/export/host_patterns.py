"""A pattern for the paths of arrays that are in host memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_KEY = re.compile(r"\.?\w+|\[[^\]]*\]|.")


def pattern_of(paths: Sequence[str], chosen: Iterable[str]) -> str:
    """A regular expression that is found in the paths ``chosen`` and in no other of ``paths``.

    It consists of the shortest beginnings of paths that are common to chosen ones alone; numbers
    stand for all numbers where they may. Empty if none is chosen.

    >>> pattern_of(["p['w'][0]", "o.mu['w'][0]", "o.mu['w'][1]"], ["o.mu['w'][0]", "o.mu['w'][1]"])
    '^o'
    """
    wanted = set(chosen)
    others = [path for path in paths if path not in wanted]
    parts: dict[str, None] = {}
    for path in paths:
        if path in wanted and not any(re.search(part, path) for part in parts):
            parts[_beginning(path, others)] = None
    return "|".join(parts)


def _beginning(path: str, others: Sequence[str]) -> str:
    keys = _KEY.findall(path)
    for count in range(1, len(keys) + 1):
        for any_number in (True, False):
            # A key is whole: what follows is the next key, or nothing
            pattern = "^" + re.escape("".join(keys[:count])).replace("\\'", "'") + r"(?!\w)"
            if any_number:
                pattern = re.sub(r"\d+", r"\\d+", pattern)
            if not any(re.search(pattern, other) for other in others):
                is_open = pattern.removesuffix(r"(?!\w)")  # what follows need not be looked at
                return pattern if any(re.search(is_open, other) for other in others) else is_open
    return "^" + re.escape(path) + "$"
