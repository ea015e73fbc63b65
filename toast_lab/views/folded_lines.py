"""Fold runs of lines that repeat, such as those of the layers of a network, into one.

Lines are compared by their keys, from which the caller leaves out what differs between layers
(names and numbers of values). Start reading at ``folded``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

#: a fold that hides fewer lines than this is not worth its heading
LEAST_HIDDEN = 4
# How many of the next lines with the same key are tried, since some may be in the same layer
_TRIED = 48


class FoldedBlock(NamedTuple):
    """``length`` lines from ``start`` on, which occur ``times`` times in a row."""

    start: int
    length: int
    times: int

    @property
    def stop(self) -> int:
        """Index of the first line after all repetitions."""
        return self.start + self.length * self.times


def folded(keys: Sequence[Hashable]) -> list[FoldedBlock]:
    """Blocks that cover all lines in order, with repeated lines folded.

    At each line it takes the repetition that hides most lines, if that hides at least
    ``LEAST_HIDDEN``.

    >>> folded("xabcabcabcy")
    [FoldedBlock(start=0, length=1, times=1), FoldedBlock(start=1, length=3, times=3), \
FoldedBlock(start=10, length=1, times=1)]
    """
    number_of: dict[Hashable, int] = {}
    numbers = np.array([number_of.setdefault(key, len(number_of)) for key in keys], dtype=np.int64)
    lines_of_number: defaultdict[int, list[int]] = defaultdict(list)
    for line_index, number in enumerate(numbers.tolist()):
        lines_of_number[number].append(line_index)
    ranks = np.zeros(len(numbers), dtype=np.int64)
    for same_lines in lines_of_number.values():
        ranks[same_lines] = range(len(same_lines))
    blocks: list[FoldedBlock] = []
    line = 0
    while line < len(numbers):
        same_lines, rank = lines_of_number[int(numbers[line])], int(ranks[line])
        block = FoldedBlock(line, 1, 1)
        for following in same_lines[rank + 1 : rank + 1 + _TRIED]:
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
    """How many consecutive lines from ``start`` on equal those ``distance`` lines further down."""
    is_equal = numbers[start:-distance] == numbers[start + distance :]
    return len(is_equal) if is_equal.all() else int(is_equal.argmin())
