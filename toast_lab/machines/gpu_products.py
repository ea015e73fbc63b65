"""``GpuProducts``: how the matrix products of a GPU are dealt out to its processors."""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.machines.links import above_zero, at_least_zero

#: Of a convolution: below so many features it takes as long as with these.
FEATURES = 64.0
#: More fill a GPU better, as this power of their number, up to a share of ``MOST``.  Read off 18
#: convolutions and gradients of such on an H100: 0.21 to 0.36 of the peak with 64 features, 0.43 to
#: 0.55 with 256, 0.03 with the three of an image.
MORE_FEATURES, MOST = 0.28, 0.6


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
    #: FLOP/s of products that ask for full float32, which matrix units do not have; 0: as for all
    #: of float32.
    full_f32_flops: float = 0.0
    #: Share of the peak that convolutions of ``FEATURES`` features reach; 0: all of it.
    convolutions: float = 0.0

    def share_of(self, dtype: str) -> float:
        """``sustained`` for products of an element type.

        >>> units = GpuProducts(multiprocessors=132, sustained=0.94, sustained_f32=0.75)
        >>> units.share_of("bf16"), units.share_of("f32")
        (0.94, 0.75)
        """
        return self.sustained_f32 if dtype == "f32" and self.sustained_f32 else self.sustained

    def convolution_share(self, features: float) -> float:
        """Share of the peak that a convolution reaches.

        Args:
            features: the fewer of those that it sums and those that it makes.

        >>> units = GpuProducts(multiprocessors=132, sustained=0.94, convolutions=0.36)
        >>> [round(units.convolution_share(features), 2) for features in (8, 64, 256)]
        [0.04, 0.36, 0.53]
        """
        if not self.convolutions:
            return 1.0
        wide = features / FEATURES
        return min(MOST, self.convolutions * (wide if wide < 1.0 else wide**MORE_FEATURES))

    def problems(self) -> list[str]:
        """What is impossible about the numbers, one text each."""
        checks = (
            ("multiprocessors", above_zero(self.multiprocessors), "must be above 0"),
            ("sustained", 0 < self.sustained <= 1, "must be above 0 and at most 1"),
            ("start_s", at_least_zero(self.start_s), "must not be below 0"),
            ("sustained_f32", 0 <= self.sustained_f32 <= 1, "must be from 0 to 1"),
            ("full_f32_flops", at_least_zero(self.full_f32_flops), "must not be below 0"),
            ("convolutions", 0 <= self.convolutions <= 1, "must be from 0 to 1"),
        )
        return [
            f"products.{key} = {getattr(self, key)!r} ({demand})"
            for key, passed, demand in checks
            if not passed
        ]
