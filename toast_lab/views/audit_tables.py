"""The findings of an audit as a frame, and its figures and changes as HTML."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from toast_lab.audit.findings import AuditRow, Finding, Remedy
from toast_lab.text import line_text
from toast_lab.views.markup import Safe, bytes_text, h, join, quiet, seconds_text

FINDING_COLUMNS = ["", "finding", "line", "costs", "saves", "change"]
NO_CHANGE = "none that was tried removes it"


def findings_frame(findings: Sequence[Finding], shares: Sequence[float]) -> pd.DataFrame:
    """One row per finding, in their order; ``shares`` of a step as ``Audit.share`` gives them."""
    return pd.DataFrame(
        [
            {
                "": number,
                "finding": finding.title,
                "line": line_text(finding.where) if finding.where else "arguments",
                "costs": _cost(finding),
                "saves": "–" if finding.remedy is None else _saving(finding.remedy, share),
                "change": NO_CHANGE if finding.remedy is None else finding.remedy.text,
            }
            for number, (finding, share) in enumerate(zip(findings, shares, strict=True), 1)
        ],
        columns=FINDING_COLUMNS,
    )


def _cost(finding: Finding) -> str:
    parts = [seconds_text(finding.time_s)] if finding.time_s > 0 else []
    parts += [bytes_text(finding.bytes)] if finding.bytes > 0 else []
    return ", ".join(parts) or "–"


def _saving(remedy: Remedy, share: float) -> str:
    parts = [seconds_text(remedy.saved_s)] if remedy.saved_s > 0 else []
    parts += [f"{bytes_text(remedy.saved_bytes)} of peak"] if remedy.saved_bytes > 0 else []
    return f"{', '.join(parts)} ({share:.1%})" if parts else f"{share:.1%}"


def figures(contenders: Sequence[AuditRow]) -> Safe:
    """Step, peak and bytes sent of each sharding; the compiler's figures where there are some."""
    rows = [h("tr", *(h("th", title) for title in ("", "step", "memory", "sent")))]
    for row in contenders:
        memory = bytes_text(row.peak_bytes) + ("" if row.fits else ", does not fit")
        cells = [row.name, seconds_text(row.time_s), memory, bytes_text(row.sent_bytes)]
        rows.append(h("tr", *(h("td", cell) for cell in cells)))
        if row.compiled_peak_bytes is not None and row.compiled_sent_bytes is not None:
            clock = seconds_text(row.compiled_s) if row.compiled_s else "–"
            compiled_bytes = row.compiled_peak_bytes, row.compiled_sent_bytes
            cells = [f"{row.name}, compiled", clock, *map(bytes_text, compiled_bytes)]
            rows.append(h("tr", *(h("td", cell) for cell in cells)))
    return h("table", *rows, cls="figures")


def changes(findings: Sequence[Finding]) -> Safe:
    """The reason of each finding, and the lines of code to write, ready to be copied."""
    paragraphs: list[Safe] = []
    for number, finding in enumerate(findings, 1):
        paragraphs.append(h("p", h("b", f"{number}. {finding.title}")))
        paragraphs.append(quiet(finding.why))
        if finding.remedy is not None:
            paragraphs += [h("pre", line) for line in finding.remedy.code]
    return join(*paragraphs)
