"""Which slice and mesh to take: an advice on the loaded model, whose rows come as it goes on."""

from __future__ import annotations

from typing import Any

import param

from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.errors import ToastError
from toast_lab.jobs.advise_job import RUN_ADVISE, PageAdvice
from toast_lab.jobs.job import Event, Job
from toast_lab.machines.catalogue import MACHINES
from toast_lab.text import counted

KIND = "advise"
TIME_LIMIT_S = 6 * 3600.0


class MeshAdvice(StatePart):
    """The last advice of a page."""

    state: Any = param.Parameter(default=None, doc="PageAdvice; None: nobody has asked yet")
    changes: Any = param.Integer(default=0, doc="counts up whenever the advice has changed")

    def __init__(self, loaded: LoadedState, work: Work, notices: Notices) -> None:
        super().__init__()
        self._loaded, self._work, self._notices = loaded, work, notices
        work.handle(KIND, Handler(self._ended, self._reported, self._lost))

    @property
    def running(self) -> bool:
        """Does the work go on?"""
        return self._work.awaits(KIND)

    def start(self, machine: str, devices: int, memory_gib: float | None, **options: Any) -> None:
        """Look at the slices of a machine with up to so many devices.

        Args:
            machine: name of a built-in machine, or of one of the user's own.
            devices: the most devices.
            memory_gib: limit of a device; None: the machine's own.
            options: of ``tl.advise``.
        """
        loaded = self._loaded
        with self._notices.guarded():
            if loaded.analysis is None:
                raise ToastError("Load a model first.")
            self._work.start(
                KIND,
                f"advising on {loaded.model.name}",
                RUN_ADVISE,
                loaded.model,
                loaded.analysis,
                loaded.own_machines.get(machine) or MACHINES[machine],
                devices,
                # Not by name: a child's own limit of memory has the same name
                {**options, "memory_limit_bytes": memory_gib and memory_gib * 2.0**30},
                time_limit_s=TIME_LIMIT_S,
            )
            self.state = PageAdvice(loaded.model)
            self.changes += 1

    def stop(self) -> None:
        """End the work, and keep its rows."""
        if self.running:
            self._work.job.stop()
            self._work.changed()

    def _reported(self, event: Event) -> None:
        self.state.take(event.data)
        self.changes += 1

    def _ended(self, job: Job) -> None:
        self.state.finish(job.result)
        self.changes += 1
        rows = self.state.rows
        best = f" {job.result.answers[0]}" if job.result.answers else ""
        self._notices.say(f"{job.message}: {counted(len(rows), 'set-up')}.{best}", "good")

    def _lost(self, job: Job) -> None:
        """Keep the rows of a child that died, or was cancelled."""
        self.state.stage = ""
        self.changes += 1
        if self.state.rows:
            self._notices.say(f"{counted(len(self.state.rows), 'row')} of the advice are kept.")
