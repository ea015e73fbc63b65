"""The user's own annotations (``ir.annotations``) as pins."""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.errors import InvalidProblem, ToastError, join_offenders
from toast_lab.ir.annotations import CONSTRAINT, Annotation
from toast_lab.sharding.pins import make_pins
from toast_lab.sharding.space import Space
from toast_lab.sharding.wishes import ValueWish, Wish, pin_value


def keep_annotations(
    space: Space, before: Sequence[Wish], *, strict: bool
) -> tuple[list[Wish], list[str]]:
    """Put the annotations of the space's program behind the wishes before them.

    Gives (all wishes, why the other annotations are left out).

    Raises:
        InvalidProblem: with ``strict``, some cannot be kept; all are listed, and the contradictions
            between the others.
    """
    program = space.analysis.program
    wishes: dict[tuple, ValueWish] = {}
    wrong: list[str] = []
    for annotation in program.annotations:
        try:
            wish = _wish(space, annotation)
        except ToastError as error:
            wrong.append(f"{annotation}: {error}" if annotation.trouble == "" else str(annotation))
        else:
            if wish.dims or wish.closed:
                wishes.setdefault((wish.value, wish.dims, wish.closed), wish)
    new = list(wishes.values())
    together = ""
    try:
        make_pins(space, [*before, *new])
    except InvalidProblem as error:
        together = str(error)
    if strict and (wrong or together):
        listed = (
            "these annotations cannot be kept (strict=False leaves them out):\n"
            + join_offenders(wrong)
        )
        raise InvalidProblem(
            "\n".join([*([listed] if wrong else []), *([together] if together else [])])
        )
    if together:
        kept: list[Wish] = list(before)
        for wish in new:
            try:
                make_pins(space, [*kept, wish])
            except InvalidProblem as error:
                wrong.append(str(error).partition("\n")[2].strip())
            else:
                kept.append(wish)
        return kept, [f"left out: {text}" for text in wrong]
    return [*before, *new], [f"left out: {text}" for text in wrong]


def _wish(space: Space, annotation: Annotation) -> ValueWish:
    """An annotation as a wish.  Raises ToastError if no plan can keep it on this mesh."""
    if annotation.trouble:
        raise InvalidProblem(annotation.trouble)
    program = space.analysis.program
    called = f"{annotation.name} ({annotation.where})" if annotation.where else annotation.name
    maker = int(program.value_op[annotation.value])
    return pin_value(
        program,
        space.mesh,
        annotation.value,
        annotation.spec,
        called=called,
        never=annotation.replicated,
        op_too=program.kind[maker] == CONSTRAINT,
    )
