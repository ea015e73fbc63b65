"""What kept rows of compiled plans can be believed in, by the version that read the compiler."""

from __future__ import annotations

#: The first ``READING`` of ``runtime/compile.py`` that takes a TPU's peak from the compiler's
#: buffer assignment. What was read before is up to a third too large.
ASSIGNED_PEAKS = 9


def has_peak(topology: str, reading: int | str | None) -> bool:
    """Is the peak of a row the one that the compiler came to?"""
    return not topology.startswith("tpu") or int(reading or 0) >= ASSIGNED_PEAKS
