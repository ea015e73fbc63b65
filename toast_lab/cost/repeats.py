"""Stretches of a sequence that repeat, as the layers of a network do."""

from __future__ import annotations

import numpy as np

from toast_lab.hashing import classes

_WINDOW = 4  # entries in a row that have to recur at a distance for it to be tried as a period
_MOST_PERIODS = 24
_LEAST_GAIN = 16  # fewest entries that a period has to leave out


def inner_turns(labels: np.ndarray) -> np.ndarray:
    """[N] bool: entries between the first and the last turn of a stretch that repeats.

    A stretch repeats with a period ``p`` if each of its entries equals the one ``p`` further on.
    Entries between its first and its last turn are inner; so are entries of what then repeats
    within the turns that are left. For every inner entry the same stretch has an entry before it
    and one after it, at multiples of the period, that are not inner or become so only later.
    """
    inner = np.zeros(len(labels), bool)
    stretches = {period: _stretches(labels, period) for period in _periods(labels)}
    while stretches:
        parts = {
            period: _between(inner, starts, ends, period)
            for period, (starts, ends) in stretches.items()
        }
        gains = {
            period: sum(int((~inner[start:end]).sum()) for start, end in stretch_parts)
            for period, stretch_parts in parts.items()
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
    """(start, end) of the entries between the first and the last turn of each stretch.

    These turns are the outermost ones without an inner entry.
    """
    inner_before = np.concatenate([[0], np.cumsum(inner)])
    whole = inner_before[period:] == inner_before[:-period]  # turns that begin at each entry
    parts = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        turns = np.flatnonzero(whole[start : end - period + 1])
        if len(turns) and turns[-1] - turns[0] > period:
            parts.append((start + int(turns[0]) + period, start + int(turns[-1])))
    return parts


def _periods(labels: np.ndarray) -> list[int]:
    """Distances at which many entries recur, together with those that follow them."""
    count = len(labels) - _WINDOW + 1
    if count < 2:
        return []
    columns = [labels[shift : shift + count] for shift in range(_WINDOW)]
    window = classes(count, *columns).label
    order = np.argsort(window, kind="stable")
    recurs = window[order][1:] == window[order][:-1]
    counts = np.bincount(np.diff(order)[recurs])
    best = np.argsort(-counts, kind="stable")[:_MOST_PERIODS]
    return best[counts[best] > 0].tolist()


def _stretches(labels: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, ends) of stretches that repeat with a period, of more than two turns."""
    equal = (labels[:-period] == labels[period:]).astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal, [0]])))
    starts, ends = edges[::2], edges[1::2]
    many = ends - starts > period
    return starts[many], ends[many] + period
