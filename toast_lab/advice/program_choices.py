"""The programs that an advice chooses from: what layers keep, and parts of a batch.

Each is another program of the same function, with an analysis of its own; all meshes share it. A
part of a batch runs several times, and its gradients are added up, so that a step has the same
examples. Programs are traced only where memory binds, and in the order in which they help.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toast_lab import checks
from toast_lab.advice.advice_task import Parcel, held_bytes
from toast_lab.advice.recomputation import AS_WRITTEN, choices_of
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.conflicts.colour_roles import roles
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, ToastError
from toast_lab.frontends import load
from toast_lab.ir.model import Model, Recipe
from toast_lab.models import registry
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import unsharded_plan

PARTS = (2, 4, 8)  #: of a batch, unless the caller says which


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ProgramChoice:
    """A program of the model: what its layers keep, and how many parts a batch has.

    Attributes:
        base: a problem of it, on any mesh.
        keeps: "as written", or what layers keep for the backward pass.
        policies: name of a policy by the ``where`` of a layer; empty for the program as written.
        parts: of the batch, run one after the other.
        batch: examples of one part; None: unknown.
        digest: of its parcel.
        data: the parcel.
        compute_s: seconds that one device needs at least for all products of a step.
        resident_bytes: bytes that one device holds at least when a step begins, if it holds all.
    """

    base: Problem
    keeps: str
    policies: Mapping[str, str]
    parts: int
    batch: int | None
    digest: str
    data: bytes
    compute_s: float
    resident_bytes: float

    @property
    def policy(self) -> str:
        """The policies in a word: "inputs", or "" for the program as written."""
        return ", ".join(dict.fromkeys(self.policies.values()))

    def problem(self, mesh: Mesh) -> Problem:
        """The problem on a mesh."""
        return self.base.on_mesh(mesh)

    def __repr__(self) -> str:
        return f"<ProgramChoice {self}>"

    def __str__(self) -> str:
        texts = [f"layers keep {self.policy}"] * bool(self.policies)
        texts += [f"{self.parts} parts of {self.batch} examples"] * (self.parts > 1)
        return ", ".join(texts) or AS_WRITTEN


def program_choice(
    base: Problem, *, keeps: str, policies: Mapping[str, str], parts: int, batch: int | None
) -> ProgramChoice:
    """The choice of a program, with what bounds all of its plans."""
    held = held_bytes(base.analysis) if parts > 1 else {}
    parcel = Parcel(base.analysis, base.machine, base.memory_limit_bytes, held)
    data = pickle.dumps(parcel)
    # Pickles of equal objects may differ, so that rows are found again by what is in them
    machine = repr(sorted(base.machine.as_dict().items(), key=lambda item: item[0]))
    text = f"{base.analysis.program.digest()} {machine} {base.memory_limit_bytes} {parts}"
    facts, _ = base.prices.rules.facts
    whole = price(base, unsharded_plan(base.analysis, base.mesh))
    return ProgramChoice(
        base=base,
        keeps=keeps,
        policies=policies,
        parts=parts,
        batch=batch,
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        data=data,
        compute_s=parts * float((facts.op.flops / facts.op.peak).sum()),
        resident_bytes=float(whole.timeline_bytes[0]),
    )


def examples_of(analysis: Analysis) -> int | None:
    """Examples of a step: the batch that the model was loaded with, or the size of its colour."""
    batch = _batch(analysis.model.recipe)
    if batch is not None:
        return batch
    groups = roles(analysis).groups("batch")
    return max((int(analysis.groups[group].size) for group in groups), default=None)


def _batch(recipe: Recipe | None) -> int | None:
    """The size called batch with which a model was loaded; None: it has none."""
    if recipe is None:
        return None
    defaults = registry.sizes(recipe.which) if recipe.which in registry.MODELS else {}
    batch = {**defaults, **recipe.sizes}.get("batch")
    return batch if isinstance(batch, int) and not isinstance(batch, bool) else None


def parts_wanted(model: Model, batch: Any) -> tuple[int, ...]:
    """The numbers of parts to try, besides a whole batch.

    Args:
        model: the model.
        batch: True: halves, quarters and eighths; False: none; or examples of a part, one number
            or several, each of which divides the batch.

    Raises:
        InvalidProblem: the batch of the model is not known, with how to make it known, or a number
            does not divide it.
    """
    if batch is False:
        return ()
    whole = _batch(model.recipe)
    if whole is None:
        raise InvalidProblem(
            f"the batch of {model.name} is not known: load it by name with a size called batch, as "
            f'in tl.load("{model.name}", batch=32)'
        )
    if batch is True:
        return tuple(parts for parts in PARTS if whole % parts == 0)
    listed = list(batch) if isinstance(batch, Sequence) and not isinstance(batch, str) else [batch]
    offences = [
        f"{size!r:.40} {offence}"
        for size in listed
        if (offence := checks.whole_offence(size, 1, whole) or _remainder(whole, size))
    ]
    if offences or not listed:
        raise InvalidProblem(
            f"batch= takes examples of a part of the batch of {whole}: "
            f"{'; '.join(offences) or 'the list is empty'}"
        )
    return tuple(sorted({whole // int(size) for size in listed} - {1}))


def _remainder(whole: int, size: int) -> str:
    return "" if whole % size == 0 else f"does not divide {whole}"


def kept_choices(whole: ProgramChoice, wanted: Any) -> Iterator[ProgramChoice]:
    """The programs of a choice in which layers keep less; raises what ``choices_of`` raises."""
    for name, (policies, own) in choices_of(whole.base, wanted).items():
        if name != AS_WRITTEN:
            yield program_choice(
                own, keeps=name, policies=policies, parts=whole.parts, batch=whole.batch
            )


def part_problem(whole: Problem, parts: int) -> tuple[Problem, int]:
    """The problem of one of ``parts`` parts of the batch, as ``parts_wanted`` gives them.

    Gives its examples, too. Raises ToastError if the function cannot be traced with that batch.
    """
    recipe = whole.analysis.model.recipe
    batch = _batch(recipe)
    assert recipe is not None
    assert batch is not None
    model = load(recipe.which, **{**recipe.sizes, "batch": batch // parts})
    return whole.of_program(analyse(model)), batch // parts


def part_choice(base: Problem, parts: int, recompute: Any) -> ProgramChoice:
    """The program of one of ``parts`` parts of the batch.

    Args:
        base: the problem of the whole batch.
        parts: number of parts.
        recompute: what layers keep in all choices, if the caller fixed it; else a bool.

    Raises:
        ToastError: the function cannot be traced with that batch.
    """
    own, batch = part_problem(base, parts)
    choice = program_choice(own, keeps=AS_WRITTEN, policies={}, parts=parts, batch=batch)
    if isinstance(recompute, bool):
        return choice
    return next(kept_choices(choice, recompute))


def reason(error: ToastError) -> str:
    """The first line of an error, for a list of what was left out."""
    return str(error).splitlines()[0]
