"""Which processes a process has started, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def direct_children(pid: int) -> list[int]:
    """Living processes that a process has started itself."""
    return _children_by_parent().get(pid, [])


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of all living processes that descend from a process.

    Those that compile kernels ahead are left out.
    """
    by_parent = _children_by_parent()
    living: list[tuple[int, str]] = []
    waiting = list(by_parent.get(pid, []))
    while waiting:
        child = waiting.pop()
        waiting += by_parent.get(child, [])
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "toast_lab.prepare" not in words:
            living.append((child, " ".join(words[1:4])))
    return living


def _children_by_parent() -> dict[int, list[int]]:
    by_parent: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it has ended since
                continue
            state, parent = status.rpartition(")")[2].split()[:2]
            if state != "Z":
                by_parent.setdefault(int(parent), []).append(int(entry))
    return by_parent
