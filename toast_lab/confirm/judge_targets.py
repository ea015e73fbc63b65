"""The judges that a problem can have, those of its machine first, with reasons against others."""

from __future__ import annotations

import os
from typing import NamedTuple

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES
from toast_lab.runtime import topologies
from toast_lab.runtime.compile import check_compiler
from toast_lab.runtime.topologies import Topology

#: Device files of NVIDIA, AMD and Windows Subsystem for Linux; without any, no GPU is attached.
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class JudgeTarget(NamedTuple):
    """A topology for which plans of a problem could be judged."""

    title: str  #: shown to people
    topology: str  #: for ``Judging``
    refusal: str = ""  #: why it cannot judge on this computer; empty: it can
    warning: str = ""  #: what it cannot tell about this problem's plans; empty: nothing
    is_other_machine: bool = False  #: is it for another machine than the problem's prices?

    @property
    def possible(self) -> bool:
        """Can it judge on this computer?"""
        return not self.refusal


def judge_targets(problem: Problem) -> list[JudgeTarget]:
    """The targets that can judge plans on a problem's mesh.

    Targets of its machine come first, then attached devices, then targets of other machines; within
    each of these, possible ones come first.
    """
    count, machine = problem.mesh.n_devices, problem.machine.name
    attached = [
        _target(problem, f"{count} virtual CPU devices, executed", f"cpu:{count}"),
        _target(problem, "attached GPUs, executed", "gpu"),
    ]
    own_targets: list[JudgeTarget] = []
    other_targets: list[JudgeTarget] = []
    all_targets = topologies.targets(count)
    for target in all_targets:
        row = _target(problem, target.title, target.topology)
        (own_targets if target.machine == machine else other_targets).append(row)
    if machine == "cpu":
        attached, own_targets = [], attached
    elif not own_targets:
        own_targets = [JudgeTarget(machine, "", _without_topology(problem))]

    def sorted_rows(rows: list[JudgeTarget]) -> list[JudgeTarget]:
        return sorted(rows, key=lambda row: not row.possible)

    return [*sorted_rows(own_targets), *sorted_rows(attached), *sorted_rows(other_targets)]


def judged_elsewhere(problem: Problem, topology: str | Topology, device_kind: str = "") -> str:
    """A sentence if a judge is for another machine than the problem's prices; else empty.

    If the problem's machine is not in the catalogue but a user's own, attached devices count as
    that machine. Attached GPUs count as any machine until their ``device_kind`` is known.
    """
    parsed = topologies.parse(topology, problem.mesh) if isinstance(topology, str) else topology
    machine, attached = problem.machine.name, is_attached(parsed)
    if attached and (machine not in MACHINES or (parsed.platform == "gpu" and not device_kind)):
        return ""
    judge_machine = topologies.machine_name(parsed, device_kind)
    if judge_machine == machine:
        return ""
    devices = judge_machine or device_kind or str(parsed)
    return (
        f"{parsed} is the machine {devices}, and prices are for {machine}: the clock and the price "
        "are of different machines, so they are not compared, nothing is learned, and no plan can "
        f"be confirmed; the clock only chooses between plans. For a confirmed plan search with the "
        f"machine {devices}, or take a judge of {machine}."
    )


def is_attached(topology: Topology) -> bool:
    """Does a judge execute on attached devices, rather than compile for absent ones?"""
    return topology.gpu is None and not topology.chip


def _target(problem: Problem, title: str, topology: str) -> JudgeTarget:
    try:
        parsed = topologies.parse(topology, problem.mesh)
        check_compiler(parsed)
    except InvalidProblem as error:
        # Names the kind, so that several targets with the same reason have the same text
        kind = "TPUs" if topology.startswith("tpu:") else topology
        return JudgeTarget(title, topology, str(error).replace(f"for {topology}", f"for {kind}"))
    if topology == "gpu" and not any(map(os.path.exists, GPU_DRIVERS)):
        return JudgeTarget(title, topology, "no GPU is attached to this machine")
    elsewhere = judged_elsewhere(problem, parsed)
    warnings = [elsewhere]
    machine = topologies.machine_name(parsed, "")
    if not is_attached(parsed) and machine not in topologies.MACHINES_WITH_TIMES:
        warnings.append(
            f"The compiler for {parsed} gives no times: it says whether a plan compiles and fits, "
            "but confirms none."
        )
    warning = " ".join(filter(None, warnings))
    return JudgeTarget(title, topology, warning=warning, is_other_machine=bool(elsewhere))


def _without_topology(problem: Problem) -> str:
    """Why no topology is known for a problem's machine and mesh size."""
    count, machine = problem.mesh.n_devices, problem.machine.name
    sizes = sorted(
        {
            topologies.devices_in(chip, dims)
            for chip in topologies.CHIPS.values()
            if chip.machine == machine
            for dims in chip.slices
        }
    )
    if sizes:
        return (
            f"no slice of {machine} has {count} devices; slices have "
            f"{', '.join(map(str, sizes))}: choose a mesh of one of these sizes"
        )
    return f"no compiler is known for the machine {machine}; attached devices can execute plans"
