"""Tables of one plan: collectives priced and compiled, and ops with their share of the step."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from toast_lab.text import line_text
from toast_lab.views.compare_table import (
    byte_unit,
    bytes_text,
    flop_unit,
    ratio_text,
    seconds_text,
    time_unit,
)

if TYPE_CHECKING:
    from toast_lab.explain.acting_rules import RuleEffect

MAX_OPS = 1000
_KIND = {"permute": "collective_permute"}


def collective_rows(cost: Any, matched: Sequence[dict[str, Any]] | None) -> pd.DataFrame:
    """Every collective of a plan, in SI units.

    Args:
        cost: the price of the plan.
        matched: rows of ``CompiledDiff.tidy``, or None if nothing was compiled.

    ``number`` is the index in ``cost.collectives``, -1 for a collective that the compiler added.
    """
    predictions: list[dict[str, Any]] = [
        {
            "op": collective.op,
            "predicted_kind": _KIND.get(collective.kind, collective.kind),
            "predicted_axes": ",".join(collective.axes),
            "predicted_value": collective.value,
            "predicted_bytes": collective.local_bytes,
            "where": collective.where,
            "status": "",
            "reason": "",
        }
        for collective in cost.collectives
    ]
    key_of = operator.itemgetter("op", "predicted_kind", "predicted_axes", "predicted_value")
    unmatched_indices: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, prediction in enumerate(predictions):
        unmatched_indices[key_of(prediction)].append(index)
    table_rows = []
    for match in predictions if matched is None else matched:
        indices = unmatched_indices[key_of(match)]
        index_in_cost = indices.pop(0) if indices else -1
        priced = cost.collectives[index_in_cost] if index_in_cost >= 0 else None
        kind = match["predicted_kind"]
        row = {name: match.get(name) for name in COLLECTIVE_COLUMNS}
        row |= {
            "number": index_in_cost,
            "kind": kind or match["compiled_kind"],
            "axes": match["predicted_axes"] if kind else match.get("compiled_axes") or "?",
            "value": match["predicted_value"] or "",
            "predicted_s": None if priced is None else priced.time_s,
        }
        table_rows.append(row)
    return pd.DataFrame(table_rows, columns=COLLECTIVE_COLUMNS)


COLLECTIVE_COLUMNS = (
    *("number", "kind", "axes", "value", "where"),
    *("predicted_bytes", "predicted_times", "predicted_s"),
    *("compiled_kind", "compiled_axes", "compiled_bytes", "compiled_times"),
    *("status", "reason", "op"),
)


def shown_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """``collective_rows`` as text for display."""

    def sizes(side: str) -> list[str]:
        return [
            bytes_text(nbytes)
            + (f" ×{times:g}" if pd.notna(nbytes) and pd.notna(times) and times != 1 else "")
            for nbytes, times in zip(frame[f"{side}_bytes"], frame[f"{side}_times"], strict=True)
        ]

    def compiled(row: Any) -> str:
        if not row.compiled_kind or pd.isna(row.compiled_kind):
            return "–"
        axes = row.compiled_axes if row.compiled_axes != row.axes else ""
        kind = row.compiled_kind if row.compiled_kind != row.kind else "the same"
        return f"{kind} {{{axes}}}" if axes else kind

    return pd.DataFrame(
        {
            "collective": frame["kind"],
            "axes": frame["axes"],
            # First what readers look for: how long it takes, and where it comes from
            "time": list(map(seconds_text, frame["predicted_s"])),
            "line": [line_text(location) for location in frame["where"]],
            "bytes": sizes("predicted"),
            "value": [value or "–" for value in frame["value"]],
            "compiled": list(map(compiled, frame.itertuples())),
            "its bytes": sizes("compiled"),
            "status": [status or "–" for status in frame["status"]],
            "why they differ": [reason or "–" for reason in frame["reason"]],
        }
    )


def collective_sums(frame: pd.DataFrame, compiled: bool) -> pd.DataFrame:
    """``collective_rows`` summed by kind and axes, in SI units.

    Each row says how many collectives run in a step and on how many bytes, priced and compiled;
    those that take longest come first.
    """
    keys = ["kind", "axes"]
    priced = frame[(frame["number"] >= 0) | frame["predicted_bytes"].notna()]
    times = priced["predicted_times"].astype(float).fillna(1.0)
    predicted = priced[keys].assign(
        predicted_count=times,
        predicted_bytes=priced["predicted_bytes"].astype(float).fillna(0.0) * times,
        predicted_s=priced["predicted_s"].astype(float).fillna(0.0),
    )
    built = frame[frame["compiled_kind"].notna() & (frame["compiled_kind"] != "")]
    counts = built["compiled_times"].astype(float)
    actual = pd.DataFrame(
        {
            "kind": built["compiled_kind"],
            "axes": built["compiled_axes"].replace("", None).fillna("?"),
            "compiled_count": counts,
            "compiled_bytes": built["compiled_bytes"].astype(float) * counts,
        }
    )
    sums = pd.concat([predicted, actual]).groupby(keys).sum().reset_index()
    if not compiled:
        sums[["compiled_count", "compiled_bytes"]] = None
    order = ["predicted_s", "predicted_bytes", *keys]
    return sums.sort_values(order, ascending=[False, False, True, True], ignore_index=True)


def shown_sums(frame: pd.DataFrame) -> pd.DataFrame:
    """``collective_sums`` as text for display."""

    def count(number: Any) -> str:
        return "–" if pd.isna(number) else f"{number:g}"

    ratio = [
        ratio_text(compiled / predicted) if predicted and pd.notna(compiled) else "–"
        for predicted, compiled in zip(
            frame["predicted_bytes"], frame["compiled_bytes"], strict=True
        )
    ]
    return pd.DataFrame(
        {
            "collective": frame["kind"],
            "axes": frame["axes"],
            "number": list(map(count, frame["predicted_count"])),
            "bytes": list(map(bytes_text, frame["predicted_bytes"])),
            "time": list(map(seconds_text, frame["predicted_s"])),
            "its number": list(map(count, frame["compiled_count"])),
            "its bytes": list(map(bytes_text, frame["compiled_bytes"])),
            "ratio": ratio,
        }
    )


SUM_GROUPS = {
    "estimated, a step": ["number", "bytes", "time"],
    "compiled": ["its number", "its bytes", "ratio"],
}
SUM_TITLES = {"its number": "number", "its bytes": "bytes", "ratio": "×"}


def ops_frame(cost: Any) -> pd.DataFrame:
    """Every op and collective of a plan, those that take longest first, in SI units.

    Shares are of the step time; ``source`` says where each time comes from.
    """
    step_s = cost.time_s or 1.0
    table_rows = [
        (op.op, op.kind, op.result, op.where, op.flops, op.moved_bytes, op.time_s, "", op.source)
        for op in cost.ops
    ]
    table_rows += [
        (
            *(row.op, row.kind, row.value, row.where, 0.0, row.local_bytes, row.time_s),
            *(",".join(row.axes), row.source),
        )
        for row in cost.collectives
    ]
    columns = "op kind value where flops moved_bytes time_s axes source".split()
    frame = pd.DataFrame(table_rows, columns=columns)
    frame.insert(7, "share", frame["time_s"] / step_s)
    return frame.sort_values("time_s", ascending=False, ignore_index=True)


class ShownOps(NamedTuple):
    """``ops_frame`` for display; cells stay numbers, so that a click on a heading sorts them."""

    frame: pd.DataFrame
    titles: dict[str, str]  #: headings with the unit of each column


def shown_ops(frame: pd.DataFrame, at_most: int = MAX_OPS) -> ShownOps:
    """``ops_frame`` for display, each column in the unit that suits its largest number."""
    frame = frame.head(at_most)

    def scaled(values: Any, scale: float) -> list[float]:
        return [float(f"{value / scale:.3g}") for value in values]

    largest = frame[["time_s", "flops", "moved_bytes"]].max().fillna(0.0)
    time_name, time_scale = time_unit(largest["time_s"])
    byte_name, byte_scale = byte_unit(largest["moved_bytes"])
    flop_name, flop_scale = flop_unit(largest["flops"])
    shown = pd.DataFrame(
        {
            "op": [
                kind + (f" {{{axes}}}" if axes else "")
                for kind, axes in zip(frame["kind"], frame["axes"], strict=True)
            ],
            "value": frame["value"],
            "line": [line_text(location) for location in frame["where"]],
            "share": scaled(frame["share"], 0.01),
            "time": scaled(frame["time_s"], time_scale),
            "price": frame["source"],
            "FLOP": scaled(frame["flops"], flop_scale),
            "moved": scaled(frame["moved_bytes"], byte_scale),
        }
    )
    titles = {
        "price": "priced by",
        "share": "share, %",
        "time": f"time, {time_name}",
        "FLOP": flop_name,
        "moved": f"{byte_name} moved",
    }
    return ShownOps(shown, titles)


def shown_effects(effects: Iterable[RuleEffect], time_s: float) -> pd.DataFrame:
    """Rules that act on an op, with the prices without each, as text for display.

    ``time_s``: what the op takes with all rules.
    """
    rows = [
        (
            effect.name,
            seconds_text(effect.time_s),
            ratio_text(effect.time_s / time_s) if time_s else "–",
            seconds_text(effect.plan_time_s),
            bytes_text(effect.plan_peak_bytes),
            effect.says,
        )
        for effect in effects
    ]
    return pd.DataFrame(rows, columns=["without", "this op", "×", "step", "memory", "what it says"])
