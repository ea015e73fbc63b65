"""``ShardingPlan``: one neutral plan that every stage means the same by.

For each value it says which mesh axes cut each dim of its definition, and for each op along which
of its names it is split on each axis; the axes of every operand's use follow from the latter.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, ToastError, join_offenders
from toast_lab.files import write_whole
from toast_lab.ir import random_keys
from toast_lab.ir.program import Program
from toast_lab.sharding import plan_check, portable, steps, validity
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.sharding.space import Action, Space, parse_action
from toast_lab.sharding.state import State

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem

Spec = tuple[tuple[str, ...], ...]  # mesh axes per dim
FORMAT = 2  #: of saved plans


@dataclasses.dataclass(frozen=True, eq=False)
class ShardingPlan:
    """A sharding of one program on one mesh (``O`` ops, ``V`` values, ``A`` axes)."""

    program: Program
    mesh: Mesh
    op_factor: np.ndarray  #: [O, A] name along which the op is split on that axis, -1: none
    value_dim: np.ndarray  #: [V, A] dim of the value on that axis, -1: none
    #: how it came about, as text; empty if it did not come from actions
    actions: tuple[str, ...] = ()
    key: int = 0  #: 64-bit state key
    trees: Any = None  #: pytree structures of arguments and results, if known
    notes: tuple[str, ...] = ()  #: what a saved plan had that does not fit this program, and why

    def __repr__(self) -> str:
        return f"<ShardingPlan {self}>"

    def __str__(self) -> str:
        shown = ", ".join(self.actions[:12]) + (
            f" and {len(self.actions) - 12} more" if len(self.actions) > 12 else ""
        )
        return f"of {self.program.name} on {self.mesh}: {shown or 'no actions'} ({self.key:016x})"

    # -- making -----------------------------------------------------------------------------------
    @classmethod
    def from_state(cls, state: State, actions: Iterable[Action] = ()) -> ShardingPlan:
        """Freeze a search state."""
        arrays = state.op_factor.copy(), state.value_dim.copy()
        for a in arrays:
            a.flags.writeable = False
        space = state.space
        return cls(
            space.analysis.program,
            space.mesh,
            *arrays,
            (*pinned_texts(space), *(space.text(a) for a in actions)),
            state.plan_key,
            space.analysis.trees,
        )

    @classmethod
    def from_actions(cls, problem: Problem, actions: Iterable[object]) -> ShardingPlan:
        """Take actions in order: ``[("batch", "data"), ("sequence", "model", 1), ...]``.

        Colours of one group are mirrored, so that whoever names each of them asks for the same
        action again under another name; that is left out, and so are actions that the problem has
        pinned.  Raises InvalidPlan if an action names no colour or axis, or changes nothing
        otherwise (with the sizes).
        """
        state = State(problem.space)
        pinned = () if problem.pins is None else problem.pins.actions
        taken: dict[Action, object] = {}
        for item in actions:
            action = parse_action(problem.analysis, problem.mesh, item)
            if state.apply(action):
                taken[action] = item
            elif taken.get(action, item) == item and action not in pinned:
                raise InvalidPlan(no_effect(problem.space, action))
        return cls.from_state(state, taken)

    @classmethod
    def from_specs(cls, problem: Problem, in_specs: dict[str, Iterable[Any]]) -> ShardingPlan:
        """The plan that spreads given argument shardings along their colours, in the order given.

        ``in_specs`` maps argument paths to one entry per dim: None, an axis name or a tuple of
        them.  Last dims may be left out, and typed random keys have no others than those that JAX
        shows.

        Raises:
            InvalidPlan: a path, a dim or an axis does not exist, the words of a random key are to
                be cut, or nothing changes.
        """
        program, analysis = problem.analysis.program, problem.analysis
        paths = {program.value_name[a]: a for a in range(program.n_arguments)}
        unknown = [p for p in in_specs if p not in paths]
        if unknown:
            raise InvalidPlan(
                f"no argument is called {', '.join(unknown[:20])}; arguments: "
                f"{', '.join(list(paths)[:20])}"
            )
        wanted: dict[tuple[str, str], None] = {}
        wrong = []
        for path, spec in in_specs.items():
            entries, shape = list(spec), program.dims(paths[path])
            if len(entries) > len(shape):
                wrong.append(f"{path}: {len(entries)} entries for {len(shape)} dims")
                continue
            for dim, axes in enumerate(entries):
                on = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
                if on and (why := random_keys.offence(program, paths[path], dim)):
                    wrong.append(f"{path}: {why}")
                    continue
                name = program.def_names(paths[path])[dim]
                for axis in on:
                    wanted[analysis.group_name[analysis.group[analysis.colour[name]]], axis] = None
        if wrong:
            raise InvalidPlan("these arguments cannot be sharded so: " + join_offenders(wrong))
        return cls.from_actions(problem, list(wanted))

    # -- reading ----------------------------------------------------------------------------------
    def kept_layouts(self) -> np.ndarray:
        """[V] packed layout of each value as lowering keeps it."""
        t = steps.tables(self.program)
        return steps.kept_layouts(t, self.op_factor, self.value_dim)

    def spec(self, layout: int, rank: int) -> Spec:
        """Mesh axis names per dim of a packed layout."""
        return tuple(
            tuple(self.mesh.axes[a] for a in dim)
            for dim in steps.unpack(layout, rank, len(self.mesh.axes))
        )

    def value_specs(self) -> list[Spec]:
        """Mesh axes per dim of every value's definition."""
        return [
            self.spec(layout, len(self.program.dims(v)))
            for v, layout in enumerate(self.kept_layouts())
        ]

    def use_specs(self) -> list[Spec]:
        """Mesh axes per dim of every operand use."""
        wanted = steps.wants_of(steps.tables(self.program), self.op_factor)
        return [
            self.spec(int(layout), len(self.program.use_names(u)))
            for u, layout in enumerate(wanted)
        ]

    def argument_specs(self) -> dict[str, Spec]:
        """Mesh axes per dim of every argument, by path."""
        specs = self.value_specs()
        return {self.program.value_name[a]: specs[a] for a in range(self.program.n_arguments)}

    def result_specs(self) -> dict[str, Spec]:
        """Mesh axes per dim of every result, by path."""
        specs = self.value_specs()
        return {
            path: specs[int(v)]
            for path, v in zip(self.program.output_paths, self.program.outputs, strict=True)
        }

    def partition_specs(self) -> Any:
        """``(arguments, results)`` as PartitionSpecs.

        They are in the caller's pytrees where those are known.
        """
        return importlib.import_module("toast_lab.lowering.specs").partition_specs(self)

    def constraints(self, minimal: bool = False, **options: Any) -> Any:
        """Where the plan pins a sharding.

        By default every such place: a list of (value, source line, PartitionSpec).  With
        ``minimal`` the fewest that the user's own code needs under ``jax.jit``; see
        ``toast_lab.export.minimal.minimal_constraints`` for options.
        """
        if minimal:
            return importlib.import_module("toast_lab.export.minimal").minimal_constraints(
                self, **options
            )
        return importlib.import_module("toast_lab.lowering.specs").constraints(self)

    # -- applying ---------------------------------------------------------------------------------
    def jit(self, fn: Any, **options: Any) -> Any:
        """``fn`` as a function that runs this plan; see ``toast_lab.apply.jit.jit``."""
        return importlib.import_module("toast_lab.apply.jit").jit(self, fn, **options)

    def named_shardings(self, mesh: Any = None) -> Any:
        """``partition_specs`` as NamedShardings of a ``jax.sharding.Mesh``.

        By default it is a mesh of the first devices.
        """
        return importlib.import_module("toast_lab.apply.jit").named_shardings(self, mesh)

    def to_python(self, constraints: Any = None, model: Any = None) -> str:
        """A file of Python that shards the function with JAX alone.

        See ``toast_lab.export.python.to_python``.

        ``constraints``: what ``constraints(minimal=True)`` gave; looked for if not given.
        """
        found = self.constraints(minimal=True, model=model) if constraints is None else constraints
        text: str = importlib.import_module("toast_lab.export.python").to_python(self, found)
        return text

    def to_patch(self, constraints: Any = None, model: Any = None, **options: Any) -> Any:
        """The constraints as a diff against the user's source.

        See ``toast_lab.export.patch.to_patch``.
        """
        found = self.constraints(minimal=True, model=model) if constraints is None else constraints
        return importlib.import_module("toast_lab.export.patch").to_patch(self, found, **options)

    def to_axis_rules(self, names: Any = None, model: Any = None) -> Any:
        """Logical-axis rules for flax users; see ``toast_lab.export.axis_rules.axis_rules``."""
        return importlib.import_module("toast_lab.export.axis_rules").axis_rules(self, names, model)

    def to_test(self, load: str, plan_file: str, **options: Any) -> str:
        """A pytest file that fails when what is compiled drifts.

        See ``toast_lab.export.drift.to_test``.
        """
        text: str = importlib.import_module("toast_lab.export.drift").to_test(
            self, load, plan_file, **options
        )
        return text

    # -- keeping ----------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, keyed by paths and names; see ``portable``."""
        return {
            "format": FORMAT,
            "program": {"name": self.program.name, "digest": self.program.digest()},
            "mesh": dict(zip(self.mesh.axes, self.mesh.sizes, strict=True)),
            "actions": list(self.actions),
            "key": f"{self.key:016x}",
            **portable.to_json(self.program, self.mesh, self.op_factor, self.value_dim),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON with a checksum, whole or not at all.

        Raises:
            NotSaved: it cannot be written; a file that was there is as it was.
        """
        write_whole(path, portable.file_text(self.to_json()), "the plan")

    @classmethod
    def load(cls, path: str | os.PathLike[str], analysis: Analysis | Problem) -> ShardingPlan:
        """Read a plan, for the program it was made for or for a relative of it; see ``from_json``.

        Raises InvalidPlan if the file is not a plan, is cut off or damaged, or is for another kind
        of program.  A file without a checksum, as earlier versions wrote it or after an edit by
        hand, is read as it stands.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise InvalidPlan(f"{path}: cannot read this plan: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidPlan(
                f"{path}: cannot read this plan: {_why_no_json(error)}; give a file that a plan "
                "was saved to"
            ) from None
        portable.check_undamaged(data, str(path))
        return cls.from_json(data, analysis, str(path))

    @classmethod
    def from_json(
        cls, data: Any, analysis: Analysis | Problem, where: str = "plan"
    ) -> ShardingPlan:
        """Rebuild a plan from ``to_json`` data.

        The program may have other sizes or numbers of layers, and that of a Problem another mesh
        with the same axes; what then does not fit is left out, and ``notes`` of the plan say so.
        """
        found: Analysis = analysis if isinstance(analysis, Analysis) else analysis.analysis
        if not isinstance(data, dict) or "format" not in data:
            raise InvalidPlan(f"{where}: not a TOAST Lab plan, it has no format")
        if data["format"] != FORMAT:
            raise InvalidPlan(
                f"{where}: format {data['format']!r} of plans, this version reads {FORMAT}. Save "
                "it again with the "
                "version that wrote it, or search again."
            )
        if wrong := list(plan_check.offenders(data, portable.ROUNDS)):
            raise InvalidPlan(
                f"{where}: damaged plan, or not one of TOAST Lab; give another copy of it, or "
                "save it anew:\n"
                f"{join_offenders(wrong)}"
            )
        program = found.program
        try:
            saved_mesh = make_mesh(data["mesh"])
        except ToastError as error:
            raise InvalidPlan(f"{where}: damaged plan: {error}") from None
        mesh = saved_mesh if isinstance(analysis, Analysis) else analysis.mesh
        applied = portable.apply(data, program, mesh, where)
        for array in applied[:2]:
            array.flags.writeable = False
        same = data["program"]["digest"] == program.digest() and saved_mesh == mesh
        key = int(data.get("key", "0"), 16) if same and not applied.notes else 0
        actions = tuple(data.get("actions", ()))
        if same and applied.notes:
            raise InvalidPlan(f"{where}: damaged plan: {join_offenders(list(applied.notes))}")
        plan = cls(program, mesh, *applied[:2], actions, key, found.trees, applied.notes)
        plan.check()
        return plan

    def check(self) -> None:
        """Raise InvalidPlan listing every op and value that the plan cannot shard as it says."""
        wrong = validity.offenders(self.program, self.mesh, self.op_factor, self.value_dim)
        if wrong:
            raise InvalidPlan("this plan cannot be carried out: " + join_offenders(wrong))


def _why_no_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return (
            f"it is no JSON, or was cut off, at line {error.lineno}, column {error.colno}: "
            f"{error.msg}"
        )
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text: byte {error.start} is {error.object[error.start]:#04x}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def spec_text(spec: Spec) -> str:
    """``[data, -, seq+model]``; whole tensors are ``whole``."""
    return "[" + ", ".join("+".join(axes) or "-" for axes in spec) + "]" if any(spec) else "whole"


def replicated(problem: Problem) -> ShardingPlan:
    """The plan that shards nothing, whatever is pinned."""
    program, n_axes = problem.analysis.program, len(problem.mesh.axes)
    arrays = (
        np.full((program.n_ops, n_axes), -1, np.int32),
        np.full((program.n_values, n_axes), -1, np.int8),
    )
    for array in arrays:
        array.flags.writeable = False
    return ShardingPlan(program, problem.mesh, *arrays, trees=problem.analysis.trees)


def pinned_texts(space: Space) -> tuple[str, ...]:
    """The pinned actions of a space as text, with which the actions of every plan begin."""
    if space.fixed is None:
        return ()
    return tuple(space.text(action) for action in space.fixed.actions)


def no_effect(space: Space, action: Action) -> str:
    """Why an action changes nothing, with the sizes."""
    group = space.analysis.groups[action.group]
    axis, size = space.mesh.axes[action.axis], space.mesh.sizes[action.axis]
    text = f"action {space.text(action)} changes nothing: "
    if group.size % size:
        return (
            text + f'{group.name} has size {group.size}, not divisible by mesh axis "{axis}" = '
            f"{size}. "
            "Choose another axis or resize the mesh."
        )
    return (
        text + f"everything of colour {group.name} (size {group.size}) already uses axis "
        f'"{axis}" = {size}, '
        "or what is left of it no longer divides."
        + ("" if space.fixed is None else f" Pinned or forbidden: {', '.join(space.fixed.texts)}.")
    )
