"""Does a trace hold together?  Kinds, lengths, ranges, and numbers that point somewhere.

A trace that passes can be read, replayed and copied without any index out of range.
Whether it belongs to a problem, and whether a search can go on from it, is told by ``resumable``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.search.trace_columns import TraceColumns

MOST_NODES = 2**31 - 1  #: numbers of nodes, words and simulations are kept in 32 bits
CLOSE = 1e-9  #: relative; the same formula on the same numbers
NEAR = 1e-6  #: relative; the same price, added up in another order
_REWARD = 1e6  # rewards are logarithms and small penalties; no search comes near


def about_offenders(about: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the facts of its search in a trace; missing ones are accepted."""
    for key, offence_of in _ABOUT.items():
        if key in about and (offence := offence_of(about[key])):
            yield f"about.{key} {offence}"


def array_offenders(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.dtype[Any]]
) -> Iterator[str]:
    """Columns (``part.name``, by dtype) that are missing, of a wrong kind, or too short."""
    kinds = {"best.op_axis": (np.dtype(np.int32), 2), "best.value_axis": (np.dtype(np.int8), 2)}
    kinds |= {name: (dtype, 1) for name, dtype in expected.items()}
    for name, array in arrays.items():
        if name.startswith("memory."):
            continue
        if name not in kinds:
            yield f"{name[:60]} is no array of a search trace"
            continue
        dtype, n_dims = kinds[name]
        if array.dtype != dtype or array.ndim != n_dims:
            yield (
                f"{name} must have {n_dims} dim{'s' * (n_dims > 1)} of {dtype}, it has shape "
                f"{array.shape} of "
                f"{array.dtype}"
            )
    if missing := [name for name in expected if name not in arrays]:
        yield f"it lacks {', '.join(missing)}"
        return
    if ("best.op_axis" in arrays) != ("best.value_axis" in arrays):
        yield "of best.op_axis and best.value_axis one is missing"
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
    """What is wrong with the texts of a header."""
    for name, texts in (("vocabulary", vocabulary), ("best_actions", best_actions)):
        if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
            yield f"{name} must be a list of texts"
        elif name == "vocabulary" and len(set(texts)) != len(texts):
            yield f"vocabulary has {len(texts) - len(set(texts))} texts twice"


def offenders(trace: TraceColumns) -> Iterator[str]:
    """Every number of a trace that is out of its range or points outside, a sentence each."""
    row, node, words = trace.row, trace.node, len(trace.vocabulary)
    for name, end, part in (
        ("action", row["action_end"], trace.action),
        ("node", row["node_end"], trace.passed),
    ):
        if (np.diff(end, prepend=0) < 0).any() or (int(end[-1]) if row.n else 0) != part.n:
            yield f"the {name}s of its simulations do not add up"
    for subject, numbers, limit in (
        ("action.word: an action", trace.action["word"], words),
        ("passed.node: a node", trace.passed["node"], node.n),
        ("row.best: a best simulation", row["best"], row.n),
        ("node.word: a node's action", node["word"][1:], words),
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
    if offence := outside(node["value"], -_REWARD, _REWARD):
        yield f"node.value must be a mean reward, {offence}"
    for column, numbers in (("row.round", row["round"]), ("node.visits", node["visits"])):
        if offence := outside(numbers, 0, np.iinfo(numbers.dtype).max):
            yield f"{column} must not be negative, {offence}"
    yield from _tree_offenders(trace)
    yield from _best_offenders(trace)


def _tree_offenders(trace: TraceColumns) -> Iterator[str]:
    """The root comes first, every other node after its parent."""
    node = trace.node
    if not node.n:
        return
    parent, depth = node["parent"], node["depth"]
    if (parent[0], node["word"][0], depth[0]) != (-1, -1, 0):
        yield (
            f"the root has parent {parent[0]}, action {node['word'][0]} and depth {depth[0]}, not "
            "-1, -1 and 0"
        )
    late = parent[1:] >= np.arange(1, node.n)
    if late.any():
        node_number = 1 + int(np.flatnonzero(late)[0])
        yield f"node.parent of node {node_number} is {parent[node_number]}, not an earlier node"
    if offence := outside(depth[1:], 1, node.n):
        yield f"node.depth is out of range, {offence}"


def _best_offenders(trace: TraceColumns) -> Iterator[str]:
    """``row.best`` follows from the rows: what fits before what does not, then the lower score."""
    row = trace.row
    best = row["best"]
    if not row.n or outside(best, 0, row.n - 1) or np.isnan(row["score"]).any():
        return
    number, before = np.arange(row.n), np.concatenate([best[:1], best[:-1]])
    new = best == number
    stray = ~new & (best != before)
    stray[0] = best[0] != 0
    if stray.any():
        row_number = int(np.flatnonzero(stray)[0])
        yield (
            f"row.best of row {row_number} is {best[row_number]}, neither that row nor the best "
            f"before it, {before[row_number]}"
        )
        return
    unfit, score = ~row["fits"], row["score"]
    lower = (unfit < unfit[before]) | ((unfit == unfit[before]) & (score < score[before]))
    higher = (unfit > unfit[before]) | ((unfit == unfit[before]) & (score > score[before]))
    is_wrong = np.where(new, higher, lower)
    is_wrong[0] = False
    if is_wrong.any():
        row_number = int(np.flatnonzero(is_wrong)[0])
        yield (
            f"row.best of row {row_number} is {best[row_number]}, though row {before[row_number]} "
            f"was the best with C(s) {score[before[row_number]]:g} and row {row_number} has "
            f"{score[row_number]:g}"
        )


def outside(numbers: np.ndarray, least: float, most: float) -> str:
    """Which number is out of range, NaN included: "at 3: -7, not from 0 to 5"; else empty."""
    good = (numbers >= least) & (numbers <= most)
    if good.all():
        return ""
    place = np.unravel_index(int(np.argmin(good)), good.shape)
    more = int((~good).sum()) - 1
    where = ", ".join(str(int(i)) for i in place)
    return f"at {where}: {numbers[place]}, not from {least} to {most}" + (
        f", and {more} more" if more else ""
    )


# -- what a trace says of its search ---------------------------------------------------------------


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else f"must be a text, got {value!r:.60}"


def _texts(value: Any) -> str:
    good = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return "" if good else f"must be a list of texts, got {value!r:.60}"


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
    unfit = [
        option
        for option, given in value.items()
        if not isinstance(given, int | float | str | bool | type(None))
    ]
    if not unfit:
        return ""
    return f"has values that are neither number nor text: {', '.join(map(str, unfit[:5]))}"


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
