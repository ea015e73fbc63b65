"""Which facts in kept rows of compiled plans are reliable, by the version that read them."""

from __future__ import annotations

#: The first ``READING`` of ``runtime/compile.py`` that takes a TPU's peak from the compiler's
#: buffer assignment. Earlier readings are up to a third too large.
ASSIGNED_PEAKS = 9

#: For each platform, the first ``READING`` with constraints only where needed, not after every op.
NEEDED_CONSTRAINTS = {"tpu": 12, "gpu": 14, "cpu": 12}


def has_needed_constraints(topology: str, reading: int | str | None) -> bool:
    """Was the plan of a row compiled with the constraints that it needs, and no others?"""
    return int(reading or 0) >= NEEDED_CONSTRAINTS[topology.partition(":")[0]]


def has_peak(topology: str, reading: int | str | None) -> bool:
    """Is the peak of a row the compiler's own number?"""
    return not topology.startswith("tpu") or int(reading or 0) >= ASSIGNED_PEAKS
