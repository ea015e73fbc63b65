"""``Model``: a program and its origin.

A model is the root of a plan's lineage: an ``Analysis`` holds its model, a ``Problem`` its
analysis, and a plan the analysis that it was made for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError
from toast_lab.ir.annotations import Annotation
from toast_lab.ir.call_form import CallForm
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.platforms import (
    ALL_PLATFORMS,
    LoweredProgram,
    Lowerings,
    platforms_text,
)
from toast_lab.ir.program import Program
from toast_lab.ir.rounds import Rounds, recounted_notes, with_rounds, with_rounds_of
from toast_lab.text import counted, line_text

#: names of dims, by an argument's path or last key; None: the dim has no name
DimNames = Mapping[str, tuple[str | None, ...]]
ExpertPlans = Mapping[str, tuple[tuple[Any, ...], ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """The user's function behind a program.

    It is kept so that other programs, such as its gradient, can be traced from it. It exists only
    in the process that traced it: pickling turns it into None.
    """

    #: see ``arguments.Arguments``; the program was traced from ``call(*given)``
    call: Callable[..., Any]
    given: tuple[Any, ...]  #: pytrees of shapes and numbers
    donated: tuple[int, ...]  #: positions in ``given``
    shardings: Mapping[str, Any]  #: that it declares, as ``jax.jit`` takes them
    results: tuple[Any, ...]  #: ShapeDtypeStructs of the leaves, changed variables last
    changes: bool  #: whether it changes any modules among its arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


class Recomputed(NamedTuple):
    """A layer of which the backward pass computes again what was not kept, see ``recomputing``."""

    layer: str  #: qualified name of its function
    where: str  #: file and line of its definition
    policy: str  #: what is kept: a name in ``frontends.recomputing.POLICIES``
    #: (file, first line, last line, what is called) of each place that calls it
    calls: tuple[tuple[str, int, int, str], ...]
    refusal: str = ""  #: why ``jax.checkpoint`` cannot simply stand around it there

    def __str__(self) -> str:
        return f"{self.layer} keeps {self.policy} ({line_text(self.where)})"


#: (dim, runs, size, padded size) of each padded dim of an array, see ``padded_function.Layout``
PaddedDims = tuple[tuple[int, int, int, int], ...]


class Padding(NamedTuple):
    """Which dims of a program's arguments and results are padded, see ``frontends.padding``."""

    #: (argument, dim, size, padded size) from which dims of that size are padded
    starts: tuple[tuple[int, int, int, int], ...]
    arguments: tuple[PaddedDims, ...]
    results: tuple[PaddedDims, ...]
    alone: tuple[str, ...]  #: ops that run on their own sizes, although padding is around them
    words: tuple[str, ...] = ()  #: "vocabulary 50257 to 50304"

    def __str__(self) -> str:
        sizes = dict.fromkeys(f"{size} to {padded}" for _, _, size, padded in self.starts)
        return f"padded: {', '.join(self.words or sizes)}"


class Recipe(NamedTuple):
    """How to recreate the function in another process: ``loading.load(which, **sizes)``."""

    which: str  #: "package.module:make" or a built-in model
    sizes: dict[str, Any]
    #: (``where`` of a layer, policy) of what is computed again in the backward pass, and the files
    #: whose calls are looked at for it, see ``frontends.recomputing``
    recompute: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    starts: tuple[tuple[int, int, int, int], ...] = ()  #: of dims that are padded, as in Padding


def _nothing() -> None:
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A program and its origin.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> print(model)
        mlp: 5 ops, 3 arguments, 1 result
        >>> model.program.value_name[:3]
        ('x', 'w1', 'w2')
    """

    name: str
    program: Program
    #: canonical module: no calls, only @main, with locations; empty where the text is not known
    stablehlo: str = ""
    dim_names: DimNames = dataclasses.field(default_factory=dict)
    #: what the model was made with, under the user's names, as ``{"batch": 32}``; whole numbers
    #: name colours
    sizes: Mapping[str, bool | int | float | str] = dataclasses.field(default_factory=dict)
    trees: Any = None  #: (argument tree, result tree) as jax PyTreeDefs, None if unknown
    call_form: CallForm | None = None  #: how its function is called, None if it has none
    source: str = ""  #: where the model came from, for messages
    notes: tuple[str, ...] = ()  #: one sentence about each change that was made to the input
    #: actions by name, see ``registry.Example``
    expert_plans: ExpertPlans = dataclasses.field(default_factory=dict)
    parameter_count: int | None = None  #: trained numbers, if known
    #: ``parameter_count`` as the paper states it, for its own models at their default sizes
    paper_parameters: str = ""
    function: Function | Recipe | None = None  #: None if it came from a file or was pickled
    #: what its layers keep for the backward pass, where that was chosen after the model was written
    recompute: tuple[Recomputed, ...] = ()
    padding: Padding | None = None  #: of its dims; None: the program is as it was written
    #: for which JAX lowers the function to this program, of ``platforms.PLATFORMS``; a file's
    #: program is taken as it is on all of them
    platforms: frozenset[str] = ALL_PLATFORMS
    #: programs of the function for other platforms, shared by all of its models
    lowerings: Lowerings = dataclasses.field(default_factory=Lowerings)

    @property
    def recipe(self) -> Recipe | None:
        """How to recreate its function in another process; None: it cannot be."""
        _, recipe = self.lowerings.child or (None, None)
        return recipe if isinstance(recipe, Recipe) else None

    def lowered_for(self, platform: str) -> Model:
        """This model with the program that JAX makes of its function for a platform.

        ``platform`` is "cpu", "tpu" or "gpu". The model itself if its program is for this one.

        Raises:
            FrontendError: JAX cannot lower the function for this platform, or the function is in
                another process.

        Examples:
            >>> import jax, toast_lab as tl
            >>> matrix = jax.ShapeDtypeStruct((64, 64), "float32")
            >>> model = tl.from_jax(jax.numpy.linalg.cholesky, matrix)
            >>> sorted(model.platforms), sorted(model.lowered_for("tpu").platforms)
            (['cpu'], ['tpu'])
            >>> "cholesky" in model.lowered_for("tpu").program.kind
            True
        """
        if platform in self.platforms:
            return self
        return self._with(self.lowerings.program(self.name, platform))

    def of_program(self, program: Program) -> Model:
        """This model with ``program``, if that is one of its function's; else the model itself.

        The program may count other rounds of loops whose rounds are unknown.
        """
        if program is self.program:
            return self
        digest, known = program.digest(), self.platforms
        if digest == self.program.digest():
            return self
        if (own := self._counting_as(program)).program.digest() == digest:
            return own
        for platform in PLATFORMS:
            if platform in known:
                continue
            with contextlib.suppress(FrontendError):
                lowered = self.lowerings.program(self.name, platform)
                known |= lowered.platforms
                own = self._with(lowered)._counting_as(program)
                if own.program is program or own.program.digest() == digest:
                    return own
        return self

    def _with(self, lowered: LoweredProgram) -> Model:
        return dataclasses.replace(self, **lowered._asdict())

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Shardings that the user wrote into the program; see ``Problem.keep_annotations``."""
        return self.program.annotations

    def __repr__(self) -> str:
        return f"<Model {self}>"

    def with_rounds(self, rounds: Rounds) -> Model:
        """This model with the rounds of the loops whose rounds its program does not state.

        Without them each counts as one round, which ``notes`` say. Analyses, prices, listings and
        compiled programs of the new model count what is given.

        Args:
            rounds: one number for all such loops, or numbers by source line, as
                ``{"solve.py:12": 40}``.

        Raises:
            InvalidInput: see ``rounds.with_rounds``.

        Examples:
            >>> import jax
            >>> import toast_lab as tl
            >>> x = jax.ShapeDtypeStruct((64, 64), "float32")
            >>> halve = lambda x: jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ x, x)
            >>> model = tl.from_jax(halve, x, name="halve")
            >>> model.program.trips.max(), model.with_rounds(10).program.trips.max()
            (np.float64(2.0), np.float64(11.0))
        """
        counting = self._counting(with_rounds(self.program, rounds))
        lowered = LoweredProgram(
            counting.program, counting.stablehlo, counting.platforms, counting.notes
        )
        return dataclasses.replace(counting, lowerings=self.lowerings.counting(rounds, lowered))

    def _counting_as(self, program: Program) -> Model:
        """This model with the rounds that another program of its function counts."""
        return self._counting(with_rounds_of(self.program, program))

    def _counting(self, program: Program) -> Model:
        if program is self.program:
            return self
        notes = recounted_notes(self.notes, self.program, program)
        return dataclasses.replace(self, program=program, notes=notes)

    def without_source(self) -> Model:
        """This model as an analysis takes it to other processes: no text, function or pytrees."""
        return dataclasses.replace(self, stablehlo="", trees=None, function=None)

    def __str__(self) -> str:
        program = self.program
        summary = (
            f"{self.name}: {counted(program.n_ops - program.n_arguments, 'op')}, "
            f"{counted(program.n_arguments, 'argument')}, {counted(len(program.outputs), 'result')}"
        )
        if self.parameter_count is not None:
            summary += f", {self.parameter_count:,} parameters"
        if platforms := platforms_text(self.platforms):
            summary += f", as lowered for {platforms}"
        return summary + (f" (paper: {self.paper_parameters})" if self.paper_parameters else "")
