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
    """Add the annotations of the space's program to the wishes in ``before``.

    Gives (all wishes, notes on the annotations that are left out and why).

    Raises:
        InvalidProblem: ``strict`` is set and some annotations cannot be kept; all of them are
            listed, with the contradictions between the others.
    """
    program = space.analysis.program
    wishes: dict[tuple, ValueWish] = {}
    offenders: list[str] = []
    for annotation in program.annotations:
        try:
            wish = _wish(space, annotation)
        except ToastError as error:
            offenders.append(
                f"{annotation}: {error}" if annotation.trouble == "" else str(annotation)
            )
        else:
            if wish.dims or wish.closed:
                wishes.setdefault((wish.value, wish.dims, wish.closed), wish)
    annotation_wishes = list(wishes.values())
    contradiction = ""
    try:
        make_pins(space, [*before, *annotation_wishes])
    except InvalidProblem as error:
        contradiction = str(error)
    if strict and (offenders or contradiction):
        offenders_text = (
            "these annotations cannot be kept (strict=False leaves them out):\n"
            + join_offenders(offenders)
        )
        raise InvalidProblem(
            "\n".join(
                [
                    *([offenders_text] if offenders else []),
                    *([contradiction] if contradiction else []),
                ]
            )
        )
    if contradiction:
        kept_wishes: list[Wish] = list(before)
        for wish in annotation_wishes:
            try:
                make_pins(space, [*kept_wishes, wish])
            except InvalidProblem as error:
                offenders.append(str(error).partition("\n")[2].strip())
            else:
                kept_wishes.append(wish)
        return kept_wishes, [f"left out: {offence}" for offence in offenders]
    return [*before, *annotation_wishes], [f"left out: {offence}" for offence in offenders]


def _wish(space: Space, annotation: Annotation) -> ValueWish:
    """An annotation as a wish. Raises ToastError if no plan on this mesh can keep it."""
    if annotation.trouble:
        raise InvalidProblem(annotation.trouble)
    program = space.analysis.program
    label = f"{annotation.name} ({annotation.where})" if annotation.where else annotation.name
    maker = int(program.value_op[annotation.value])
    return pin_value(
        program,
        space.mesh,
        annotation.value,
        annotation.spec,
        called=label,
        never=annotation.replicated,
        split_op_alike=program.kind[maker] == CONSTRAINT,
    )
