"""Certify by execution: ``python -m tests.certification [rules] [--full]``.  Exit status 1 if anything fails."""

from __future__ import annotations

import sys

from tests.certification import rules

PARTS = {"rules": rules.run}


def main(arguments: list[str]) -> int:
    """Run the named parts, all of them by default."""
    full = "--full" in arguments
    names = [a for a in arguments if not a.startswith("--")] or list(PARTS)
    failures = [f"{name}: {line}" for name in names for line in PARTS[name](full)]
    for line in failures:
        print(f"FAILED  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
