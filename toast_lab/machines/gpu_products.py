"""``GpuProducts``: how the matrix products of a GPU are dealt out to its processors."""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.machines.links import above_zero, at_least_zero


class GpuProducts(NamedTuple):
    """What ``cost/matrix_tiles.py`` needs to know of a GPU."""

    #: Streaming multiprocessors, each of which works on one tile of a result at a time.
    multiprocessors: float
    #: Share of the peak FLOP/s that they reach while all of them are at work.
    sustained: float
    #: Beside ``op_overhead_s``: filling the first tiles and emptying the last.
    start_s: float = 0.0
    #: The share for float32, 0: as for other types.
    sustained_f32: float = 0.0

    def share_of(self, dtype: str) -> float:
        """``sustained`` for products of an element type.

        >>> units = GpuProducts(multiprocessors=132, sustained=0.94, sustained_f32=0.75)
        >>> units.share_of("bf16"), units.share_of("f32")
        (0.94, 0.75)
        """
        return self.sustained_f32 if dtype == "f32" and self.sustained_f32 else self.sustained

    def problems(self) -> list[str]:
        """What is impossible about the numbers, one text each."""
        checks = (
            ("multiprocessors", above_zero(self.multiprocessors), "must be above 0"),
            ("sustained", 0 < self.sustained <= 1, "must be above 0 and at most 1"),
            ("start_s", at_least_zero(self.start_s), "must not be below 0"),
            ("sustained_f32", 0 <= self.sustained_f32 <= 1, "must be from 0 to 1"),
        )
        return [
            f"products.{key} = {getattr(self, key)!r} ({demand})"
            for key, passed, demand in checks
            if not passed
        ]
