"""An audit of a model as it is sharded, in a child process.

The child reports each stage as a text. It needs the model's program and text alone, not its
function, so models that were traced in another process are audited like all others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.audit.audit import Audit, audit_model
from toast_lab.audit.findings import AuditRow, Finding
from toast_lab.ir.model import Model
from toast_lab.machines.machine_model import Machine
from toast_lab.prepare import load_present

#: Run once in the fork server, for all children forked from it to audit (``fork_server``).
before_fork = load_present

RUN_AUDIT = "toast_lab.jobs.audit_job:run_audit"


class AuditRequest(NamedTuple):
    """A request for a child process to audit a model."""

    model: Model
    machine: Machine  #: to price for
    topology: str  #: to compile for; empty: the model is priced alone
    search: bool = True  #: for a better plan on the same mesh
    memory_limit_bytes: float | None = None  #: of a device; None: the machine's memory


class AuditOutcome(NamedTuple):
    """What a page shows of an audit: no program, so that it crosses processes quickly."""

    findings: tuple[Finding, ...]  #: those that save most first; ops are those of the model
    shares: tuple[float, ...]  #: of a step, for each finding, see ``Audit.share``
    contenders: tuple[AuditRow, ...]  #: as written, data parallel, the best plan found
    mesh: str
    machine: str
    compiled_for: str  #: empty: priced alone
    notes: tuple[str, ...]


def run_audit(request: AuditRequest) -> AuditOutcome:
    """Audit a model.

    Raises:
        InvalidProblem: as ``audit_model``.
        RunFailed: the compiler crashed, hung or refused the program.
    """
    options: dict[str, Any] = {"topology": request.topology} if request.topology else {}
    audit = audit_model(
        request.model,
        machine=request.machine,
        on_progress=isolate.report,
        compile=bool(request.topology),
        search=request.search,
        memory_limit_bytes=request.memory_limit_bytes,
        **options,
    )
    return outcome_of(audit)


def outcome_of(audit: Audit) -> AuditOutcome:
    """What a page shows of an audit."""
    return AuditOutcome(
        findings=audit.findings,
        shares=tuple(map(audit.share, audit.findings)),
        contenders=audit.contenders,
        mesh=str(audit.problem.mesh),
        machine=audit.problem.machine.name,
        compiled_for=audit.compiled.topology if audit.compiled is not None else "",
        notes=audit.notes,
    )
