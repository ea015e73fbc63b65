"""What kept rows of compiled plans can be believed in, by the version that read the compiler."""

from __future__ import annotations

#: The first ``READING`` of ``runtime/compile.py`` that takes a TPU's peak from the compiler's
#: buffer assignment. What was read before is up to a third too large.
ASSIGNED_PEAKS = 9

#: By platform the first that writes constraints where they are needed, and not behind every op.
NEEDED_CONSTRAINTS = {"tpu": 12, "gpu": 14, "cpu": 12}


def has_needed_constraints(topology: str, reading: int | str | None) -> bool:
    """Was the plan of a row written with the constraints that it needs, and no others?"""
    return int(reading or 0) >= NEEDED_CONSTRAINTS[topology.partition(":")[0]]


def has_peak(topology: str, reading: int | str | None) -> bool:
    """Is the peak of a row the one that the compiler came to?"""
    return not topology.startswith("tpu") or int(reading or 0) >= ASSIGNED_PEAKS
