"""An audit of a model as it is sharded, in a child process.

The child reports each stage as a text. It needs the model's program and text alone, not its
function, so models that were traced in another process are audited like all others.
"""

from __future__ import annotations

from typing import NamedTuple

from toast_lab import isolate
from toast_lab.audit.audit import audit_model
from toast_lab.audit.findings import AuditRow, Finding
from toast_lab.ir.model import Model
from toast_lab.machines.machine_model import Machine
from toast_lab.prepare import load_present

#: Run once in the fork server, for all children forked from it to audit (``fork_server``).
before_fork = load_present

RUN_AUDIT = "toast_lab.jobs.audit_job:run_audit"


class AuditOutcome(NamedTuple):
    """What a page shows of an audit: no program, so that it crosses processes quickly."""

    findings: tuple[Finding, ...]  #: those that save most first; ops are those of the model
    shares: tuple[float, ...]  #: of a step, for each finding, see ``Audit.share``
    contenders: tuple[AuditRow, ...]  #: as written, data parallel, the best plan found
    mesh: str
    machine: str
    compiled_for: str  #: empty: priced alone
    notes: tuple[str, ...]


def run_audit(
    model: Model,
    machine: Machine,
    topology: str = "",
    *,
    search: bool = True,
    limit_bytes: float | None = None,
) -> AuditOutcome:
    """Audit a model.

    Args:
        model: with shardings.
        machine: to price for.
        topology: to compile for; empty: the model is priced alone.
        search: for a better plan on the same mesh.
        limit_bytes: memory of a device; None: the machine's memory.

    Raises:
        InvalidProblem: as ``audit_model``.
        RunFailed: the compiler crashed, hung or refused the program.
    """
    audit = audit_model(
        model,
        machine=machine,
        topology=topology or None,
        on_progress=isolate.report,
        compile=bool(topology),
        search=search,
        memory_limit_bytes=limit_bytes,
    )
    return AuditOutcome(
        findings=audit.findings,
        shares=tuple(map(audit.share, audit.findings)),
        contenders=audit.contenders,
        mesh=str(audit.problem.mesh),
        machine=audit.problem.machine.name,
        compiled_for=audit.compiled.topology if audit.compiled is not None else "",
        notes=audit.notes,
    )
