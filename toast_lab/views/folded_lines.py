"""Runs of lines that repeat, as those of the layers of a network do, folded into one.

A line is told from others by a key, so what differs between layers (names and numbers of values)
is left out of it by whoever makes the keys.  Start reading at ``folded``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

#: a fold that hides fewer lines than this is not worth its heading
LEAST_HIDDEN = 4
# The next lines with the same key may stand in the same layer: so many of them are tried
_TRIED = 48


class FoldedBlock(NamedTuple):
    """``length`` lines from ``start`` on, which stand there ``times`` times in a row."""

    start: int
    length: int
    times: int

    @property
    def stop(self) -> int:
        """The first line after all its runs."""
        return self.start + self.length * self.times


def folded(keys: Sequence[Hashable]) -> list[FoldedBlock]:
    """Blocks that cover all lines in order, repeated ones once.

    At each line the repetition that hides most is taken, if it hides ``LEAST_HIDDEN`` lines.

    >>> folded("xabcabcabcy")
    [FoldedBlock(start=0, length=1, times=1), FoldedBlock(start=1, length=3, times=3), \
FoldedBlock(start=10, length=1, times=1)]
    """
    number_of: dict[Hashable, int] = {}
    numbers = np.array([number_of.setdefault(key, len(number_of)) for key in keys], dtype=np.int64)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers.tolist()):
        places[number].append(place)
    ranks = np.zeros(len(numbers), dtype=np.int64)
    for alike in places.values():
        ranks[alike] = range(len(alike))
    blocks: list[FoldedBlock] = []
    line = 0
    while line < len(numbers):
        alike, rank = places[int(numbers[line])], int(ranks[line])
        block = FoldedBlock(line, 1, 1)
        for following in alike[rank + 1 : rank + 1 + _TRIED]:
            length = following - line
            times = 1 + _equal_lines(numbers, line, length) // length
            if length * (times - 1) > max(block.length * (block.times - 1), LEAST_HIDDEN - 1):
                block = FoldedBlock(line, length, times)
        if block.times == 1 and blocks and blocks[-1].times == 1:
            blocks[-1] = blocks[-1]._replace(length=blocks[-1].length + 1)
        else:
            blocks.append(block)
        line = block.stop
    return blocks


def _equal_lines(numbers: np.ndarray, start: int, distance: int) -> int:
    """How many lines from ``start`` on equal the one ``distance`` lines further down."""
    same = numbers[start:-distance] == numbers[start + distance :]
    return len(same) if same.all() else int(same.argmin())
