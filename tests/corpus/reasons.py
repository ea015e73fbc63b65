"""Why prices of some programs are off, as far as it is known."""

from __future__ import annotations

#: By program; "" is not kept: what nobody looked into has no reason.
REASONS: dict[str, str] = {}
