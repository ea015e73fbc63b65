"""``Model``: a program, and where it came from."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import stages
from toast_lab.ir import read
from toast_lab.ir.annotations import Annotation
from toast_lab.ir.program import Program
from toast_lab.ir.random_keys import Keys

DimNames = Mapping[str, tuple[str, ...]]
ExpertPlans = Mapping[str, tuple[tuple[Any, ...], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """The user's function behind a program.

    It is for whoever wants another program of it, such as its gradient.

    It lives in the process that traced it: pickled, it becomes None.
    """

    #: see ``arguments.Arguments``; the program is that of ``call(*given)``
    call: Callable[..., Any]
    given: tuple[Any, ...]  #: pytrees of shapes and numbers
    changes: bool  #: whether it changes modules among its arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


class Recipe(NamedTuple):
    """How to make the function again in another process: ``loading.load(which, **sizes)``."""

    which: str  #: "package.module:make" or a built-in model
    sizes: dict[str, Any]


def _nothing() -> None:
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A program and where it came from."""

    name: str
    program: Program
    stablehlo: str  #: canonical module: no calls, only @main, with locations
    dim_names: DimNames = dataclasses.field(default_factory=dict)
    trees: Any = None  #: (argument tree, result tree) as jax PyTreeDefs, None if unknown
    source: str = ""  #: what to say when asked where this came from
    notes: tuple[str, ...] = ()  #: what was done to the input on the way, a sentence each
    #: actions by name, see ``registry.Example``
    expert_plans: ExpertPlans = dataclasses.field(default_factory=dict)
    parameter_count: int | None = None  #: trained numbers, if known
    #: the same as the paper gives it, for its own models at their default sizes
    paper_parameters: str = ""
    function: Function | Recipe | None = None  #: None if it came from a file or was pickled

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Shardings that the user wrote into the program; see ``Problem.keep_annotations``."""
        return self.program.annotations

    def __repr__(self) -> str:
        return f"<Model {self}>"

    def __str__(self) -> str:
        p = self.program
        text = (
            f"{self.name}: {p.n_ops - p.n_arguments} ops, {p.n_arguments} arguments, "
            f"{len(p.outputs)} results"
        )
        if self.parameter_count is not None:
            text += f", {self.parameter_count:,} parameters"
        return text + (f" (paper: {self.paper_parameters})" if self.paper_parameters else "")


_ANALYSED: weakref.WeakSet[Model] = weakref.WeakSet()


def remember(model: Model) -> None:
    """Let what is made of this model's program find the model, for as long as somebody holds it."""
    _ANALYSED.add(model)


def model_of(program: Program, model: Model | None = None) -> Model:
    """The model of a program: the one given, or one that was analysed.

    Raises:
        InvalidPlan: there is none, or it is of another program.
    """
    known = [model] if model is not None else list(_ANALYSED)
    for found in known:
        if found.program is program:
            return found
    digest = program.digest()  # takes a while on thousands of ops
    for found in known:
        if found.program.digest() == digest:
            return found
    if model is None:
        raise InvalidPlan(f"give model=, the model whose program this is ({program.name})")
    raise InvalidPlan(
        f"this plan shards {program.name}, the model is {model.name}, another program"
    )


class Traced(NamedTuple):
    """StableHLO that a frontend made, and what its text alone does not say."""

    text: str
    paths: Sequence[str]  #: of the arguments, in order
    outputs: Sequence[str]  #: paths of the results
    donated: Sequence[bool]
    trees: Any  #: as in Model
    notes: tuple[str, ...]
    function: Function | None = None
    keys: Keys | None = None  #: which values are typed random keys, None: none are


def build(traced: Traced, name: str, dim_names: DimNames, source: str) -> Model:
    """Read what was traced."""
    stages.tell("reading")
    parsed = read.parse(
        traced.text,
        name=identifier(name),
        argument_paths=traced.paths,
        output_paths=traced.outputs,
        donated=traced.donated,
        keys=traced.keys,
    )
    notes = (*traced.notes, *parsed.notes)
    return Model(
        identifier(name),
        parsed.program,
        parsed.text,
        dim_names,
        traced.trees,
        source,
        notes,
        function=traced.function,
    )


def identifier(name: str) -> str:
    """``name`` with everything but letters, digits and underscores replaced.

    It is ``main`` if nothing is left.
    """
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_")
    return clean or "main"


def in_child(target: str, *args: Any, **kwargs: Any) -> Any:
    """``isolate.run_in_child`` with JAX on the CPU: reading and tracing need no accelerator."""
    return isolate.run_in_child(target, *args, env={"JAX_PLATFORMS": "cpu"}, **kwargs)
