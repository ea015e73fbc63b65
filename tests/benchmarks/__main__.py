"""Run benchmarks: ``python -m tests.benchmarks [part ...]``, all of ``PARTS`` by default.

The exit status is 1 if a target was missed, and 2 if there is no such part.
"""

from __future__ import annotations

import platform
import sys

from tests.benchmarks import children, cold, memory, nested, scaling, sessions, speed, zoo

PARTS = {
    "zoo": zoo.run,
    "speed": speed.run,
    "memory": memory.run,
    "scaling": scaling.run,
    "nested": nested.run,
    "sessions": sessions.run,
    "cold": cold.run,
    "children": children.run,
}


def main(names: list[str]) -> int:
    """Run the named parts, all of them by default."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part is called {', '.join(unknown)}; parts: {', '.join(PARTS)}")
        return 2
    print(f"{platform.machine()}, Python {platform.python_version()}")
    missed = [line for name in names or PARTS for line in PARTS[name]()]
    for line in missed:
        print(f"MISSED  {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
