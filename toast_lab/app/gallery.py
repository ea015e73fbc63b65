"""Facts that the gallery shows about a model before it is loaded.

They are written down here, so that showing the gallery loads no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from toast_lab.models import registry


class Card(NamedTuple):
    """A built-in model at its default sizes."""

    ops: int
    values: int
    names: int  #: of dims larger than 1
    conflicts: int
    parameters: int | None = None


class SolvedCase(NamedTuple):
    """A problem with the plan that the paper or any expert would give it."""

    model: str
    words: str
    question: str  #: the question that the plan answers
    mesh: str
    actions: tuple[str, ...]
    picture: str  #: description of the answer that the page shows
    sizes: Mapping[str, Any] = MappingProxyType({})  #: if not those at which sharding pays


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
FIRST_MODEL = "attention"  #: the model on the first page
BILLIONS = SolvedCase(
    model="t2b",
    words="T2B: two billion parameters on 32 devices",
    question=(
        "A training step of 2.5 billion parameters does not fit one device. Which cuts make it fit?"
    ),
    mesh="data=8,model=4",
    actions=("batch->data", "d_model->data", "hidden->model", "heads->model", "vocab->model"),
    picture=(
        "Five actions, mirrored to all 18 layers: examples and states cut along data, weights "
        "along model. On the right, the time of a step and whether it fits; below, what each "
        "device runs."
    ),
    sizes=MappingProxyType({"batch": 32, "sequence": 2048, "dtype": "bfloat16"}),
)
SOLVED = (
    SolvedCase(
        model="mlp",
        words="mlp: examples on one axis, hidden units on the other",
        question="Two matrix products on eight devices: cut the examples, the weights, or both?",
        mesh="data=4,model=2",
        actions=("B->data", "U->model"),
        picture=(
            "Both pay. Below, one device's program: the second product sums over a dim that is "
            "cut, so one all_reduce follows."
        ),
    ),
    SolvedCase(
        model="xxt",
        words="x @ x.T: one conflict, settled by a side",
        question=(
            "Both dims of x @ x.T are the rows of x, and an axis can cut only one of them. Which?"
        ),
        mesh="data=4,model=2",
        actions=("S@0->data",),
        picture=(
            "Side 0: each device makes some rows of the result, and x is gathered for its columns. "
            "The board has both sides with their prices."
        ),
    ),
    SolvedCase(
        model="attention",
        words="attention: five conflicts, one bit settles all",
        question="The scores of attention are sequence by sequence. How can a long text be cut?",
        mesh="data=4,model=2",
        actions=("S@1->data",),
        picture=(
            "Side 1, sequence sharding: the keys are gathered, the result is scattered. The board "
            "has both sides with their prices; one bit settles all five conflicts."
        ),
    ),
    SolvedCase(
        model="transformer",
        words="Transformer: data parallel with Megatron",
        question="How do experts shard a Transformer's training step over eight devices?",
        mesh="data=4,model=2",
        actions=("batch->data", "hidden->model", "heads->model", "vocab->model"),
        picture="Examples along data, hidden units, heads and vocabulary along model. Below, the "
        "collectives that this brings, at the source lines that cause them.",
        sizes=MappingProxyType({"batch": 32}),
    ),
    BILLIONS,
)


def card_text(name: str) -> str:
    """The text on a card: what the model is, then its counts.

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
