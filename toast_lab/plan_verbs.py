"""``Plan``: the sharding plan that users get, with all operations on it as methods.

Inside the package a plan is plain data (``ShardingPlan``), which every stage can take without
importing later stages. Users get this class: the same data, with the functions of later stages as
methods. Each method imports its stage when it is called, so that a plan costs no more than its
arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toast_lab import checks
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.sharding import plan_file, plan_text
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions, plan_of_specs, plan_of_state
from toast_lab.sharding.plan_rules import PlanSize, plan_size
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State
from toast_lab.written.written_front import WrittenFront
from toast_lab.written.written_plan import WrittenPlan

if TYPE_CHECKING:
    from toast_lab.apply.jit import Sharded
    from toast_lab.export.axis_rules import AxisRules
    from toast_lab.export.minimal import MinimalConstraints
    from toast_lab.export.source_edits import Patch
    from toast_lab.ir.model import Model
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
        mlp on data=2,model=2: 3 argument rules and 0 places
        arguments
          B on data                       x (1 argument)
          U on model                      w1, w2 (2 arguments)
        >>> plan.save("plan.json")  # applies to other sizes, too
        >>> tl.Plan.load("plan.json", problem).argument_specs() == plan.argument_specs()
        True
    """

    def __str__(self) -> str:
        return self.describe()

    @property
    def size(self) -> PlanSize:
        """The argument rules and source lines that a person has to write to get the plan."""
        return plan_size(self.program, self.sharding)

    def describe(self, limit: int | None = 60) -> str:
        """Lists which dims of each layer each axis splits, in up to ``limit`` lines (None: all)."""
        return plan_text.describe(self, limit)

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
    def written_front(
        self,
        problem: Problem | None = None,
        *,
        beside: Sequence[ShardingPlan] = (),
        **options: Any,
    ) -> WrittenFront[Written]:
        """Written plans that come close to this one, the smallest first.

        Args:
            problem: the one that it is for; by default its program and mesh on the default machine.
            beside: plans to start from as well, beside the usual ones.
            options: ``seconds`` (10 by default), ``size`` (most rules and constraints), ``model``,
                ``path``, ``in_packages`` (packages whose source may be constrained, too) and
                ``cancel``; see ``toast_lab.written.written_front.write``.
        """
        from toast_lab.search.usual_plans import usual_plans
        from toast_lab.written.written_front import write

        if problem is None:
            if self.analysis is None:
                raise InvalidProblem("give problem=, the problem that this plan is for")
            problem = Problem(self.analysis, self.mesh)
        usual = [
            plan_of_actions(problem.space, actions) for actions in usual_plans(problem).values()
        ]
        front = write(problem, self, beside=[*beside, *usual], **options)
        return WrittenFront(tuple(map(Written.of, front.rows)), front.unlimited)

    def written(self, within: float = 0.05, size: int | None = None, **options: Any) -> Written:
        """The smallest written plan whose C(s) is at most ``within`` (a share) above this one's.

        If none is, the one with the lowest C(s); ``.loss`` tells. With ``size``, the one with the
        lowest C(s) among those of at most so many rules and constraints. ``options`` are those of
        ``written_front``.

        Raises:
            InvalidProblem: no plan of that size fits into memory; the smallest that does is said.
        """
        within = checks.number("within", within, 0.0)
        if size is None:
            return self.written_front(**options).within(within)
        size = checks.whole("size", size, 1)
        return self.written_front(size=size, **options).of_size(size)

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
    def constraints(self, minimal: bool = False, **options: Any) -> Any:
        """The sharding constraints that express the plan.

        By default all of them, as a list of (value, source line, PartitionSpec). With ``minimal``,
        the fewest that the user's own code needs under ``jax.jit``; see
        ``toast_lab.export.minimal.minimal_constraints`` for the options.
        """
        if not minimal:
            from toast_lab.lowering import specs

            return specs.constraints(self)
        from toast_lab.export import minimal as export

        return export.minimal_constraints(self, **options)

    def to_python(
        self,
        constraints: MinimalConstraints | None = None,
        model: Model | None = None,
        **options: Any,
    ) -> str:
        """The text of a Python file that shards the function with JAX alone.

        See ``toast_lab.export.python.to_python``.

        ``constraints`` are the result of ``constraints(minimal=True)``. Without them they are
        searched for, which takes minutes for a training step. ``options`` are the options of that
        search: ``seconds`` limits its time (300 by default), and ``proof="propagated"`` makes it
        quicker.
        """
        from toast_lab.export import python

        if constraints is None:
            constraints = self.constraints(minimal=True, model=model, **options)
        return python.to_python(self, constraints)

    def to_patch(
        self,
        constraints: MinimalConstraints | None = None,
        model: Model | None = None,
        **options: Any,
    ) -> Patch:
        """The constraints as a diff against the user's source.

        See ``toast_lab.export.patch.to_patch``.
        """
        from toast_lab.export import patch

        if constraints is None:
            constraints = self.constraints(minimal=True, model=model)
        return patch.to_patch(self, constraints, **options)

    def to_axis_rules(self, names: Any = None, model: Model | None = None) -> AxisRules:
        """Logical-axis rules for flax users; see ``toast_lab.export.axis_rules.axis_rules``."""
        from toast_lab.export import axis_rules

        return axis_rules.axis_rules(self, names, model)

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

    def __repr__(self) -> str:
        return f"<Written {self.size}, {self.cost.time_s * 1e3:.3f} ms>"

    def compile(self, topology: str, model: Model | None = None, **options: Any) -> Compiled:
        """Compile the user's program with what is written; see ``toast_lab.runtime.compile``."""
        from toast_lab.written.compiling import compile_it

        return compile_it(self, topology, model, **options)

    def to_python(self, mode: str = "auto") -> str:
        """A file of plain JAX with its rules; see ``toast_lab.export.written_python.to_python``."""
        from toast_lab.export import written_python

        return written_python.to_python(self, mode)

    def to_patch(self, root: PathLike | None = None, mode: str = "auto") -> Patch:
        """Its constraints as a diff; see ``toast_lab.export.written_patch.to_patch``."""
        from toast_lab.export import written_patch

        return written_patch.to_patch(self, root, mode)

    def to_axis_rules(self, names: Any = None, model: Model | None = None) -> AxisRules:
        """Logical-axis rules for flax and MaxText; see ``toast_lab.export.axis_rules``."""
        from toast_lab.export import axis_rules

        return axis_rules.axis_rules(self.plan, names, model)


def _analysis_and_mesh(analysis: Analysis | Problem) -> tuple[Analysis, Mesh | None]:
    """The analysis to read a plan for, and its mesh, None if only an Analysis is given."""
    if isinstance(analysis, Problem):
        return analysis.analysis, analysis.mesh
    return analysis, None
