"""The chapter on a Transformer: a whole training step.

It shows repeated layers, data, model and sequence parallelism, the search and a race.

Reference: TOAST sections 3.6, 4 and 5, figures 1 and 8 to 10.
"""

from __future__ import annotations

from collections import Counter

from toast_lab.app.session import Session
from toast_lab.app.tour.running import EIGHT_DEVICES, RUN_PLAN
from toast_lab.app.tour.step import Chapter, Selected, Step, TourScene, TourTask, nothing
from toast_lab.app.tour.words import (
    begin,
    colour_names,
    count,
    dims,
    listed,
    price,
    sent,
    take,
    taken,
)
from toast_lab.views.compare_table import bytes_text, seconds_text

SIZES = {
    "layers": 2,
    "mode": "train",
    "batch": 16,
    "sequence": 2048,
    "d_model": 1024,
    "hidden": 4096,
}
BLOCKS = TourScene("transformer", "data=4,model=4", tuple(SIZES.items()))
DATA = ("batch->data",)
FSDP = (*DATA, "d_model->data")
MEGATRON = (*FSDP, "hidden->model", "heads->model", "vocab->model")
BY_HAND = (*MEGATRON, "sequence@1->model")
RACE_S = 3.0
RIVALS = ("mcts", "automap", "alpa")


def hidden_value(session: Session) -> str:
    """The first activation with the dims batch, sequence and hidden."""
    analysis = session.loaded.analysis
    colours = ["batch", "sequence", "hidden"]
    return next(
        analysis.program.value_name[value]
        for value in range(analysis.program.n_values)
        if [
            analysis.group_name[analysis.group[analysis.colour[name]]]
            for name in analysis.program.def_names(value)
        ]
        == colours
    )


def _hidden_names(session: Session) -> Selected:
    analysis = session.loaded.analysis
    op = int(analysis.program.value_op[analysis.program.value_name.index(hidden_value(session))])
    return tuple(analysis.program.factors(op)), ()


def _program(session: Session) -> str:
    analysis, program = session.loaded.analysis, session.loaded.analysis.program
    return (
        f"A Gemma-style Transformer of {SIZES['layers']} layers with its Adam training step: "
        f"{program.n_ops - program.n_arguments:,} ops and {analysis.names.n:,} dimension names, "
        f"yet only {sum(group.n_names > 1 for group in analysis.groups)} colours to shard. Each "
        "lane is a colour, each row a source line; layers run through the same lines, so they lie "
        f"on top of each other and ×{SIZES['layers']} stands beside them."
    )


def _sets(session: Session) -> str:
    analysis = session.loaded.analysis
    sets_of_resolution = Counter(
        compatibility_set.resolution for compatibility_set in analysis.compatibility_sets
    )
    each = len(analysis.conflicts) // max(1, len(analysis.compatibility_sets))
    return (
        f"{begin(count(len(analysis.conflicts), 'conflict'))}, but "
        f"{count(len(analysis.compatibility_sets), 'compatibility set')}: one a layer, of {each} "
        "conflicts. Their graphs are isomorphic, so one bit settles "
        f"{max(sets_of_resolution.values())} of them alike and {analysis.n_resolutions} "
        "resolutions are left, however many layers there are. The paper counts 4, a forward and a "
        "backward set each; here the saved softmax ties the two."
    )


def _data(session: Session) -> str:
    row = taken(session, ())
    limit = bytes_text(session.loaded.problem.memory_limit_bytes)
    fits = "which fits" if row.fits else f"more than the {limit} of a device"
    return (
        f"On one device a step needs {bytes_text(row.peak_bytes)}, {fits}. Data parallelism is one "
        "action: the colour `batch`, "
        f"{session.loaded.analysis.groups[session.loaded.analysis.group_index('batch')].n_names} "
        "names in all, on axis `data`. No strategy is coded anywhere; watch what it becomes."
    )


def _data_done(session: Session) -> str:
    row = taken(session, DATA)
    return f"{begin(sent(row))}: the gradients and the loss are summed. A step takes {price(row)}."


def _left(session: Session) -> str:
    name = hidden_value(session)
    return (
        f"`{name}` is an activation of three dims, `{dims(session, name)}`, under this plan "
        f"`{dims(session, name, DATA)}`. As on the left of the figure it is cut along one axis: "
        f"{session.loaded.problem.mesh.sizes[0]} different shards, each on the "
        f"{session.loaded.problem.mesh.sizes[1]} devices along `model`, in one hue. Choose above "
        "which two dims are drawn."
    )


def _fsdp(session: Session) -> str:
    return (
        "The batch has taken axis `data` wherever a tensor has it; parameters and the optimiser's "
        "state do not. Putting `d_model` on the same axis cuts just those. That is fully sharded "
        "data parallelism, FSDP: earlier actions keep what they have, and order is what makes the "
        "difference."
    )


def _fsdp_done(session: Session) -> str:
    before, row = taken(session, DATA), taken(session, FSDP)
    return (
        f"{begin(sent(row))}: parameters are gathered where they are used, gradients scattered. "
        f"{price(row)}, after {price(before)}."
    )


def _model(session: Session) -> str:
    return (
        "Model parallelism: `hidden` cuts the MLPs, `heads` the attention and `vocab` the "
        "embedding, each along `model`. It is the MLP chapter's Figure 2c again, in every layer at "
        "once: one action is mirrored to the colours of all layers, since their arguments are used "
        "alike."
    )


def _model_done(session: Session) -> str:
    before, row = taken(session, FSDP), taken(session, MEGATRON)
    return f"{begin(sent(row))}. {price(row)}, after {price(before)}."


def _right(session: Session) -> str:
    name = hidden_value(session)
    return (
        f"The same activation, now `{dims(session, name, MEGATRON)}`: cut along both axes, as on "
        f"the right of the figure. Each of the {session.loaded.problem.mesh.n_devices} devices "
        "holds a part of its own, and every hue stands once."
    )


def _sequence(session: Session) -> str:
    all_reduce_count = sum(
        times
        for (kind, axes, _), times in taken(session, MEGATRON).sent.items()
        if kind == "all_reduce" and axes == ("model",)
    )
    return (
        f"The {all_reduce_count} all_reduces over `model` sum activations that every device then "
        "keeps whole. Put `sequence` on `model` as well: what has neither heads nor hidden is cut "
        "along the text. This colour has the conflict, so the action says which side: `sequence` "
        "side 1."
    )


def _sequenced(session: Session) -> bool:
    return any(
        action.startswith("sequence") and action.endswith("->model")
        for action in session.hand.actions
    )


def _sequence_done(session: Session) -> str:
    before, row = taken(session, MEGATRON), taken(session)
    return (
        "Sequence parallelism, as experts do it by hand: an all_reduce became a reduce_scatter and "
        f"an all_gather with less kept in between. {price(row)}, after {price(before)}. Now "
        f"{sent(row)}."
    )


def _search(session: Session) -> str:
    return (
        f"By hand it took {count(len(BY_HAND), 'action')} and an expert. Monte Carlo tree search "
        "tries sequences of the same actions, each a colour, and a side if it has conflicts, on an "
        "axis. It prices where they lead: **C(s)** is the time of a step over that of the "
        "unsharded one, and more if it does not fit into memory. Less is better. The curves show "
        "the best so far. Sequences that end in one sharding are priced once."
    )


def _search_done(session: Session) -> str:
    best = session.hand.adviser()
    assert best is not None
    by_hand = taken(session, BY_HAND)
    actions = listed(best.plan.actions)
    return (
        f"{best.name}: {seconds_text(best.cost.time_s)} a step and "
        f"{bytes_text(best.cost.peak_bytes)} a device, against {seconds_text(by_hand.time_s)} by "
        f"hand. Its actions: {actions}. It was given no strategy."
    )


def _beside(session: Session) -> str:
    best = session.hand.adviser()
    if best is None:
        return (
            "The search's plan stands beside yours here as soon as there is one. Press "
            "**Ask the search**."
        )
    row = taken(session)
    return (
        "The plan by hand is back at its first action. Beside it stands what the search would do: "
        f"{seconds_text(best.cost.time_s)} against {seconds_text(row.time_s)}. The list shows "
        "which of its actions you have and which you lack; take over its next one, one at a time, "
        "and undo it if you like."
    )


def _stepped(session: Session) -> bool:
    best = session.hand.adviser()
    if best is None:
        return False
    own_actions = set(session.hand.actions) - set(DATA)
    return session.hand.next_of(best) is None or not own_actions.isdisjoint(best.plan.actions)


def _take_next(session: Session) -> None:
    best = session.hand.adviser()
    if best is None:
        session.hand.ask_search()
    else:
        session.hand.take_next(best)


def _evaluation(session: Session) -> str:
    return (
        "Figures 8 and 9 compare step times and search times of four methods on five models. The "
        f"whole rerun is in docs/evaluation.md; here is a small one: {', '.join(RIVALS)} race on "
        f"this program, {RACE_S:.0f} s each. Here mcts also tries to change its best plan op by "
        "op, which “Do it for me” left out before, so it can end elsewhere. The curve is the best "
        "plan against search time, the table has both of the figures' numbers."
    )


def _raced(session: Session) -> str:
    rows = [
        f"{row.method} {seconds_text(row.time_s)} after {row.own_best_s or 0:.1f} s"
        for row in session.searches.race.rows
        if row.score
    ]
    verdict = begin(session.searches.race.verdict())
    return f"{verdict} Step time and when it was found: {'; '.join(rows)}."


def _scaling(session: Session) -> str:
    analysis = session.loaded.analysis
    return (
        "Figure 10 grows T2B's sequence together with the mesh. docs/evaluation.md has the "
        'rerun, "Scaling devices '
        "and "
        'sequence length". To do it here, set `layers`, `sequence` and the mesh as you like and '
        f"search again: the plan by hand has {count(len(session.hand.actions), 'action')} on "
        f"`{session.loaded.problem.mesh}`, the sequence is "
        f"{analysis.groups[analysis.group_index('sequence')].size} now."
    )


def _end(session: Session) -> str:
    return (
        "That is the whole method; what is left is to run a plan. A training step takes minutes on "
        "a CPU, so it is `x @ x.T` once more, now side 0 on "
        f"{count(session.loaded.problem.mesh.n_devices, 'virtual device')}. The same page compiles "
        "plans for TPUs and GPUs, and its **Export** writes them for your code; your own model "
        "loads on page "
        "**1**. Leaving the tour keeps all that you see."
    )


CHAPTER = Chapter(
    "paper, Transformer",
    (
        Step(
            key="transformer.program",
            title="Layers, folded",
            paper="section 3.6",
            scene=BLOCKS,
            page="graph",
            target=("graph",),
            text=_program,
            actions=(),
            level="lines",
            select=nothing,
        ),
        Step(
            key="transformer.sets",
            title="One set a layer, one bit for all",
            paper="section 3.6",
            scene=BLOCKS,
            page="hand",
            target=("board",),
            text=_sets,
            actions=(),
            tab="listing",
            select=lambda session: ((), session.loaded.analysis.compatibility_sets[0].conflicts),
        ),
        Step(
            key="transformer.data",
            title="Data parallelism",
            paper="section 5.1",
            scene=BLOCKS,
            page="hand",
            target=("colours",),
            text=_data,
            actions=(),
            tab="listing",
            select=lambda session: colour_names(session, "batch"),
            task=TourTask(
                ask=lambda session: "Put `batch` on `data`.",
                done=lambda session: DATA[0] in session.hand.actions,
                do=lambda session: take(session, *DATA),
                after=_data_done,
            ),
        ),
        Step(
            key="transformer.left",
            title="Shards along one axis",
            paper="Figure 1, left",
            scene=BLOCKS,
            page="hand",
            target=("lower",),
            text=_left,
            actions=DATA,
            tab="devices",
            tensor=hidden_value,
            select=_hidden_names,
        ),
        Step(
            key="transformer.fsdp",
            title="Parameters too",
            paper="section 5.1",
            scene=BLOCKS,
            page="hand",
            target=("colours",),
            text=_fsdp,
            actions=DATA,
            tab="collectives",
            select=lambda session: colour_names(session, "d_model"),
            task=TourTask(
                ask=lambda session: "Put `d_model` on `data`.",
                done=lambda session: set(FSDP) <= set(session.hand.actions),
                do=lambda session: take(session, *FSDP),
                after=_fsdp_done,
            ),
        ),
        Step(
            key="transformer.model",
            title="Model parallelism",
            paper="sections 4.4 and 5.1",
            scene=BLOCKS,
            page="hand",
            target=("colours",),
            text=_model,
            actions=FSDP,
            tab="collectives",
            select=lambda session: colour_names(session, "hidden"),
            task=TourTask(
                ask=lambda session: "Put `hidden`, `heads` and `vocab` on `model`.",
                done=lambda session: set(MEGATRON) <= set(session.hand.actions),
                do=lambda session: take(session, *MEGATRON),
                after=_model_done,
            ),
        ),
        Step(
            key="transformer.right",
            title="Shards along two axes",
            paper="Figure 1, right",
            scene=BLOCKS,
            page="hand",
            target=("lower",),
            text=_right,
            actions=MEGATRON,
            tab="devices",
            tensor=hidden_value,
            select=_hidden_names,
        ),
        Step(
            key="transformer.sequence",
            title="Sequence parallelism",
            paper="section 5.1",
            scene=BLOCKS,
            page="hand",
            target=("board", "sides"),
            text=_sequence,
            actions=MEGATRON,
            tab="collectives",
            select=lambda session: colour_names(session, "sequence"),
            task=TourTask(
                ask=lambda session: "Put `sequence` on `model`, side 1.",
                done=_sequenced,
                do=lambda session: take(session, BY_HAND[-1]),
                after=_sequence_done,
            ),
        ),
        Step(
            key="transformer.search",
            title="The search finds it",
            paper="section 4.1",
            scene=BLOCKS,
            page="search",
            target=("search", "curves"),
            text=_search,
            actions=BY_HAND,
            task=TourTask(
                ask=lambda session: "Run the search.",
                done=lambda session: session.hand.adviser() is not None and not session.work.busy,
                do=lambda session: session.hand.ask_search(),
                after=_search_done,
            ),
        ),
        Step(
            key="transformer.beside",
            title="Your plan and the search's",
            paper="section 4.2",
            scene=BLOCKS,
            page="hand",
            target=("lower",),
            text=_beside,
            actions=DATA,
            tab="beside",
            select=nothing,
            task=TourTask(
                ask=lambda session: "Press **Take its next step**.",
                done=_stepped,
                do=_take_next,
                after=lambda session: (
                    f"The plan by hand: {listed(session.hand.actions)}, {price(taken(session))}."
                ),
            ),
        ),
        Step(
            key="transformer.race",
            title="Methods in a race",
            paper="Figures 8 and 9",
            scene=BLOCKS,
            page="search",
            target=("curves",),
            text=_evaluation,
            task=TourTask(
                ask=lambda session: "Press **Run the race**.",
                done=lambda session: (
                    session.searches.race.result is not None and not session.work.busy
                ),
                do=lambda session: session.searches.start_race(RIVALS, RACE_S, 0),
                after=_raced,
            ),
            tab="race",
        ),
        Step(
            key="transformer.scaling",
            title="Longer texts, more devices",
            paper="Figure 10",
            scene=BLOCKS,
            page="load",
            target=("sizes",),
            text=_scaling,
        ),
        Step(
            key="transformer.end",
            title="Run a plan, and go on",
            paper="section 5",
            scene=EIGHT_DEVICES,
            page="compare",
            target=("execute",),
            text=_end,
            # Not the plan of the first chapter, which has run already
            actions=("S@0->s",),
            task=RUN_PLAN,
        ),
    ),
)
