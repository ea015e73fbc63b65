"""How often pages look at what jobs and threads have done."""

from __future__ import annotations

#: Curves have to come five times a second or more, and each time costs the search a little.
TICK_MS = 180
#: While nothing runs: two dozen pages that tick for nothing cost a sixth of a core.
IDLE_MS = 250
