"""The loaded model, its analysis, and its problem on a mesh and a machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import param

from toast_lab.app.state_part import StatePart
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.ir.program import Program
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.machine_model import Machine

MAX_MACHINES = 16
MAX_DEVICES = 4096


class LoadedState(StatePart):
    """The loaded model and the current problem."""

    model: Any = param.Parameter(default=None, doc="Model")
    analysis: Any = param.Parameter(default=None, doc="Analysis")
    which: Any = param.String(
        default="", doc="the built-in model that is loaded; empty for any other"
    )
    sizes: Any = param.Dict(default={}, doc="sizes that it was asked for")
    problem: Any = param.Parameter(default=None, doc="Problem")
    mesh: Any = param.String(default="data=4,model=2")
    machine: Any = param.String(default="tpu-v5e")
    own_machines: Any = param.Dict(default={}, doc="machines typed or dropped in, by name")
    renames: Any = param.Dict(
        default={}, doc="by digest of a program, the names that the user gave its colours"
    )
    memory_gib: Any = param.Number(
        default=None, allow_None=True, doc="limit a device; the machine's own if None"
    )

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._digest: tuple[Program | None, str] = (None, "")

    @property
    def digest(self) -> str:
        """Digest of the program; needs an analysis."""
        program = self.analysis.program
        # It takes 15 ms for thousands of ops, and is asked for again and again
        if self._digest[0] is not program:
            self._digest = (program, program.digest())
        return self._digest[1]

    @property
    def platform(self) -> str:
        """The platform of the machine that is chosen, for which models are lowered."""
        machine = self.own_machines.get(self.machine) or MACHINES[self.machine]
        return str(machine.compiler)

    def problem_with(self, settings: dict[str, Any]) -> Problem:
        """The problem of a mesh, a machine and a memory limit.

        Raises InvalidPlan or another ToastError if a setting is wrong.
        """
        memory_gib, name = settings["memory_gib"], settings["machine"]
        problem = Problem(
            self.analysis,
            settings["mesh"],
            self.own_machines.get(name, name),
            memory_limit_bytes=memory_gib * 2**30 if memory_gib else None,
        )
        if problem.mesh.n_devices > MAX_DEVICES:
            raise InvalidPlan(
                f"mesh {problem.mesh} has {problem.mesh.n_devices} devices; at most "
                f"{MAX_DEVICES:,} are allowed here"
            )
        return problem

    def named(self, analysis: Analysis) -> Analysis:
        """The analysis of a program that is about to be loaded, with the names that it had here."""
        digest = analysis.program.digest()
        names = self.renames.get(digest, {})
        if names and not analysis.renames:
            analysis = analysis.renamed(names)
        if analysis.renames:
            self.renames = {**self.renames, digest: dict(analysis.renames)}
        return analysis

    def rename(self, analysis: Analysis, problem: Problem | None) -> None:
        """Take over the names of colours in another analysis of the loaded program."""
        renames = {**self.renames, self.digest: dict(analysis.renames)}
        self.param.update(analysis=analysis, problem=problem, renames=renames)

    def keep_machine(self, machine: Machine) -> Machine:
        """Offer a machine of the user's own.

        Gives it under the name by which it is offered, which no built-in machine has.
        """
        if machine.name in MACHINES:
            machine = dataclasses.replace(machine, name=f"{machine.name} (own)")
        machines = {**self.own_machines, machine.name: machine}
        self.own_machines = dict(list(machines.items())[-MAX_MACHINES:])
        return machine


class Selection(StatePart):
    """The selection in the loaded program."""

    names: Any = param.Parameter(default=(), doc="selected dimension names")
    conflicts: Any = param.Parameter(default=(), doc="selected conflicts")
    level: Any = param.String(
        default="", doc="level of detail of the graph; empty: the one that suits the model"
    )

    def __init__(self, loaded: LoadedState) -> None:
        super().__init__()
        self._loaded = loaded

    def select(self, names: Any = (), conflicts: Any = ()) -> None:
        """Select names and conflicts; conflicts without names select the names of their sides."""
        analysis = self._loaded.analysis
        if analysis is None:
            return
        if conflicts and not names:
            names = (name for index in conflicts for name in analysis.conflicts[index].sides)
        self.param.update(names=tuple(names), conflicts=tuple(conflicts))

    def select_group(self, group: int) -> None:
        """Select all names of a colour group."""
        self.select(group_names(self._loaded.analysis, group))

    def select_op(self, op: int) -> None:
        """Select the names of an op; of its results, if it has none of its own."""
        program = self._loaded.analysis.program
        result_names = (name for value in program.results(op) for name in program.def_names(value))
        self.select(tuple(program.factors(op)) or tuple(result_names))

    def select_values(self, values: Any) -> None:
        """Select the names of the definitions of values."""
        program = self._loaded.analysis.program
        self.select(tuple(int(name) for value in values for name in program.def_names(value)))

    @property
    def ops(self) -> list[int]:
        """Ops of the selected names, in program order."""
        return sorted({int(self._loaded.analysis.names.op[name]) for name in self.names})

    @property
    def group(self) -> int | None:
        """Colour group of the first selected name."""
        analysis = self._loaded.analysis
        if analysis is None or not self.names:
            return None
        return int(analysis.group[analysis.colour[self.names[0]]])

    @property
    def resolution(self) -> int | None:
        """The resolution of the first selected conflict, or of the first name in a conflict."""
        analysis = self._loaded.analysis
        if analysis is None:
            return None
        conflicts = [analysis.conflicts[index] for index in self.conflicts[:1]]
        if not conflicts and self.names:
            of_name = {name: conflict for conflict in analysis.conflicts for name in conflict.sides}
            conflicts = [of_name[name] for name in self.names if name in of_name]
        sets = analysis.compatibility_sets
        return next((sets[conflict.set].resolution for conflict in conflicts), None)


def group_names(analysis: Analysis, group: int) -> tuple[int, ...]:
    """All dimension names of a colour group."""
    colours = analysis.groups[group].colours
    return tuple(int(name) for colour in colours for name in analysis.colours[colour].names)
