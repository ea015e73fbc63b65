"""The chapter on the paper's MLP: names, colours, and the effect of sharding a colour.

Reference: TOAST section 2.1, figures 2 to 4, 7.
"""

from __future__ import annotations

from toast_lab.app.session import Session
from toast_lab.app.tour.names_text import fresh_lines, identified_lines
from toast_lab.app.tour.step import Chapter, Quiz, Step, TourScene, TourTask, nothing
from toast_lab.app.tour.words import (
    carriers,
    colour_names,
    cost,
    count,
    dims,
    factors,
    listed,
    moved,
    plan_of,
    price,
    sent,
    take,
    taken,
)
from toast_lab.ir.program import REDUCTION
from toast_lab.models.registry import WORTHWHILE_SIZES
from toast_lab.views.compare_table import seconds_text

MLP = TourScene("mlp", "b=4,m=2", tuple(WORTHWHILE_SIZES["mlp"].items()))
BATCH, MODEL = "B->b", "U->m"


def _system(session: Session) -> str:
    program, analysis = session.loaded.analysis.program, session.loaded.analysis
    return (
        "The paper's Figure 7 is the row of pages above. **Load** reads a program, here StableHLO "
        f"of JAX, {count(program.n_ops - program.n_arguments, 'op')}. **Understand** shows the "
        f"static analysis: it finds {analysis.names.n} dimension names and sorts them into "
        "colours. There you pick colours to shard, and **Search** picks them for you, both priced "
        f"by one cost model for `{session.loaded.problem.machine.name}` on the mesh "
        f"`{session.loaded.problem.mesh}`. **Use** lowers plans to device-local code, compiles and "
        "runs them."
    )


def _program(session: Session) -> str:
    analysis = session.loaded.analysis
    names = [group.name for group in analysis.groups if group.n_names > 1]
    yellow, green = (
        f"`{colour}` ({analysis.groups[analysis.group_index(colour)].size}) on "
        f"{listed(carriers(analysis, colour))}"
        for colour in ("B", "U")
    )
    return (
        "Two matmuls with a ReLU between them. In the listing below every dim has its colour: dims "
        f"of one colour are cut alike. There are {count(len(names), 'colour')}: {yellow}, "
        f"which the paper prints yellow; {green}, its green; hues here are others. Nobody wrote "
        "these colours down: they come out of what each op does."
    )


def _rules(session: Session) -> str:
    op_names = factors(session, "y")
    classes = session.loaded.analysis.program.factor_class
    summed = [
        session.loaded.analysis.name_text[name] for name in op_names if classes[name] == REDUCTION
    ]
    return (
        "Every op has a rule, the figure's, that says which dims of its operands and results are "
        "cut together. The selected markers are all the names of `y = matmul(x, w1)`: "
        f"{count(len(op_names), 'name')}, {count(len(op_names), 'way')} to cut it. Cutting along "
        f"{listed(summed)} leaves partial sums, which an **all_reduce** has to add up. Beside the "
        "text every dim is fresh, with the identities I of the rule below."
    )


def _fresh(session: Session) -> str:
    text = fresh_lines(session.loaded.analysis)
    return (
        "The analysis gives a fresh name to each dim of each definition and each use; `x.0'` is "
        "dim 0 of the first use of x. M leads from definitions to uses, "
        f"{count(text.count('→'), 'entry', 'entries')} here. I holds the "
        f"{count(text.count('≐'), 'identity', 'identities')} of the ops' rules. The marked line of "
        "the graph is one of these ops."
    )


def _identified(session: Session) -> str:
    return (
        "I applied: each name left is one way to cut one op. These "
        f"{session.loaded.analysis.names.n} names are the graph's markers, with the same numbers, "
        "and M is the thin lines between them. Each op could still be cut in a way of its own: "
        "where neighbours along M are cut differently, data has to move between devices."
    )


def _colours(session: Session) -> str:
    analysis = session.loaded.analysis
    group = analysis.groups[analysis.group_index("U")]
    return (
        "Now read M as identities too. Connected names become one colour, a lane of the graph: `U` "
        f"joins {count(group.n_names, 'name')}, on {listed(carriers(analysis, 'U'))}. A plan no "
        "longer cuts tensors one by one. Each **action** puts a colour on a mesh axis, and every "
        "tensor with that colour follows."
    )


def _contracted(session: Session) -> str:
    analysis = session.loaded.analysis
    return next(
        analysis.dim_text(name)
        for name in factors(session, "w")
        if analysis.program.factor_class[name] == REDUCTION
    )


def _batch(session: Session) -> str:
    return (
        f"The mesh `{session.loaded.problem.mesh}` has {session.loaded.problem.mesh.n_devices} "
        "devices. To cut the batch, colour `B` goes on axis `b`: select it on the left, then take "
        "the offer for `b` on the right. Unsharded, a step takes "
        f"{price(taken(session, ()))} by the cost model."
    )


def _batch_done(session: Session) -> str:
    row = taken(session, (BATCH,))
    return (
        f"`x` is now `{dims(session, 'x', [BATCH])}`, cut along `b`, and so are "
        f"{listed(carriers(session.loaded.analysis, 'B')[1:])}. Every device works on its own "
        f"rows: {sent(row)}. A step takes {price(row)}."
    )


def _whole(session: Session) -> list[str]:
    """Names of the arguments that stay whole if the batch is split."""
    specs, program = plan_of(session, [BATCH]).value_specs(), session.loaded.analysis.program
    return [
        program.value_name[value] for value in range(program.n_arguments) if not any(specs[value])
    ]


def _tiles(session: Session) -> str:
    return (
        "Each box is a device and the filled part is what it holds of `x`. Devices that share a "
        f"hue hold the same rows: axis `b` has {session.loaded.problem.mesh.sizes[0]} parts, and "
        f"the {session.loaded.problem.mesh.sizes[1]} devices along `m` are copies. "
        f"{listed(_whole(session))} are whole everywhere, which is the price of cutting only the "
        "batch."
    )


def _megatron(session: Session) -> str:
    return (
        f"To cut {listed(_whole(session))} as well, put colour `U` on axis `m`. The first matmul "
        "and the ReLU then work on their own columns. The second matmul sums over `U`, so that "
        "each device has a part of the sum only."
    )


def _megatron_done(session: Session) -> str:
    both = (BATCH, MODEL)
    row = taken(session, both)
    lines = [
        f"`{collective.kind} {{{','.join(collective.axes)}}}` on `{collective.value}`"
        for collective in cost(session, both).collectives
    ]
    return (
        f"The listing has {' and '.join(lines)}, as in the figure. `w1` is "
        f"`{dims(session, 'w1', both)}` and `w2` `{dims(session, 'w2', both)}`. This is Megatron's "
        f"way: {sent(row)}, {price(row)}."
    )


def _back_and_forth(session: Session) -> str:
    batch_alone, both = taken(session, (BATCH,)), taken(session, (BATCH, MODEL))
    pays = both.time_s < batch_alone.time_s
    return (
        f"{price(both)}, {'less' if pays else 'more'} than {price(batch_alone)} with the batch "
        f"alone: the all_reduce costs {'less' if pays else 'more'} than the second cut gains. The "
        f"cost model adds up compute, {seconds_text(both.compute_s)}, and collectives, "
        f"{seconds_text(both.comm_s)}, along the critical path, and the memory that is alive at "
        "the peak. At smaller sizes collectives win."
    )


CHAPTER = Chapter(
    "paper, MLP",
    (
        Step(
            key="mlp.system",
            title="The whole system",
            paper="Figure 7",
            scene=MLP,
            page="load",
            target=("pages",),
            text=_system,
            actions=(),
        ),
        Step(
            key="mlp.program",
            title="A program and its colours",
            paper="Figure 2a",
            scene=MLP,
            page="graph",
            target=("drawer",),
            text=_program,
            actions=(),
            level="names",
            drawer=True,
        ),
        Step(
            key="mlp.rules",
            title="What one op allows",
            paper="Figure 3",
            scene=MLP,
            page="graph",
            target=("graph",),
            text=_rules,
            actions=(),
            level="names",
            select=lambda session: (factors(session, "y"), ()),
            code=lambda session: fresh_lines(session.loaded.analysis, "y"),
        ),
        Step(
            key="mlp.fresh",
            title="Fresh names everywhere",
            paper="Figure 4a",
            scene=MLP,
            page="graph",
            target=("code", "graph"),
            text=_fresh,
            actions=(),
            level="names",
            select=lambda session: (factors(session, "z"), ()),
            code=lambda session: fresh_lines(session.loaded.analysis),
        ),
        Step(
            key="mlp.identified",
            title="One name, one way to cut one op",
            paper="Figure 4b",
            scene=MLP,
            page="graph",
            target=("code", "graph"),
            text=_identified,
            actions=(),
            level="names",
            select=nothing,
            code=lambda session: identified_lines(session.loaded.analysis),
        ),
        Step(
            key="mlp.colours",
            title="Colours",
            paper="Figure 4c",
            scene=MLP,
            page="graph",
            target=("graph",),
            text=_colours,
            actions=(),
            level="names",
            select=lambda session: colour_names(session, "U"),
            drawer=True,
            quiz=Quiz(
                question="Along which colour does the second matmul sum?",
                options=lambda session: [
                    group.name for group in session.loaded.analysis.groups if group.n_names > 1
                ],
                right=_contracted,
                why=lambda session: (
                    f"`w` is `{dims(session, 'w')}`: {_contracted(session)} of `z` "
                    f"`{dims(session, 'z')}` and `w2` `{dims(session, 'w2')}` is gone from it."
                ),
            ),
        ),
        Step(
            key="mlp.batch",
            title="Batch partitioning",
            paper="Figure 2b",
            scene=MLP,
            page="hand",
            target=("colours",),
            text=_batch,
            actions=(),
            tab="listing",
            select=nothing,
            task=TourTask(
                ask=lambda session: "Put colour `B` on axis `b`.",
                done=lambda session: BATCH in session.hand.actions,
                do=lambda session: take(session, BATCH),
                after=_batch_done,
            ),
        ),
        Step(
            key="mlp.tiles",
            title="What each device holds",
            paper="section 2.1",
            scene=MLP,
            page="hand",
            target=("lower",),
            text=_tiles,
            actions=(BATCH,),
            tab="devices",
            tensor=lambda session: "x",
            select=lambda session: (factors(session, "x"), ()),
        ),
        Step(
            key="mlp.megatron",
            title="Batch and model partitioning",
            paper="Figure 2c",
            scene=MLP,
            page="hand",
            target=("colours",),
            text=_megatron,
            actions=(BATCH,),
            tab="listing",
            select=nothing,
            task=TourTask(
                ask=lambda session: "Put colour `U` on axis `m`.",
                done=lambda session: {BATCH, MODEL} <= set(session.hand.actions),
                do=lambda session: take(session, BATCH, MODEL),
                after=_megatron_done,
            ),
        ),
        Step(
            key="mlp.cost",
            title="What it costs",
            paper="section 4.5",
            scene=MLP,
            page="hand",
            target=("plan", "lower"),
            text=_back_and_forth,
            actions=(BATCH, MODEL),
            tab="collectives",
            select=nothing,
            quiz=Quiz(
                question="Which value is only a partial sum until the all_reduce?",
                options=lambda session: ["y", "z", "w"],
                right=lambda session: moved(session, "all_reduce", (BATCH, MODEL))[0],
                why=lambda session: (
                    "The collective stands on "
                    f"{listed(moved(session, 'all_reduce', (BATCH, MODEL)))}; the table has its "
                    "bytes and time."
                ),
            ),
        ),
    ),
)
