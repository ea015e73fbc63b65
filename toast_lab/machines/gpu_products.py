"""``GpuProducts``: how well matrix products and convolutions use the processors of a GPU."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from toast_lab.records import ABOVE_ZERO, AT_LEAST_ZERO, PART, SHARE

#: With fewer features, a convolution takes as long as with this many.
FEATURES = 64.0
#: More features use a GPU better: the share grows with this power of their number, up to
#: ``MAX_CONVOLUTION_SHARE``. From 18 convolutions and gradients of convolutions on an H100: 0.21 to
#: 0.36 of the peak with 64 features, 0.43 to 0.55 with 256, 0.03 with the three of an image.
MORE_FEATURES, MAX_CONVOLUTION_SHARE = 0.28, 0.6


class GpuProducts(NamedTuple):
    """The numbers of a GPU that ``cost/matrix_tiles.py`` needs."""

    #: Streaming multiprocessors, each of which works on one tile of a result at a time.
    multiprocessors: Annotated[float, ABOVE_ZERO]
    #: Share of the peak FLOP/s that they reach while all of them are busy.
    sustained: Annotated[float, PART]
    #: Time, in addition to ``op_overhead_s``, to fill the first tiles and empty the last.
    start_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: ``sustained`` for float32; 0: as for other types.
    sustained_f32: Annotated[float, SHARE] = 0.0
    #: FLOP/s of products that ask for full float32, which matrix units do not have; 0: as for other
    #: float32 products.
    full_f32_flops: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: Share of the peak that convolutions of ``FEATURES`` features reach; 0: all of it.
    convolutions: Annotated[float, SHARE] = 0.0

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
            features: its input or output features, whichever are fewer.

        >>> units = GpuProducts(multiprocessors=132, sustained=0.94, convolutions=0.36)
        >>> [round(units.convolution_share(features), 2) for features in (8, 64, 256)]
        [0.04, 0.36, 0.53]
        """
        if not self.convolutions:
            return 1.0
        ratio = features / FEATURES
        return min(
            MAX_CONVOLUTION_SHARE,
            self.convolutions * (ratio if ratio < 1.0 else ratio**MORE_FEATURES),
        )
