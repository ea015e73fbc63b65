"""Which judges a problem can have: those of its own machine first, with reasons against others."""

from __future__ import annotations

import os
from typing import NamedTuple

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES
from toast_lab.runtime import topologies
from toast_lab.runtime.compile import check_compiler
from toast_lab.runtime.topologies import Topology

#: Of NVIDIA, AMD and Windows Subsystem for Linux; where there is none of them, no GPU is attached.
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class JudgeTarget(NamedTuple):
    """A topology that plans of a problem could be judged for."""

    title: str  #: for people
    topology: str  #: for ``Judging``
    refusal: str = ""  #: why it cannot judge here; empty: it can
    warning: str = ""  #: what it cannot say of this problem's plans; empty: nothing
    elsewhere: bool = False  #: is it of another machine than the problem's prices?

    @property
    def possible(self) -> bool:
        """Can it judge here?"""
        return not self.refusal


def judge_targets(problem: Problem) -> list[JudgeTarget]:
    """What can judge plans of a problem's mesh.

    Those of its machine come first, then attached devices, then those of other machines; in each
    of these the possible ones first.
    """
    count, machine = problem.mesh.n_devices, problem.machine.name
    attached = [
        _target(problem, f"{count} virtual CPU devices, executed", f"cpu:{count}"),
        _target(problem, "attached GPUs, executed", "gpu"),
    ]
    own: list[JudgeTarget] = []
    others: list[JudgeTarget] = []
    described = topologies.targets(count)
    for target in described:
        row = _target(problem, target.title, target.topology)
        (own if target.machine == machine else others).append(row)
    if machine == "cpu":
        attached, own = [], attached
    elif not own:
        own = [JudgeTarget(machine, "", _without_topology(problem))]

    def sorted_rows(rows: list[JudgeTarget]) -> list[JudgeTarget]:
        return sorted(rows, key=lambda row: not row.possible)

    return [*sorted_rows(own), *sorted_rows(attached), *sorted_rows(others)]


def judged_elsewhere(problem: Problem, topology: str | Topology, device_kind: str = "") -> str:
    """A sentence if a judge is of another machine than the problem's prices; else empty.

    Attached devices are taken for the machine of a problem whose machine file is a user's own, and
    attached GPUs for any until one of them has told what it is (``device_kind``).
    """
    wanted = topologies.parse(topology, problem.mesh) if isinstance(topology, str) else topology
    own, attached = problem.machine.name, is_attached(wanted)
    if attached and (own not in MACHINES or (wanted.platform == "gpu" and not device_kind)):
        return ""
    judge = topologies.machine_name(wanted, device_kind)
    if judge == own:
        return ""
    devices = judge or device_kind or str(wanted)
    return (
        f"{wanted} is the machine {devices}, and prices are for {own}: the clock and the price are "
        "of different machines, so they are not compared, nothing is learned, and no plan can be "
        f"confirmed; the clock only chooses between plans. For a confirmed plan search with the "
        f"machine {devices}, or take a judge of {own}."
    )


def is_attached(topology: Topology) -> bool:
    """Does a judge execute on attached devices, and compile for none that are absent?"""
    return topology.gpu is None and not topology.chip


def _target(problem: Problem, title: str, topology: str) -> JudgeTarget:
    try:
        wanted = topologies.parse(topology, problem.mesh)
        check_compiler(wanted)
    except InvalidProblem as error:
        # In the words of its kind, so that equal reasons of several targets are seen to be equal
        kind = "TPUs" if topology.startswith("tpu:") else topology
        return JudgeTarget(title, topology, str(error).replace(f"for {topology}", f"for {kind}"))
    if topology == "gpu" and not any(map(os.path.exists, GPU_DRIVERS)):
        return JudgeTarget(title, topology, "no GPU is attached to this machine")
    elsewhere = judged_elsewhere(problem, wanted)
    warnings = [elsewhere]
    machine = topologies.machine_name(wanted, "")
    if not is_attached(wanted) and machine not in topologies.TELL_TIMES:
        warnings.append(
            f"The compiler for {wanted} tells no times: it says whether a plan compiles and fits, "
            "and confirms none."
        )
    warning = " ".join(filter(None, warnings))
    return JudgeTarget(title, topology, warning=warning, elsewhere=bool(elsewhere))


def _without_topology(problem: Problem) -> str:
    """Why no compiler is known for a problem's machine on its mesh."""
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
            f"no slice of {machine} has {count} devices; there are slices of "
            f"{', '.join(map(str, sizes))}: choose a mesh of so many"
        )
    return f"no compiler is known for the machine {machine}; attached devices can execute plans"
