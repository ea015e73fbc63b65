"""Tables of one plan: collectives priced and compiled, and every op with its share of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from toast_lab.text import line_text
from toast_lab.views.compare_table import bytes_text, seconds_text

MAX_OPS = 1000
_KIND = {"permute": "collective_permute"}


def collective_rows(cost: Any, matched: Sequence[dict[str, Any]] | None) -> pd.DataFrame:
    """Every collective of a plan, in SI units.

    Args:
        cost: the plan's price.
        matched: rows of ``CompiledDiff.tidy``, or None if nothing was compiled.

    ``index_in_cost`` is the place in ``cost.collectives``, -1 for what the compiler added.
    """
    waiting: dict[tuple[Any, ...], list[int]] = {}
    for index, collective in enumerate(cost.collectives):
        waiting.setdefault(
            (
                collective.op,
                _KIND.get(collective.kind, collective.kind),
                ",".join(collective.axes),
                collective.value,
            ),
            [],
        ).append(index)
    table_rows = []
    if matched is None:
        matched = [
            {
                "predicted_kind": _KIND.get(collective.kind, collective.kind),
                "predicted_axes": ",".join(collective.axes),
                "predicted_value": collective.value,
                "predicted_bytes": collective.local_bytes,
                "predicted_times": None,
                "op": collective.op,
                "where": collective.where,
                "compiled_kind": None,
                "status": "",
                "reason": "",
            }
            for collective in cost.collectives
        ]
    for match in matched:
        collective_key = (
            match["op"],
            match["predicted_kind"],
            match["predicted_axes"],
            match["predicted_value"],
        )
        index_in_cost = waiting[collective_key].pop(0) if waiting.get(collective_key) else -1
        priced = cost.collectives[index_in_cost] if index_in_cost >= 0 else None
        table_rows.append(
            {
                "number": index_in_cost,
                "kind": match["predicted_kind"] or match["compiled_kind"],
                "axes": match["predicted_axes"]
                if match["predicted_kind"]
                else match.get("compiled_axes") or "?",
                "value": match["predicted_value"] or "",
                "where": match["where"],
                "predicted_bytes": match["predicted_bytes"],
                "predicted_times": match["predicted_times"],
                "predicted_s": priced.time_s if priced is not None else None,
                "compiled_kind": match["compiled_kind"],
                "compiled_axes": match.get("compiled_axes"),
                "compiled_bytes": match.get("compiled_bytes"),
                "compiled_times": match.get("compiled_times"),
                "status": match["status"],
                "reason": match["reason"],
                "op": match["op"],
            }
        )
    columns = [
        "number",
        "kind",
        "axes",
        "value",
        "where",
        "predicted_bytes",
        "predicted_times",
        "predicted_s",
        "compiled_kind",
        "compiled_axes",
        "compiled_bytes",
        "compiled_times",
        "status",
        "reason",
        "op",
    ]
    return pd.DataFrame(table_rows, columns=columns)


def shown_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """``collective_rows`` as people read it."""

    def size(nbytes: Any, times: Any) -> str:
        if nbytes is None or nbytes != nbytes:
            return "–"
        return bytes_text(float(nbytes)) + (
            f" ×{times:g}" if times is not None and times == times and times != 1 else ""
        )

    compiled = [
        "–"
        if not compiled_kind or compiled_kind != compiled_kind
        else (compiled_kind if compiled_kind != kind else "the same")
        + (f" {{{compiled_axes}}}" if compiled_axes and compiled_axes != axes else "")
        for compiled_kind, compiled_axes, kind, axes in zip(
            frame["compiled_kind"],
            frame["compiled_axes"],
            frame["kind"],
            frame["axes"],
            strict=True,
        )
    ]
    return pd.DataFrame(
        {
            "collective": frame["kind"],
            "axes": frame["axes"],
            "value": [value or "–" for value in frame["value"]],
            "line": [line_text(location) for location in frame["where"]],
            "bytes": [
                size(*pair)
                for pair in zip(frame["predicted_bytes"], frame["predicted_times"], strict=True)
            ],
            "time": [
                seconds_text(None if value != value else value) for value in frame["predicted_s"]
            ],
            "compiled": compiled,
            "its bytes": [
                size(*pair)
                for pair in zip(frame["compiled_bytes"], frame["compiled_times"], strict=True)
            ],
            "status": [status or "–" for status in frame["status"]],
            "why they differ": [reason or "–" for reason in frame["reason"]],
        }
    )


def collective_sums(frame: pd.DataFrame, compiled: bool) -> pd.DataFrame:
    """``collective_rows`` by kind and axes (SI).

    Tells how many run in a step and how many bytes, priced and compiled.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for record in frame.to_dict("records"):
        if record["number"] >= 0 or record["predicted_bytes"] == record["predicted_bytes"]:
            sum_of_kind = sums.setdefault((record["kind"], record["axes"]), [0.0] * 5)
            times = (
                record["predicted_times"]
                if record["predicted_times"] == record["predicted_times"]
                else None
            )
            sum_of_kind[0] += times or 1.0
            sum_of_kind[1] += (record["predicted_bytes"] or 0.0) * (times or 1.0)
            sum_of_kind[2] += (
                record["predicted_s"]
                if record["predicted_s"] == record["predicted_s"] and record["predicted_s"]
                else 0.0
            )
        if record["compiled_kind"] and record["compiled_kind"] == record["compiled_kind"]:
            sum_of_kind = sums.setdefault(
                (record["compiled_kind"], record["compiled_axes"] or "?"), [0.0] * 5
            )
            sum_of_kind[3] += record["compiled_times"]
            sum_of_kind[4] += record["compiled_bytes"] * record["compiled_times"]
    table_rows = [
        (*kind_and_axes, *numbers[:3], *(numbers[3:] if compiled else (None, None)))
        for kind_and_axes, numbers in sorted(sums.items())
    ]
    return pd.DataFrame(
        table_rows,
        columns=[
            "kind",
            "axes",
            "predicted_count",
            "predicted_bytes",
            "predicted_s",
            "compiled_count",
            "compiled_bytes",
        ],
    )


def shown_sums(frame: pd.DataFrame) -> pd.DataFrame:
    """``collective_sums`` as people read it."""

    def count(number: Any) -> str:
        return "–" if number is None or number != number else f"{number:g}"

    ratio = [
        f"{compiled / predicted:.3g}×"
        if predicted and compiled is not None and compiled == compiled
        else "–"
        for predicted, compiled in zip(
            frame["predicted_bytes"], frame["compiled_bytes"], strict=True
        )
    ]
    return pd.DataFrame(
        {
            "collective": frame["kind"],
            "axes": frame["axes"],
            "number": [count(value) for value in frame["predicted_count"]],
            "bytes": [bytes_text(value) for value in frame["predicted_bytes"]],
            "time": [seconds_text(value) for value in frame["predicted_s"]],
            "its number": [count(value) for value in frame["compiled_count"]],
            "its bytes": [bytes_text(value) for value in frame["compiled_bytes"]],
            "ratio": ratio,
        }
    )


SUM_GROUPS = {
    "estimated, one step": ["number", "bytes", "time"],
    "compiled, one step (×: bytes over estimated)": ["its number", "its bytes", "ratio"],
}
SUM_TITLES = {"its number": "number", "its bytes": "bytes", "ratio": "×"}


def ops_frame(cost: Any) -> pd.DataFrame:
    """Every op and collective of a plan, what takes longest first, in SI units.

    Shares are of the step time.
    """
    step_s = float(cost.time_s) or 1.0
    table_rows = [
        (
            op.op,
            op.kind,
            op.result,
            op.where,
            op.flops,
            op.moved_bytes,
            op.time_s,
            op.time_s / step_s,
            "",
        )
        for op in cost.ops
    ]
    table_rows += [
        (
            collective.op,
            collective.kind,
            collective.value,
            collective.where,
            0.0,
            collective.local_bytes,
            collective.time_s,
            collective.time_s / step_s,
            ",".join(collective.axes),
        )
        for collective in cost.collectives
    ]
    columns = ["op", "kind", "value", "where", "flops", "moved_bytes", "time_s", "share", "axes"]
    return pd.DataFrame(table_rows, columns=columns).sort_values(
        "time_s", ascending=False, ignore_index=True
    )


def shown_ops(frame: pd.DataFrame, at_most: int = MAX_OPS) -> pd.DataFrame:
    """``ops_frame`` in fixed units, as numbers, so that a click on a heading sorts them."""
    frame = frame.head(at_most)

    def digits(values: Any) -> list[float]:
        return [float(f"{value:.3g}") for value in values]

    return pd.DataFrame(
        {
            "op": [
                kind + (f" {{{axes}}}" if axes else "")
                for kind, axes in zip(frame["kind"], frame["axes"], strict=True)
            ],
            "value": frame["value"],
            "line": [line_text(location) for location in frame["where"]],
            "share, %": digits(100 * frame["share"]),
            "time, µs": digits(1e6 * frame["time_s"]),
            "GFLOP": digits(1e-9 * frame["flops"]),
            "MiB moved": digits(frame["moved_bytes"] / 2**20),
        }
    )
