"""Preparation for child processes, so that a server's first jobs start as fast as later ones."""

from __future__ import annotations

from toast_lab import isolate

#: By name: importing them would take as long as the rest of a server's start.
_TARGETS = ("toast_lab.jobs.search_job:run_search", "toast_lab.jobs.load_job:load_model")


def warm_up() -> None:
    """Prepare, without waiting, for children that search and load."""
    for target in _TARGETS:
        isolate.warm_up(target)
