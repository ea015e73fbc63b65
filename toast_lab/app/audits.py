"""Audits of a page: of the loaded model, with the shardings that it carries itself."""

from __future__ import annotations

from typing import Any

import param

from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.errors import ToastError
from toast_lab.jobs.audit_job import RUN_AUDIT
from toast_lab.jobs.job import Job
from toast_lab.text import counted

#: Beside the compiler's limit of 600 s, changes are tried and a plan is searched.
TIME_LIMIT_S = 1200.0


class Audits(StatePart):
    """Settings of the next audit, and the outcome of the last one."""

    topology: Any = param.String(
        default=None,
        allow_None=True,
        doc="what it is compiled for; empty: priced alone; None: not chosen",
    )
    search: Any = param.Boolean(default=True, doc="whether a better plan is searched, too")
    outcome: Any = param.Parameter(default=None, doc="AuditOutcome of the loaded model, if any")

    def __init__(self, loaded: LoadedState, work: Work, notices: Notices) -> None:
        super().__init__()
        self._loaded, self._work, self._notices = loaded, work, notices
        work.handle("audit", Handler(self._ended))

    def start(self) -> None:
        """Audit the loaded model on the mesh of its own shardings, for the machine in force."""
        loaded = self._loaded
        with self._notices.guarded():
            if loaded.problem is None:
                raise ToastError("Load a model first.")
            self._work.start(
                "audit",
                f"auditing {loaded.model.name} as it is sharded",
                RUN_AUDIT,
                loaded.model,
                loaded.problem.machine,
                self.topology or "",
                search=self.search,
                limit_bytes=loaded.problem.memory_limit_bytes,
                time_limit_s=TIME_LIMIT_S,
                context=loaded.analysis.program,
            )

    def _ended(self, job: Job) -> None:
        if self._loaded.analysis.program is not self._work.context:
            self._notices.say(f"{job.message}, but another model is loaded now.")
            return
        self.outcome = job.result
        findings = counted(len(job.result.findings), "finding")
        self._notices.say(f"{job.message}, {findings}.", "good")
