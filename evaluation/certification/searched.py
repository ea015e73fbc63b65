"""Certify that plans of searches compile and compute what the unsharded program computes.

``plans`` certifies random plans; those of searches are refined op by op, which random ones never
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation.certification import draw, plans

FULL = (2_000, 8)  #: evaluations of a search, and plans on each mesh
SHORT = (500, 1)


def run(full: bool, file: Path | None = None, only: Sequence[str] = (), seed: int = 0) -> list[str]:
    """Run the part "searched" of the certification; arguments as in ``plans.run``."""
    source = draw.searched(*(FULL if full else SHORT))
    return plans.run(full, file, only, seed, source=source)
