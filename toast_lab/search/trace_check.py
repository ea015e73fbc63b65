"""Check that a trace is consistent: kinds, lengths, ranges, and indices that refer to rows.

A trace that passes can be read, replayed and copied without any index out of range. ``resumable``
checks whether it belongs to a problem, and whether a search can go on from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.search.trace_columns import TraceColumns

MOST_NODES = 2**31 - 1  #: most rows of any kind, since indices are kept in 32 bits
FORMULA_TOLERANCE = 1e-9  #: relative tolerance for the same formula on the same numbers
PRICE_TOLERANCE = 1e-6  #: relative tolerance for the same price, summed in another order
_MOST_REWARD = 1e6  # no search comes near it: rewards are logarithms and small penalties


def about_offenders(about: Mapping[str, Any]) -> Iterator[str]:
    """Offences of the facts of a search in a trace, a sentence each; missing facts are accepted."""
    for key, offence_of in _ABOUT.items():
        if key in about and (offence := offence_of(about[key])):
            yield f"about.{key} {offence}"


def array_offenders(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.dtype[Any]]
) -> Iterator[str]:
    """Offences of arrays: unknown, missing, of a wrong kind, or of unequal or excessive length.

    Args:
        arrays: all arrays of a file, by name.
        expected: the dtype of each column, by its name ``part.name``.
    """
    kinds = {"best.op_axis": (np.dtype(np.int32), 2), "best.value_axis": (np.dtype(np.int8), 2)}
    kinds |= {name: (dtype, 1) for name, dtype in expected.items()}
    for name, array in arrays.items():
        if name.startswith("memory."):
            continue
        if name not in kinds:
            yield f"{name[:60]} is not an array of a search trace"
            continue
        dtype, n_dims = kinds[name]
        if array.dtype != dtype or array.ndim != n_dims:
            yield (
                f"{name} must have {n_dims} dim{'s' * (n_dims > 1)} of {dtype}, but it has shape "
                f"{array.shape} of {array.dtype}"
            )
    if missing := [name for name in expected if name not in arrays]:
        yield f"it lacks {', '.join(missing)}"
        return
    if ("best.op_axis" in arrays) != ("best.value_axis" in arrays):
        yield "one of best.op_axis and best.value_axis is missing"
    for part in dict.fromkeys(name.partition(".")[0] for name in expected):
        lengths = {
            name: len(arrays[name])
            for name in expected
            if name.startswith(f"{part}.") and arrays[name].ndim
        }
        if len(set(lengths.values())) > 1:
            yield f"columns of {part} differ in length: " + ", ".join(
                f"{column} {length}" for column, length in lengths.items()
            )
        elif lengths and max(lengths.values()) > MOST_NODES:
            yield f"{part} has {max(lengths.values())} rows, at most {MOST_NODES}"


def text_offenders(vocabulary: Any, best_actions: Any) -> Iterator[str]:
    """Offences of the texts of a header."""
    for name, texts in (("vocabulary", vocabulary), ("best_actions", best_actions)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            yield f"{name} must be a list of texts"
        elif name == "vocabulary" and len(set(texts)) != len(texts):
            yield f"vocabulary has {len(texts) - len(set(texts))} repeated texts"


def offenders(trace: TraceColumns) -> Iterator[str]:
    """Offences of the numbers and indices of a trace that are out of range, a sentence each."""
    row, node, word_count = trace.row, trace.node, len(trace.vocabulary)
    for name, ends, columns in (
        ("action", row["action_end"], trace.action),
        ("node", row["node_end"], trace.passed),
    ):
        if (np.diff(ends, prepend=0) < 0).any() or (int(ends[-1]) if row.n else 0) != columns.n:
            yield f"the {name}s of its simulations do not add up"
    for subject, numbers, limit in (
        ("action.word: an action", trace.action["word"], word_count),
        ("passed.node: a node", trace.passed["node"], node.n),
        ("row.best: a best simulation", row["best"], row.n),
        ("node.word: a node's action", node["word"][1:], word_count),
        ("node.parent: a parent", node["parent"][1:], node.n),
    ):
        if offence := outside(numbers, 0, limit - 1):
            yield f"{subject} is out of range, {offence}"
    for column, numbers in (
        ("row.elapsed_s", row["elapsed_s"]),
        ("row.score", row["score"]),
        ("row.time_s", row["time_s"]),
        ("row.peak_bytes", row["peak_bytes"]),
        ("node.score", node["score"][~np.isnan(node["score"])]),
    ):
        if offence := outside(numbers, 0.0, np.finfo(float).max):
            yield f"{column} must be finite and not negative, {offence}"
    if offence := outside(node["best_score"], 0.0, math.inf):
        yield f"node.best_score must not be negative, {offence}"
    if offence := outside(node["value"], -_MOST_REWARD, _MOST_REWARD):
        yield f"node.value must be a mean reward, {offence}"
    for column, numbers in (("row.round", row["round"]), ("node.visits", node["visits"])):
        if offence := outside(numbers, 0, np.iinfo(numbers.dtype).max):
            yield f"{column} must not be negative, {offence}"
    yield from _tree_offenders(trace)
    yield from _best_offenders(trace)


def _tree_offenders(trace: TraceColumns) -> Iterator[str]:
    """Check that the root comes first and every other node comes after its parent."""
    node = trace.node
    if not node.n:
        return
    parent, depth = node["parent"], node["depth"]
    if (parent[0], node["word"][0], depth[0]) != (-1, -1, 0):
        yield (
            f"the root has parent {parent[0]}, action {node['word'][0]} and depth {depth[0]}, not "
            "-1, -1 and 0"
        )
    is_late = parent[1:] >= np.arange(1, node.n)
    if is_late.any():
        node_number = 1 + int(np.flatnonzero(is_late)[0])
        yield f"node.parent of node {node_number} is {parent[node_number]}, not an earlier node"
    if offence := outside(depth[1:], 1, node.n):
        yield f"node.depth is out of range, {offence}"


def _best_offenders(trace: TraceColumns) -> Iterator[str]:
    """Check that ``row.best`` follows from the rows: plans that fit first, then the lower score."""
    row = trace.row
    best = row["best"]
    if not row.n or outside(best, 0, row.n - 1) or np.isnan(row["score"]).any():
        return
    index, before = np.arange(row.n), np.concatenate([best[:1], best[:-1]])
    is_new = best == index
    is_stray = ~is_new & (best != before)
    is_stray[0] = best[0] != 0
    if is_stray.any():
        row_number = int(np.flatnonzero(is_stray)[0])
        yield (
            f"row.best of row {row_number} is {best[row_number]}, neither that row nor the best "
            f"before it, {before[row_number]}"
        )
        return
    over_limit, score = ~row["fits"], row["score"]
    is_better = (over_limit < over_limit[before]) | (
        (over_limit == over_limit[before]) & (score < score[before])
    )
    is_worse = (over_limit > over_limit[before]) | (
        (over_limit == over_limit[before]) & (score > score[before])
    )
    is_wrong = np.where(is_new, is_worse, is_better)
    is_wrong[0] = False
    if is_wrong.any():
        row_number = int(np.flatnonzero(is_wrong)[0])
        yield (
            f"row.best of row {row_number} is {best[row_number]}, though row {before[row_number]} "
            f"was the best with C(s) {score[before[row_number]]:g} and row {row_number} has "
            f"{score[row_number]:g}"
        )


def outside(numbers: np.ndarray, least: float, most: float) -> str:
    """The first number out of range, NaN included: "at 3: -7, not from 0 to 5"; empty if none."""
    in_range = (numbers >= least) & (numbers <= most)
    if in_range.all():
        return ""
    position = np.unravel_index(int(np.argmin(in_range)), in_range.shape)
    more = int((~in_range).sum()) - 1
    where = ", ".join(str(int(i)) for i in position)
    return f"at {where}: {numbers[position]}, not from {least} to {most}" + (
        f", and {more} more" if more else ""
    )


# -- the facts that a trace keeps of its search ----------------------------------------------------


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else f"must be a text, got {value!r:.60}"


def _texts(value: Any) -> str:
    is_valid = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    return "" if is_valid else f"must be a list of texts, got {value!r:.60}"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, got {value!r:.60}"


def _count(most: int) -> Callable[[Any], str]:
    return lambda value: checks.whole_offence(value, 0, most)


def _amount(value: Any) -> str:
    return checks.number_offence(value, 0.0)


def _limit(value: Any) -> str:
    return "" if value == math.inf else checks.number_offence(value, above=0.0)


def _options(value: Any) -> str:
    if not isinstance(value, dict):
        return f"must be an object, got {value!r:.60}"
    offenders = [
        option
        for option, setting in value.items()
        if not isinstance(setting, int | float | str | bool | type(None))
    ]
    if not offenders:
        return ""
    return f"has values that are neither number nor text: {', '.join(map(str, offenders[:5]))}"


_ABOUT: dict[str, Callable[[Any], str]] = {
    "program": _text,
    "mesh": _text,
    "machine": _text,
    "memory_limit_bytes": _limit,
    "memory_weight": _amount,
    "paper_mode": _flag,
    "pins": _texts,
    "method": _text,
    "seed": _count(checks.MOST_SEED),
    "options": _options,
    "status": _text,
    "elapsed_s": _amount,
    "evaluations": _count(2**63),
    "key": _count(2**64 - 1),
    "bound": lambda value: "" if value is None else _amount(value),
}
