"""Five minutes for readers new to the paper: a program that does not fit, and one choice."""

from __future__ import annotations

from toast_lab.app.session import Session
from toast_lab.app.tour.running import EIGHT_DEVICES, ROWS, RUN_PLAN
from toast_lab.app.tour.step import Chapter, Quiz, Step, TourScene, TourTask, nothing
from toast_lab.app.tour.words import (
    carriers,
    colour_names,
    count,
    dims,
    listed,
    moved,
    price,
    sent,
    take,
    taken,
)
from toast_lab.text import bytes_text
from toast_lab.views.compare_table import seconds_text

#: a text that is too long for one TPU v5e to hold its attention scores
LONG_TEXT = TourScene(
    "attention",
    "s=4",
    (("sequence", 65536), ("d_model", 1024), ("key", 128), ("value", 128)),
)
SIDES = ("S@0->s", "S@1->s")


def _problem(session: Session) -> str:
    problem = session.loaded.problem
    sequence = dict(LONG_TEXT.sizes)["sequence"]
    return (
        f"This is attention over a text of {sequence:,} words. One step needs "
        f"**{bytes_text(problem.baseline[1])}**, and one {problem.machine.name} has "
        f"**{bytes_text(problem.memory_limit_bytes)}**: it does not fit. There are "
        f"{problem.mesh.n_devices} devices in a row, the mesh **axis** `s`. Tensors can be cut "
        "along it: each device gets a part, and devices send each other what they lack. Which dim "
        "of which tensor should be cut?"
    )


def _colours(session: Session) -> str:
    analysis = session.loaded.analysis
    return (
        "Read downwards: one row for each op. Dims that have to be cut alike, or data would move "
        "between ops, share a **colour**, a lane of the picture: `S`, the text, is on "
        f"{listed(carriers(analysis, 'S'))}. Nobody wrote that down; it follows from what each op "
        "does. To cut the text means to follow this lane through all its markers."
    )


def _conflict(session: Session) -> str:
    analysis, ways = session.loaded.analysis, session.loaded.problem.mesh.n_devices
    return (
        f"But here the lane splits. The scores `a` are every word against every word, "
        f"`{dims(session, 'a')}`: the text is on **both** dims, and one axis can cut only one of "
        f"them; cut along both, {ways} devices would hold {ways} of {ways**2} blocks. Which? "
        f"That is a **conflict**, a red line. There are {count(len(analysis.conflicts), 'line')} "
        f"on {listed(carriers(analysis, 'S', 2))}: where each is made, and where it is used."
    )


def _choice(session: Session) -> str:
    rows = [taken(session, (side,)) for side in SIDES]
    prices = [f"{seconds_text(row.time_s)} and {bytes_text(row.peak_bytes)}" for row in rows]
    return (
        "Two ways out: cut the rows of the scores (side 0) or their columns (side 1). All red "
        "lines follow, since another side for one of them would only move a tensor: such conflicts "
        f"are a **compatibility set**. By estimate a step takes {price(taken(session, ()))} if "
        f"unsharded, {prices[0]} with side 0, and {prices[1]} with side 1: nearly the same. Begin "
        "with side 1: what it sends is easier to read."
    )


def _chosen(session: Session) -> str:
    before, row = taken(session, ()), taken(session, SIDES[1:])
    return (
        f"It fits, and is {before.time_s / row.time_s:.1f} times as fast: {price(row)}. Each "
        f"device computes its part only, and sending takes just {seconds_text(row.comm_s)}. `a` is "
        f"now `{dims(session, 'a', SIDES[1:])}`: `{{s}}` marks the dim that is cut."
    )


def _listing(session: Session) -> str:
    row = taken(session, SIDES[1:])
    return (
        f"This is what each device runs; brown words are what they send: {sent(row)}. An "
        "**all_gather** gives every device the whole of a tensor that was cut. A "
        "**reduce_scatter** adds up the devices' partial sums and leaves each its own part. To "
        "make its columns of `a`, a device needs every row of one operand. Read the listing: which "
        "one?"
    )


def _run(session: Session) -> str:
    problem = session.loaded.problem
    return (
        f"Now run a plan. This machine's CPU can play {count(problem.mesh.n_devices, 'device')}, "
        "but so long a text is too much for it. So take the scores alone, `z = x @ x.T` of "
        f"{ROWS:,} words: the same conflict, and side 1 again. That plan is selected in the table. "
        "The button compiles and executes it and the unsharded program in turns, and compares "
        "their results."
    )


def _further(session: Session) -> str:
    return (
        "That is all: colours, one conflict, one choice, its price, and a run. A real model has "
        "thousands of ops and tens of such choices; page **3 Search** makes them for you, and "
        "here, on page **4**, plans run and **Export** writes them for your code. Load your own "
        "model on page "
        "**1**, or press Next: the chapters that follow are for readers of the paper, figure by "
        "figure."
    )


CHAPTER = Chapter(
    "five minutes",
    (
        Step(
            key="first.problem",
            title="It does not fit",
            paper="the problem",
            scene=LONG_TEXT,
            page="graph",
            target=("graph",),
            text=_problem,
            actions=(),
            level="names",
            select=nothing,
        ),
        Step(
            key="first.colours",
            title="What is cut together",
            paper="colours",
            scene=LONG_TEXT,
            page="graph",
            target=("graph",),
            text=_colours,
            actions=(),
            level="names",
            select=lambda session: colour_names(session, "S"),
        ),
        Step(
            key="first.conflict",
            title="Only one of two dims",
            paper="the conflict",
            scene=LONG_TEXT,
            page="graph",
            target=("graph",),
            text=_conflict,
            actions=(),
            level="names",
            select=nothing,
            task=TourTask(
                ask=lambda session: "Click a red line of the graph.",
                done=lambda session: bool(session.selection.conflicts),
                do=lambda session: session.selection.select((), (0,)),
                after=lambda session: (
                    "On the right, below “conflict”, you see why both dims have one colour: the "
                    "path from one to the other."
                ),
            ),
        ),
        Step(
            key="first.choice",
            title="Choose a side",
            paper="the choice",
            scene=LONG_TEXT,
            page="graph",
            target=("sides", "graph"),
            text=_choice,
            actions=(),
            level="names",
            select=lambda session: ((), session.loaded.analysis.compatibility_sets[0].conflicts),
            task=TourTask(
                ask=lambda session: "Choose side 1 on `s`, with the switch on the right.",
                done=lambda session: SIDES[1] in session.hand.actions,
                do=lambda session: take(session, SIDES[1]),
                after=_chosen,
            ),
        ),
        Step(
            key="first.listing",
            title="What the devices send",
            paper="its price",
            scene=LONG_TEXT,
            page="hand",
            target=("lower",),
            text=_listing,
            actions=SIDES[1:],
            tab="listing",
            select=nothing,
            quiz=Quiz(
                question="Which tensor must every device have whole?",
                options=lambda session: ["x", "k", "v", "q", "qt"],
                right=lambda session: moved(session, "all_gather", SIDES[1:])[0],
                why=lambda session: (
                    f"`{moved(session, 'all_gather', SIDES[1:])[0]}_` in the listing is the whole "
                    "of it, gathered from all devices."
                ),
            ),
        ),
        Step(
            key="first.run",
            title="Run the plan",
            paper="the result",
            scene=EIGHT_DEVICES,
            page="compare",
            target=("execute",),
            text=_run,
            actions=SIDES[1:],
            task=RUN_PLAN,
        ),
        Step(
            key="first.further",
            title="From here",
            paper="what comes next",
            scene=EIGHT_DEVICES,
            page="compare",
            target=("pages",),
            text=_further,
            actions=SIDES[1:],
        ),
    ),
)
