"""The names of the platforms, which commands read before anything is loaded."""

from __future__ import annotations

PLATFORMS = ("cpu", "tpu", "gpu")
