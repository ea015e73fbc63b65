"""What the gallery tells of a model before it is loaded.

Written down, so that showing it loads none.
"""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.models import registry


class Card(NamedTuple):
    """A built-in model at its default sizes."""

    ops: int
    values: int
    names: int  #: of dims larger than 1
    conflicts: int
    parameters: int | None = None


class SolvedCase(NamedTuple):
    """A small case with a plan that the paper or every expert gives it."""

    model: str
    words: str
    mesh: str
    actions: tuple[str, ...]


CARDS = {
    "mlp": Card(5, 8, 16, 0),
    "xxt": Card(2, 3, 7, 1),
    "crossed": Card(6, 7, 13, 4),
    "attention": Card(10, 14, 31, 5),
    "transformer": Card(ops=1502, values=1565, names=3040, conflicts=56, parameters=24_250_880),
    "t2b": Card(ops=11598, values=12093, names=24640, conflicts=504, parameters=2_506_434_560),
    "t7b": Card(ops=17796, values=18561, names=40324, conflicts=728, parameters=8_538_074_112),
    "itx": Card(ops=6242, values=6566, names=9196, conflicts=0, parameters=5_069_115_392),
    "gns": Card(ops=36907, values=39213, names=44938, conflicts=0, parameters=877_704_196),
    "unet": Card(ops=14514, values=15316, names=29202, conflicts=192, parameters=3_595_652_355),
}
SOLVED = (
    SolvedCase(
        "mlp",
        "mlp: examples on one axis, hidden units on the other",
        "data=4,model=2",
        ("B->data", "U->model"),
    ),
    SolvedCase("xxt", "x @ x.T: one conflict, settled by a side", "data=4,model=2", ("S@0->data",)),
    SolvedCase(
        "attention",
        "attention: five conflicts, one bit settles all",
        "data=4,model=2",
        ("S@1->data",),
    ),
    SolvedCase(
        "transformer",
        "Transformer: data parallel with Megatron",
        "data=4,model=2",
        ("batch->data", "hidden->model", "heads->model", "vocab->model"),
    ),
)


def card_text(name: str) -> str:
    """The words on a card: what it is, then its sizes.

    >>> card_text("xxt").splitlines()[1]
    '2 ops · 7 names · 1 conflict'
    """
    about = registry.MODELS[name].about
    card = CARDS.get(name)
    if card is None:
        return f"{name} — {about}"
    counts = [_parameters(card.parameters)] if card.parameters else []
    counts += [f"{card.ops:,} ops"]
    counts += [
        f"{card.names:,} names",
        f"{card.conflicts or 'no'} conflict{'' if card.conflicts == 1 else 's'}",
    ]
    return f"{name} — {about}\n" + " · ".join(counts)


def _parameters(count: int) -> str:
    return (
        f"{count / 1e9:.2f} billion parameters"
        if count >= 1e9
        else f"{count / 1e6:.0f} million parameters"
    )
