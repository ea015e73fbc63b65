"""``Plan``: the sharding plan that users get, with all operations on it as methods.

Inside the package a plan is plain data (``ShardingPlan``), which every stage can take without
importing later stages. Users get this class: the same data, with the functions of later stages as
methods. Each method imports its stage when it is called, so that a plan costs no more than its
arrays.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from toast_lab import checks
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.search.action_path import PathStep, path_of, taken_actions
from toast_lab.search.limits import Budget
from toast_lab.search.usual_plans import usual_plans
from toast_lab.sharding import plan_file
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions, plan_of_specs, plan_of_state
from toast_lab.sharding.space import Action, renaming
from toast_lab.sharding.state import State
from toast_lab.written.front import BUDGET
from toast_lab.written.written_front import WITHIN, WrittenFront
from toast_lab.written.written_plan import WrittenPlan

if TYPE_CHECKING:
    from toast_lab.apply.jit import Sharded
    from toast_lab.export.axis_rules import AxisRules
    from toast_lab.export.source_edits import Patch
    from toast_lab.ir.model import Model
    from toast_lab.lowering.specs import Constraint
    from toast_lab.runtime.compiled import Compiled


class Plan(ShardingPlan):
    """A sharding of one program on one mesh, with all operations on it as methods.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> plan.argument_specs()
        {'x': (('data',), ()), 'w1': ((), ('model',)), 'w2': (('model',), ())}
        >>> print(plan.describe())
        mlp on data=2,model=2, not written yet: plan.written() finds its rules and constraints
        Data parallel over data; tensor parallel over model: hidden.
        arguments: first match decides; rest whole
          x   P('data')         1 argument
          w1  P(None, 'model')  1 argument
          w2  P('model')        1 argument
        actions
          B->data
          U->model
        plan.describe(None) has every value
        >>> plan.save("plan.json")  # applies to other sizes, too
        >>> tl.Plan.load("plan.json", problem).argument_specs() == plan.argument_specs()
        True
    """

    def __str__(self) -> str:
        return self.describe()

    def describe(self, limit: int | None = 40) -> str:
        """What the plan is, its rules and its actions, in up to ``limit`` lines.

        None: all of it, and the sharding of every value.
        """
        from toast_lab.written.screen import plan_text

        return plan_text(self, limit)

    # -- making -----------------------------------------------------------------------------------
    @classmethod
    def from_state(cls, state: State, actions: Iterable[Action] = ()) -> Plan:
        """Freeze a search state."""
        return cls.of(plan_of_state(state, actions))

    @classmethod
    def from_actions(cls, problem: Problem, actions: Iterable[object]) -> Plan:
        """Take actions in order: ``[("batch", "data"), ("sequence", "model", 1), ...]``.

        See ``plan_of_actions``, which also lists what is refused.
        """
        return cls.of(plan_of_actions(problem.space, actions))

    @classmethod
    def from_specs(cls, problem: Problem, in_specs: dict[str, Iterable[Any]]) -> Plan:
        """The plan that extends argument shardings along their colours, in the order given.

        ``in_specs`` maps argument paths to one entry per dim: None, an axis name or a tuple of axis
        names. See ``plan_of_specs``, which also lists what is refused.
        """
        return cls.of(plan_of_specs(problem.space, in_specs))

    @classmethod
    def load(cls, path: PathLike, analysis: Analysis | Problem) -> Plan:
        """Read a plan for the program that it was made for, or for a related one.

        A Problem may have a mesh of other sizes with the same axes. See ``plan_file.load``.

        Raises:
            InvalidPlan: the file is not a plan, is damaged, or is for another kind of program.
        """
        return cls.of(plan_file.load(path, *_analysis_and_mesh(analysis)))

    @classmethod
    def from_json(cls, data: Any, analysis: Analysis | Problem, where: str = "plan") -> Plan:
        """Rebuild a plan from ``to_json`` data; see ``load`` and ``plan_file.from_json``."""
        return cls.of(plan_file.from_json(data, *_analysis_and_mesh(analysis), where))

    # -- writing ----------------------------------------------------------------------------------
    @functools.cached_property
    def _fronts(self) -> dict[Any, WrittenFront[Written]]:
        """Fronts that have been found, so that everything that asks gets the same plan."""
        return {}

    def known_front(
        self,
        problem: Problem | None = None,
        size: int | None = None,
        in_packages: Collection[str] = (),
    ) -> WrittenFront[Written] | None:
        """The result of ``written_front`` if it has been asked for, else None."""
        problem = self._usual_problem if problem is None else problem
        return self._fronts.get((problem, size, tuple(in_packages)))

    def renamed(self, analysis: Analysis, named: Callable[[Problem], Problem]) -> Plan:
        """As ``named_as_in``, with all that has been written of the plan.

        ``named`` gives the problems that it was written for with the new names.
        """
        plan = self.named_as_in(analysis)
        for (problem, *rest), front in self._fronts.items():
            change = functools.partial(Written.of_problem, problem=named(problem))
            plan._fronts[(named(problem), *rest)] = front.changed(change)
        return plan

    def keep_front(self, problem: Problem, front: WrittenFront[Written]) -> None:
        """Let ``written_front`` give a front that was found for this plan."""
        self._fronts[problem, None, ()] = front

    @functools.cached_property
    def _usual_problem(self) -> Problem:
        if self.analysis is None:
            raise InvalidProblem("give problem=, the problem that this plan is for")
        return Problem(self.analysis, self.mesh)

    def written_front(
        self,
        problem: Problem | None = None,
        *,
        model: Model | None = None,
        path: tuple[PathStep, ...] = (),
        budget: Budget = BUDGET,
        size: int | None = None,
        in_packages: Collection[str] = (),
        cancel: Callable[[], bool] | None = None,
    ) -> WrittenFront[Written]:
        """Written plans that come close to this one, the smallest first; found once.

        Args:
            problem: the one that it is for; by default its program and mesh on the default machine.
            model: the problem's model; by default that of its analysis.
            path: the way to this plan, in actions, for the text; by default found by its history.
            budget: most seconds, and drafts that the search prices. Finding the places that can be
                constrained and propagating one plan by Shardy are part of the seconds.
            size: most rules and constraints; None: as few as do.
            in_packages: installed packages whose source may be constrained too, for a model that
                is one of a package; the patch then is one of the package.
            cancel: polled; True ends the search with what it has.
        """
        from toast_lab.written.written_front import write

        size = None if size is None else checks.whole("size", size, 1)
        known = self.known_front(problem, size, in_packages)
        if known is not None:
            return known
        problem = self._usual_problem if problem is None else problem
        actions = usual_plans(problem).values()
        sources: list[ShardingPlan] = [self]
        sources += (plan_of_actions(problem.space, few) for few in actions)
        if self.actions and self.refinements:
            sources.append(plan_of_actions(problem.space, taken_actions(problem, self)))
        way = path or path_of(problem, self)
        front = write(
            problem,
            sources,
            model,
            budget=Budget.checked(budget),
            size=size,
            in_packages=in_packages,
            cancel=cancel,
            finish=lambda row: Written.of(dataclasses.replace(row, path=way)),
        )
        if cancel is None or not cancel():
            self._fronts[problem, size, tuple(in_packages)] = front
        return front

    def written(self, within: float = WITHIN, size: int | None = None, **options: Any) -> Written:
        """The smallest written plan whose C(s) is at most ``within`` (a share) above this one's.

        If none is, the one with the lowest C(s); ``.loss`` tells. With ``size``, the one with the
        lowest C(s) of at most so many rules and constraints. ``options`` are those of
        ``written_front``.

        Raises:
            InvalidProblem: no plan of that size fits into memory; the smallest that does is said.
        """
        return chosen(self.written_front(size=size, **options), within, size)

    # -- keeping ----------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, keyed by paths and names."""
        return plan_file.to_json(self)

    def save(self, path: PathLike) -> None:
        """Write the plan as JSON with a checksum, whole or not at all. Raises NotSaved."""
        plan_file.save(self, path)

    # -- applying ---------------------------------------------------------------------------------
    def jit(self, fn: Any, **options: Any) -> Sharded:
        """Wrap ``fn`` in a function that runs this plan; see ``toast_lab.apply.jit.jit``."""
        from toast_lab.apply import jit

        return jit.jit(self, fn, **options)

    def named_shardings(self, mesh: Any = None) -> tuple[Any, Any]:
        """``partition_specs`` as NamedShardings of a ``jax.sharding.Mesh``.

        Without a mesh, one is made of the first devices that JAX lists.
        """
        from toast_lab.apply import jit

        return jit.named_shardings(self, mesh)

    def partition_specs(self) -> tuple[Any, Any]:
        """``(arguments, results)`` as PartitionSpecs.

        They have the structure of the caller's pytrees if it is known.
        """
        from toast_lab.lowering import specs

        return specs.partition_specs(self)

    # -- exporting --------------------------------------------------------------------------------
    def constraints(self) -> list[Constraint]:
        """Every value whose sharding propagation from its op would not give, with its line.

        ``written().constraints`` are the few that a person writes.
        """
        from toast_lab.lowering import specs

        return specs.constraints(self)

    def to_python(self, mode: str = "auto", **options: Any) -> str:
        """``written(**options).to_python(mode)``: a file that needs only JAX."""
        return self.written(**options).to_python(mode)

    def to_patch(self, root: PathLike | None = None, mode: str = "auto", **options: Any) -> Patch:
        """``written(**options).to_patch(root, mode)``: the constraints as a diff of the source."""
        return self.written(**options).to_patch(root, mode)

    def to_axis_rules(self, names: Any = None, **options: Any) -> AxisRules:
        """``written(**options).to_axis_rules(names)``: logical-axis rules for flax users."""
        return self.written(**options).to_axis_rules(names)

    def to_test(self, load: str, plan_file: str, **options: Any) -> str:
        """The text of a pytest file that fails when the compiled program drifts from the plan.

        See ``toast_lab.export.drift.to_test``.
        """
        from toast_lab.export import drift

        return drift.to_test(self, load, plan_file, **options)


class Written(WrittenPlan):
    """A plan as people write it, with all operations on it as methods.

    It is rules of arguments and constraints on values of the forward program; JAX decides the rest.
    ``print`` shows it on one screen, ``plan`` is what propagation makes of it.
    """

    @classmethod
    def of(cls, written: WrittenPlan) -> Written:
        """The same written plan as an instance of this class."""
        copy = object.__new__(cls)
        copy.__dict__.update(written.__dict__)
        copy.__dict__["plan"] = Plan.of(written.plan)
        return copy

    def __str__(self) -> str:
        from toast_lab.written.screen import written_text

        return written_text(self)

    def of_problem(self, problem: Problem) -> Written:
        """The same for a problem that differs only in the names of its colours."""
        up_to_date = renaming(self.problem.analysis, problem.analysis)
        return dataclasses.replace(
            self,
            problem=problem,
            plan=self.plan.named_as_in(problem.analysis),
            path=tuple(step._replace(action=up_to_date(step.action)) for step in self.path),
        )

    def __repr__(self) -> str:
        return f"<Written {self.size}, {self.cost.time_s * 1e3:.3f} ms>"

    def compile(self, topology: str, model: Model | None = None, **options: Any) -> Compiled:
        """Compile the user's program with what is written; see ``toast_lab.runtime.compile``."""
        from toast_lab.written.compiling import compile_it

        return compile_it(self, topology, model, **options)

    def to_python(self, mode: str = "auto") -> str:
        """A file of plain JAX with its rules; see ``toast_lab.export.written_python``."""
        from toast_lab.export import written_python

        return written_python.to_python(self, mode)

    def to_patch(self, root: PathLike | None = None, mode: str = "auto") -> Patch:
        """Its constraints as a diff of the source; see ``toast_lab.export.written_patch``."""
        from toast_lab.export import written_patch

        return written_patch.to_patch(self, root, mode)

    def to_padding(self) -> str:
        """A file of plain JAX that pads the function; see ``toast_lab.export.padding_python``."""
        from toast_lab.export import padding_python

        return padding_python.to_padding(self.problem.analysis.model)

    def to_axis_rules(self, names: Any = None) -> AxisRules:
        """Logical-axis rules for flax and MaxText; see ``toast_lab.export.axis_rules``."""
        from toast_lab.export import axis_rules

        return axis_rules.axis_rules(self.plan, names, self.problem.analysis.model)


def chosen(front: WrittenFront[Written], within: float, size: int | None) -> Written:
    """The written plan of a front that ``Plan.written`` gives."""
    if size is not None:
        return front.of_size(size)
    return front.within(checks.number("within", within, 0.0))


def _analysis_and_mesh(analysis: Analysis | Problem) -> tuple[Analysis, Mesh | None]:
    """The analysis to read a plan for, and its mesh, None if only an Analysis is given."""
    if isinstance(analysis, Problem):
        return analysis.analysis, analysis.mesh
    return analysis, None
