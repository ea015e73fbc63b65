"""The first jobs of a process begin as soon as later ones: what they need is made ready beside."""

from __future__ import annotations

from toast_lab import isolate

#: Named and not imported: that takes as long as the rest of a server's start.
_TARGETS = ("toast_lab.jobs.search_job:run_search", "toast_lab.jobs.load_job:load_model")


def warm_up() -> None:
    """Make ready for children that search and load; does not wait."""
    for target in _TARGETS:
        isolate.warm_up(target, isolate.WITHOUT_ACCELERATOR)
