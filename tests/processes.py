"""Finds the processes that a process has started, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def direct_children(pid: int) -> list[int]:
    """The living processes that a process has started itself."""
    return _children_by_parent().get(pid, [])


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of all living processes that descend from a process.

    Processes that compile kernels ahead of time are left out.
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


def workers(pid: int) -> set[int]:
    """The process numbers of a process's ``isolate`` children, without servers that fork them."""
    lines = dict(descendants(pid))
    by_parent = _children_by_parent()
    parents = {child: parent for parent, children in by_parent.items() for child in children}
    of_ours = {child for child, line in lines.items() if "toast_lab.isolate" in line}
    # A process forked off a server has the server's command line
    return {
        child for child in of_ours if "--serve" not in lines[child] or parents.get(child) in of_ours
    }


def started(pid: int) -> int:
    """The start time of a process, in ticks of the machine's clock."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _children_by_parent() -> dict[int, list[int]]:
    by_parent: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            state, parent = status.rpartition(")")[2].split()[:2]
            if state != "Z":
                by_parent.setdefault(int(parent), []).append(int(entry))
    return by_parent
