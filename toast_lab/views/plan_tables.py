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

    ``number`` is the place in ``cost.collectives``, -1 for what the compiler added.
    """
    left: dict[tuple[Any, ...], list[int]] = {}
    for i, c in enumerate(cost.collectives):
        left.setdefault((c.op, _KIND.get(c.kind, c.kind), ",".join(c.axes), c.value), []).append(i)
    rows = []
    if matched is None:
        matched = [
            {
                "predicted_kind": _KIND.get(c.kind, c.kind),
                "predicted_axes": ",".join(c.axes),
                "predicted_value": c.value,
                "predicted_bytes": c.local_bytes,
                "predicted_times": None,
                "op": c.op,
                "where": c.where,
                "compiled_kind": None,
                "status": "",
                "reason": "",
            }
            for c in cost.collectives
        ]
    for r in matched:
        key = (r["op"], r["predicted_kind"], r["predicted_axes"], r["predicted_value"])
        number = left[key].pop(0) if left.get(key) else -1
        ours = cost.collectives[number] if number >= 0 else None
        rows.append(
            {
                "number": number,
                "kind": r["predicted_kind"] or r["compiled_kind"],
                "axes": r["predicted_axes"]
                if r["predicted_kind"]
                else r.get("compiled_axes") or "?",
                "value": r["predicted_value"] or "",
                "where": r["where"],
                "predicted_bytes": r["predicted_bytes"],
                "predicted_times": r["predicted_times"],
                "predicted_s": ours.time_s if ours is not None else None,
                "compiled_kind": r["compiled_kind"],
                "compiled_axes": r.get("compiled_axes"),
                "compiled_bytes": r.get("compiled_bytes"),
                "compiled_times": r.get("compiled_times"),
                "status": r["status"],
                "reason": r["reason"],
                "op": r["op"],
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
    return pd.DataFrame(rows, columns=columns)


def shown_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """``collective_rows`` as people read it."""

    def size(v: Any, times: Any) -> str:
        if v is None or v != v:
            return "–"
        return bytes_text(float(v)) + (
            f" ×{times:g}" if times is not None and times == times and times != 1 else ""
        )

    compiled = [
        "–"
        if not k or k != k
        else (k if k != kind else "the same") + (f" {{{a}}}" if a and a != axes else "")
        for k, a, kind, axes in zip(
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
            "value": [v or "–" for v in frame["value"]],
            "line": [line_text(w) for w in frame["where"]],
            "bytes": [
                size(*p)
                for p in zip(frame["predicted_bytes"], frame["predicted_times"], strict=True)
            ],
            "time": [seconds_text(None if v != v else v) for v in frame["predicted_s"]],
            "compiled": compiled,
            "its bytes": [
                size(*p) for p in zip(frame["compiled_bytes"], frame["compiled_times"], strict=True)
            ],
            "status": [s or "–" for s in frame["status"]],
            "why they differ": [r or "–" for r in frame["reason"]],
        }
    )


def collective_sums(frame: pd.DataFrame, compiled: bool) -> pd.DataFrame:
    """``collective_rows`` by kind and axes (SI).

    Tells how many run in a step and how many bytes, priced and compiled.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for r in frame.to_dict("records"):
        if r["number"] >= 0 or r["predicted_bytes"] == r["predicted_bytes"]:
            row = found.setdefault((r["kind"], r["axes"]), [0.0] * 5)
            times = r["predicted_times"] if r["predicted_times"] == r["predicted_times"] else None
            row[0] += times or 1.0
            row[1] += (r["predicted_bytes"] or 0.0) * (times or 1.0)
            row[2] += (
                r["predicted_s"]
                if r["predicted_s"] == r["predicted_s"] and r["predicted_s"]
                else 0.0
            )
        if r["compiled_kind"] and r["compiled_kind"] == r["compiled_kind"]:
            row = found.setdefault((r["compiled_kind"], r["compiled_axes"] or "?"), [0.0] * 5)
            row[3] += r["compiled_times"]
            row[4] += r["compiled_bytes"] * r["compiled_times"]
    rows = [(*k, *v[:3], *(v[3:] if compiled else (None, None))) for k, v in sorted(found.items())]
    return pd.DataFrame(
        rows,
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

    def count(v: Any) -> str:
        return "–" if v is None or v != v else f"{v:g}"

    ratio = [
        f"{b / a:.3g}×" if a and b is not None and b == b else "–"
        for a, b in zip(frame["predicted_bytes"], frame["compiled_bytes"], strict=True)
    ]
    return pd.DataFrame(
        {
            "collective": frame["kind"],
            "axes": frame["axes"],
            "number": [count(v) for v in frame["predicted_count"]],
            "bytes": [bytes_text(v) for v in frame["predicted_bytes"]],
            "time": [seconds_text(v) for v in frame["predicted_s"]],
            "its number": [count(v) for v in frame["compiled_count"]],
            "its bytes": [bytes_text(v) for v in frame["compiled_bytes"]],
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
    whole = float(cost.time_s) or 1.0
    rows = [
        (o.op, o.kind, o.result, o.where, o.flops, o.moved_bytes, o.time_s, o.time_s / whole, "")
        for o in cost.ops
    ]
    rows += [
        (
            c.op,
            c.kind,
            c.value,
            c.where,
            0.0,
            c.local_bytes,
            c.time_s,
            c.time_s / whole,
            ",".join(c.axes),
        )
        for c in cost.collectives
    ]
    columns = ["op", "kind", "value", "where", "flops", "moved_bytes", "time_s", "share", "axes"]
    return pd.DataFrame(rows, columns=columns).sort_values(
        "time_s", ascending=False, ignore_index=True
    )


def shown_ops(frame: pd.DataFrame, at_most: int = MAX_OPS) -> pd.DataFrame:
    """``ops_frame`` in fixed units, as numbers, so that a click on a heading sorts them."""
    frame = frame.head(at_most)

    def digits(values: Any) -> list[float]:
        return [float(f"{v:.3g}") for v in values]

    return pd.DataFrame(
        {
            "op": [
                k + (f" {{{a}}}" if a else "")
                for k, a in zip(frame["kind"], frame["axes"], strict=True)
            ],
            "value": frame["value"],
            "line": [line_text(w) for w in frame["where"]],
            "share, %": digits(100 * frame["share"]),
            "time, µs": digits(1e6 * frame["time_s"]),
            "GFLOP": digits(1e-9 * frame["flops"]),
            "MiB moved": digits(frame["moved_bytes"] / 2**20),
        }
    )
