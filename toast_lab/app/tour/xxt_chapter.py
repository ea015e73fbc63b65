"""The chapter on ``x @ x.T``: the smallest conflict. Reference: TOAST sections 2.2 and 3.3."""

from __future__ import annotations

from toast_lab.app.session import Session
from toast_lab.app.tour.names_text import fresh_lines
from toast_lab.app.tour.step import Chapter, Quiz, Step, TourScene, TourTask, nothing
from toast_lab.app.tour.words import (
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
from toast_lab.views.selection_facts import chain

XXT = TourScene("xxt", "s=4", tuple(WORTHWHILE_SIZES["xxt"].items()))
SIDES = ("S@0->s", "S@1->s")


def _program(session: Session) -> str:
    analysis = session.loaded.analysis
    return (
        "`x` flows into the matmul along two paths: as it is, and transposed as `y`. So `y` is "
        f"`{dims(session, 'y')}`, and the result `z` is `{dims(session, 'z')}`: "
        f"{listed(carriers(analysis, 'S', 2))} has colour `S` on both dims. One mesh axis cannot "
        "cut two dims of one tensor. That is a sharding conflict, the red line of the graph: this "
        f"program has {count(len(analysis.conflicts), 'conflict')}."
    )


def _chain(session: Session) -> str:
    analysis = session.loaded.analysis
    path = [analysis.name_text[name] for name in chain(analysis, 0)]
    sides = [analysis.name_text[name] for name in analysis.conflicts[0].sides]
    return (
        "Names tell the two uses apart: before M is read as identities, `z` has the names "
        f"{listed(sides)}. They get one colour since a chain of M joins them: "
        f"{' – '.join(f'`{name}`' for name in path)}. The right pane has that chain with its ops."
    )


def _board(session: Session) -> str:
    rows = [taken(session, (side,)) for side in SIDES]
    return (
        "The conflict board has a row for each way out and a column for each mesh axis. Side 0 "
        f"cuts the rows of `z`, side 1 its columns. Alone on `s`, side 0 takes {price(rows[0])} "
        f"and side 1 {price(rows[1])}. Choose a side with the switch on the right."
    )


def _chosen(session: Session) -> str:
    row = taken(session, SIDES[:1])
    return f"`z` is now `{dims(session, 'z', SIDES[:1])}`: {sent(row)}. A step takes {price(row)}."


def _gathered(session: Session) -> str:
    return (
        f"`z` is `{dims(session, 'z', SIDES[:1])}`: each device makes some rows of it. For these "
        "it needs its own rows of one operand, and all of the other one, though both came in cut. "
        f"Read the listing: {sent(taken(session, SIDES[:1]))}."
    )


def _flip(session: Session) -> str:
    return (
        "Now the other way out. With side 0 it is "
        f"{listed(moved(session, 'all_gather', SIDES[:1]))} that every device needs whole. Flip "
        "the switch to side 1 and see which operand is gathered instead."
    )


def _flipped(session: Session) -> str:
    side_0, side_1 = (taken(session, (side,)) for side in SIDES)
    return (
        f"`z` is `{dims(session, 'z', SIDES[1:])}` and "
        f"{listed(moved(session, 'all_gather', SIDES[1:]))} is gathered. Time and memory: "
        f"{price(side_0)} against {price(side_1)}. Both ways are right; which is better depends on "
        "sizes and on what comes after. So the search has to choose, and the analysis tells it "
        "where."
    )


CHAPTER = Chapter(
    "paper, x @ x.T",
    (
        Step(
            key="xxt.program",
            title="One tensor, two paths",
            paper="listing in section 2.2",
            scene=XXT,
            page="graph",
            target=("graph",),
            text=_program,
            actions=(),
            level="names",
            drawer=True,
            select=nothing,
        ),
        Step(
            key="xxt.conflict",
            title="Why both dims have one colour",
            paper="listing in section 3.3",
            scene=XXT,
            page="graph",
            target=("graph", "inspector"),
            text=_chain,
            actions=(),
            level="names",
            select=nothing,
            code=lambda session: fresh_lines(session.loaded.analysis),
            task=TourTask(
                ask=lambda session: "Click the red line of the graph.",
                done=lambda session: 0 in session.selection.conflicts,
                do=lambda session: session.selection.select((), (0,)),
                after=lambda session: (
                    "Selected: the conflict on "
                    f"{listed(carriers(session.loaded.analysis, 'S', 2))}."
                ),
            ),
        ),
        Step(
            key="xxt.board",
            title="Two ways out",
            paper="section 3.4",
            scene=XXT,
            page="hand",
            target=("board", "sides"),
            text=_board,
            actions=(),
            tab="listing",
            select=lambda session: ((), (0,)),
            task=TourTask(
                ask=lambda session: "Choose side 0 on `s`.",
                done=lambda session: SIDES[0] in session.hand.actions,
                do=lambda session: session.hand.choose_side(0, "s", 0),
                after=_chosen,
            ),
        ),
        Step(
            key="xxt.gathered",
            title="What has to move",
            paper="section 3.4",
            scene=XXT,
            page="hand",
            target=("lower",),
            text=_gathered,
            actions=SIDES[:1],
            tab="listing",
            select=lambda session: (factors(session, "z"), (0,)),
            quiz=Quiz(
                question="Which tensor must be gathered?",
                options=lambda session: ["x", "y", "z"],
                right=lambda session: moved(session, "all_gather", SIDES[:1])[0],
                why=lambda session: (
                    f"`{moved(session, 'all_gather', SIDES[:1])[0]}_` in the listing is the whole "
                    "of it, on every device."
                ),
            ),
        ),
        Step(
            key="xxt.flip",
            title="The other side",
            paper="section 3.4",
            scene=XXT,
            page="hand",
            target=("sides", "lower"),
            text=_flip,
            actions=SIDES[:1],
            tab="listing",
            select=lambda session: ((), (0,)),
            task=TourTask(
                ask=lambda session: "Choose side 1 on `s`.",
                done=lambda session: SIDES[1] in session.hand.actions,
                do=lambda session: (
                    session.hand.choose_side(0, "s", 1)
                    if SIDES[0] in session.hand.actions
                    else take(session, SIDES[1])
                ),
                after=_flipped,
            ),
        ),
    ),
)
