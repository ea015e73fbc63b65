"""Stretches of a sequence that repeat, as the layers of a network do."""

from __future__ import annotations

import numpy as np

from toast_lab.hashing import classes

_WINDOW = 4  # entries that have to come again for a distance to be thought of as a period
_MOST_PERIODS = 24
_LEAST_GAIN = 16  # entries that a period has to leave out


def inner_turns(labels: np.ndarray) -> np.ndarray:
    """[N] bool: the entries of a sequence between the first and the last turn of what repeats.

    A stretch repeats with a period ``p`` if each of its entries equals the one ``p`` further on.
    What is between its first and its last turn is inner; so is what then repeats within the turns
    that are left.  Every inner entry has one that is not inner, or became so later, before it and
    one after it in the same stretch, at distances that are multiples of the period.
    """
    inner = np.zeros(len(labels), bool)
    stretches = {period: _stretches(labels, period) for period in _periods(labels)}
    while stretches:
        parts = {
            period: _between(inner, starts, ends, period)
            for period, (starts, ends) in stretches.items()
        }
        gains = {
            period: sum(int((~inner[start:end]).sum()) for start, end in own)
            for period, own in parts.items()
        }
        period = max(gains, key=lambda period: gains[period])
        if gains[period] < _LEAST_GAIN:
            break
        for start, end in parts[period]:
            inner[start:end] = True
        del stretches[period]
    return inner


def _between(
    inner: np.ndarray, starts: np.ndarray, ends: np.ndarray, period: int
) -> list[tuple[int, int]]:
    """(start, end) of what is between the first and the last turn of each stretch.

    These turns are the outermost ones without an inner entry.
    """
    before = np.concatenate([[0], np.cumsum(inner)])
    whole = before[period:] == before[:-period]  # turns that begin at each entry
    parts = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        turns = np.flatnonzero(whole[start : end - period + 1])
        if len(turns) and turns[-1] - turns[0] > period:
            parts.append((start + int(turns[0]) + period, start + int(turns[-1])))
    return parts


def _periods(labels: np.ndarray) -> list[int]:
    """Distances at which many entries, with those that follow them, come again."""
    count = len(labels) - _WINDOW + 1
    if count < 2:
        return []
    columns = [labels[shift : shift + count] for shift in range(_WINDOW)]
    window = classes(count, *columns).label
    order = np.argsort(window, kind="stable")
    again = window[order][1:] == window[order][:-1]
    often = np.bincount(np.diff(order)[again])
    best = np.argsort(-often, kind="stable")[:_MOST_PERIODS]
    return best[often[best] > 0].tolist()


def _stretches(labels: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, ends) of stretches that repeat with a period, of more than two turns."""
    equal = (labels[:-period] == labels[period:]).astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal, [0]])))
    starts, ends = edges[::2], edges[1::2]
    many = ends - starts > period
    return starts[many], ends[many] + period
