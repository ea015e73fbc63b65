"""The chapter on attention: compatible conflicts, and the plans that their resolutions lead to.

Reference: TOAST sections 3.3 to 3.5, figures 5 and 6.
"""

from __future__ import annotations

from toast_lab.app.session import Session
from toast_lab.app.tour.names_text import identified_lines
from toast_lab.app.tour.step import Chapter, Quiz, Step, TourScene, TourTask, nothing
from toast_lab.app.tour.words import (
    begin,
    carriers,
    count,
    dims,
    factors,
    listed,
    moved,
    price,
    sent,
    take,
    taken,
)
from toast_lab.models.registry import WORTHWHILE_SIZES
from toast_lab.views.graph_layout import place_text
from toast_lab.views.selection_facts import boxed_with

ATTENTION = TourScene("attention", "s=4", tuple(WORTHWHILE_SIZES["attention"].items()))
CROSSED = tuple(WORTHWHILE_SIZES["crossed"].items())
ONE_PATH = TourScene("crossed", "s=4", (*CROSSED, ("mode", "row sums")))
TWO_PATHS = TourScene("crossed", "s=4", (*CROSSED, ("mode", "transpose")))
SIDES = ("S@0->s", "S@1->s")


def sequence_side(session: Session) -> int:
    """The side of the conflicts that gives the reduce_scatter of the paper's figure 5b."""
    return next(
        i
        for i, side in enumerate(SIDES)
        if any(kind == "reduce_scatter" for kind, *_ in taken(session, (side,)).sent)
    )


def _choose(session: Session, side: int) -> None:
    if any(action in session.hand.actions for action in SIDES):
        session.hand.choose_side(
            session.loaded.analysis.compatibility_sets[0].resolution, "s", side
        )
    else:
        take(session, SIDES[side])


def _program(session: Session) -> str:
    analysis = session.loaded.analysis
    twice = carriers(analysis, "S", 2)
    return (
        "Attention with an average in place of the softmax, as in the paper. Keys and queries both "
        f"come from `x`, so that the scores `a` are `{dims(session, 'a')}`: conflicts on "
        f"{listed(twice)}. The reduction leaves `b` with `{dims(session, 'b')}` and the last "
        f"matmul `z` with `{dims(session, 'z')}`: there the conflict ends."
    )


def _names(session: Session) -> str:
    analysis = session.loaded.analysis
    return (
        "The same program with I applied only. Every op has names of its own, written beside the "
        f"text and drawn as markers: {count(analysis.names.n, 'name')}, of which colour `S` has "
        f"{analysis.groups[analysis.group_index('S')].n_names}. Where a tensor has two of them, at "
        "its definition or at a use, they are in conflict."
    )


def _graph(session: Session) -> str:
    analysis, conflict_count = session.loaded.analysis, len(session.loaded.analysis.conflicts)
    tensors = listed(place_text(analysis, conflict) for conflict in range(conflict_count))
    return (
        "The lane of `S` is the paper's dimension graph: thin lines are M, red dashes the "
        f"{count(conflict_count, 'conflict')}, on {tensors}. A **resolution** says for each of "
        "them which of the two dims an axis cuts. This small program alone has "
        f"{2**conflict_count} resolutions, most of which move data for nothing."
    )


def _box(session: Session) -> str:
    analysis = session.loaded.analysis
    def_sides, use_sides = (
        listed(analysis.name_text[name] for name in analysis.conflicts[conflict].sides)
        for conflict in (0, boxed_with(analysis, 0)[0])
    )
    return (
        f"Two conflicts are selected: on the definition of `a`, {def_sides}, and on a use of "
        f"it, {use_sides}. M leads straight down both sides, and no path goes across: the paper's "
        "box. Settled alike they cost nothing; settled differently, `a` would have to be cut along "
        "its other dim in between: an **all_to_all**, in which every device sends to every other."
    )


def _one_path(session: Session) -> str:
    analysis = session.loaded.analysis
    return (
        "Another program, `w = z + row sums of z`. Dim 0 of `z` goes straight on to `w`, but by "
        "way of the sums `s` it also reaches dim 1 of that use: a path across the box. Such "
        f"conflicts are not compatible, and the {count(len(analysis.conflicts), 'conflict')} fall "
        f"into {count(len(analysis.compatibility_sets), 'set')}. "
        f"{begin(count(len(analysis.compatibility_sets), 'bit'))} settle them, "
        f"{2 ** len(analysis.compatibility_sets)} ways instead of 2, and where the two differ an "
        "all_to_all may be needed."
    )


def _two_paths(session: Session) -> str:
    analysis = session.loaded.analysis
    rows = [taken(session, (side,)) for side in SIDES]
    return (
        "With `w = z + transpose(z)` both dims reach the other side too. The definition of `z` and "
        "its use in the sum make no box. By way of the transpose they are still in "
        f"{count(len(analysis.compatibility_sets), 'set')}, the other way round. Whatever side is "
        f"taken, `z` has to move: side 0 needs {sent(rows[0])}, side 1 {sent(rows[1])}."
    )


def _set(session: Session) -> str:
    analysis, conflict_count = session.loaded.analysis, len(session.loaded.analysis.conflicts)
    return (
        "Boxes chain the conflicts together. What they join is a compatibility set; here "
        f"{count(len(analysis.compatibility_sets), 'set')} holds all {conflict_count}. One bit "
        f"settles it, so that of {2**conflict_count} resolutions {analysis.n_resolutions} are "
        "left: all side 0 or all side 1, the two rows of the board."
    )


def _whole_set(session: Session) -> bool:
    return session.loaded.analysis is not None and set(session.selection.conflicts) == set(
        session.loaded.analysis.compatibility_sets[0].conflicts
    )


def _sequence(session: Session) -> str:
    side = sequence_side(session)
    dim = 1 if side else 0
    return (
        f"Side {side} cuts dim {dim} of {listed(carriers(session.loaded.analysis, 'S', 2))}: "
        "sequence sharding, which lets a Transformer read texts that no single device could hold. "
        "Choose it on axis `s` and compare the listing with the figure."
    )


def _sequence_done(session: Session) -> str:
    actions = (SIDES[sequence_side(session)],)
    kinds = ("all_gather", "reduce_scatter", "all_reduce")
    moved_texts = [
        f"{kind} of {listed(moved(session, kind, actions))}"
        for kind in kinds
        if moved(session, kind, actions)
    ]
    return (
        f"`a` is `{dims(session, 'a', actions)}` and `z` `{dims(session, 'z', actions)}`, with "
        f"{' and '.join(moved_texts)}. A step takes {price(taken(session, actions))}."
    )


def _gathered(session: Session) -> str:
    return (
        f"The listing is the figure's, line by line: {sent(taken(session, SIDES[1:]))}. `x` comes "
        "in cut along the sequence, and so are `k`, `v` and `q`. The scores `a` need every row of "
        "one operand and the device's own columns of the other."
    )


def _other(session: Session) -> str:
    return (
        'The paper leaves the other resolution out "for lack of space". Flip the switch to side '
        f"{1 - sequence_side(session)}: the rows of `a` are cut instead, and other tensors have to "
        "move."
    )


def _other_done(session: Session) -> str:
    actions = (SIDES[1 - sequence_side(session)],)
    sequence_row, other_row = (
        taken(session, (SIDES[sequence_side(session)],)),
        taken(session, actions),
    )
    return (
        f"Gathered are {listed(moved(session, 'all_gather', actions))}, the two all_gathers of the "
        "paper's text. The sum over the rows of `a` is partial as well, hence the all_reduce of "
        f"{listed(moved(session, 'all_reduce', actions))}, which the text does not mention. "
        f"{price(other_row)} against {price(sequence_row)}."
    )


CHAPTER = Chapter(
    "paper, attention",
    (
        Step(
            key="attention.program",
            title="Attention has conflicts",
            paper="Figure 5a",
            scene=ATTENTION,
            page="graph",
            target=("drawer",),
            text=_program,
            actions=(),
            level="names",
            drawer=True,
            select=nothing,
            quiz=Quiz(
                question="Which op ends the conflict for the result of the program?",
                options=lambda session: ["a = matmul", "c = broadcast", "d = div", "z = matmul"],
                right=lambda session: "z = matmul",
                why=lambda session: (
                    "`z = matmul(d, v)` sums over one of the two dims: "
                    f"`{dims(session, 'd')}` becomes `{dims(session, 'z')}`."
                ),
            ),
        ),
        Step(
            key="attention.names",
            title="Names of every op",
            paper="Figure 5c",
            scene=ATTENTION,
            page="graph",
            target=("code", "graph"),
            text=_names,
            actions=(),
            level="names",
            select=lambda session: (factors(session, "a"), ()),
            code=lambda session: identified_lines(session.loaded.analysis),
        ),
        Step(
            key="attention.graph",
            title="The dimension graph",
            paper="Figure 5d",
            scene=ATTENTION,
            page="graph",
            target=("graph",),
            text=_graph,
            actions=(),
            level="names",
            select=nothing,
        ),
        Step(
            key="attention.box",
            title="Compatible conflicts: the box",
            paper="Figure 6, left",
            scene=ATTENTION,
            page="graph",
            target=("graph", "inspector"),
            text=_box,
            actions=(),
            level="names",
            select=lambda session: ((), (0, boxed_with(session.loaded.analysis, 0)[0])),
        ),
        Step(
            key="attention.one_path",
            title="A path across",
            paper="Figure 6, middle",
            scene=ONE_PATH,
            page="graph",
            target=("graph",),
            text=_one_path,
            actions=(),
            level="names",
            select=nothing,
        ),
        Step(
            key="attention.two_paths",
            title="Two paths across",
            paper="Figure 6, right",
            scene=TWO_PATHS,
            page="graph",
            target=("graph",),
            text=_two_paths,
            actions=(),
            level="names",
            select=nothing,
        ),
        Step(
            key="attention.set",
            title="The compatibility set",
            paper="section 3.5",
            scene=ATTENTION,
            page="hand",
            target=("board",),
            text=_set,
            actions=(),
            tab="listing",
            select=nothing,
            task=TourTask(
                ask=lambda session: "Select the set: click a row of the board.",
                done=_whole_set,
                do=lambda session: session.selection.select(
                    (), session.loaded.analysis.compatibility_sets[0].conflicts
                ),
                after=lambda session: (
                    f"Selected: {count(len(session.selection.conflicts), 'conflict')} that one bit "
                    "settles."
                ),
            ),
        ),
        Step(
            key="attention.sequence",
            title="Sequence sharding",
            paper="Figure 5b",
            scene=ATTENTION,
            page="hand",
            target=("sides", "lower"),
            text=_sequence,
            actions=(),
            tab="listing",
            select=lambda session: ((), session.loaded.analysis.compatibility_sets[0].conflicts),
            task=TourTask(
                ask=lambda session: f"Choose side {sequence_side(session)} on `s`.",
                done=lambda session: SIDES[sequence_side(session)] in session.hand.actions,
                do=lambda session: _choose(session, sequence_side(session)),
                after=_sequence_done,
            ),
        ),
        Step(
            key="attention.gathered",
            title="Read the listing",
            paper="Figure 5b",
            scene=ATTENTION,
            page="hand",
            target=("lower",),
            text=_gathered,
            actions=SIDES[1:],
            tab="listing",
            select=nothing,
            quiz=Quiz(
                question="Which tensor must be gathered?",
                options=lambda session: ["x", "k", "v", "q", "qt"],
                right=lambda session: moved(session, "all_gather", SIDES[1:])[0],
                why=lambda session: (
                    f"`{moved(session, 'all_gather', SIDES[1:])[0]}_` is the whole of it; `z_`, a "
                    "partial sum, is then scattered."
                ),
            ),
        ),
        Step(
            key="attention.other",
            title="The other resolution",
            paper="section 3.5",
            scene=ATTENTION,
            page="hand",
            target=("sides", "lower"),
            text=_other,
            actions=SIDES[1:],
            tab="listing",
            select=lambda session: ((), session.loaded.analysis.compatibility_sets[0].conflicts),
            task=TourTask(
                ask=lambda session: f"Choose side {1 - sequence_side(session)} on `s`.",
                done=lambda session: SIDES[1 - sequence_side(session)] in session.hand.actions,
                do=lambda session: _choose(session, 1 - sequence_side(session)),
                after=_other_done,
            ),
        ),
    ),
)
