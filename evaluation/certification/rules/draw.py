"""``Draw``: the sizes and numbers of a case.

Hypothesis draws them, so that a failure shrinks to small sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

T = TypeVar("T")


class Draw:
    """Draws sizes and choices; arrays come from a generator whose seed is drawn too."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))

    def size(self, label: str = "size") -> int:
        """A size that 2 and 4 divide."""
        return int(self._data.draw(st.sampled_from([4, 8, 12, 16]), label=label))

    def small(self, low: int, high: int, label: str = "small") -> int:
        """Any integer from ``low`` to ``high``, both included."""
        return int(self._data.draw(st.integers(low, high), label=label))

    def pick(self, options: Sequence[T], label: str = "pick") -> T:
        """One of ``options``; failures shrink towards the first."""
        return self._data.draw(st.sampled_from(list(options)), label=label)

    def floats(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Normally distributed numbers."""
        found = self.rng.normal(size=shape)
        if np.issubdtype(dtype, np.complexfloating):
            found = found + 1j * self.rng.normal(size=shape)
        return np.asarray(found).astype(dtype)

    def ints(self, high: int, *shape: int, low: int = 0, dtype: Any = np.int32) -> np.ndarray:
        """Integers from ``low`` up to, but not including, ``high``."""
        return np.asarray(self.rng.integers(low, high, shape)).astype(dtype)

    def numbers(self, element: str, *shape: int) -> np.ndarray:
        """Numbers of a StableHLO element type.

        Floats lie in (0.1, 0.9), integers are small, and booleans take both values.
        """
        from toast_lab.runtime.inputs import dtype_of

        dtype = dtype_of(element)
        if dtype == np.bool_:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return self.rng.integers(1, 8, shape).astype(dtype)
        if dtype.kind == "c":
            return (
                self.rng.uniform(0.1, 0.9, shape) + 1j * self.rng.uniform(0.1, 0.9, shape)
            ).astype(dtype)
        return self.rng.uniform(0.1, 0.9, shape).astype(dtype)
