"""Numbers and phrases for the tour, all taken from the session's program, problem and plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from toast_lab.app.loaded import group_names
from toast_lab.app.session import Session
from toast_lab.app.tour.step import Selected
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Cost
from toast_lab.cost.problem import price as priced
from toast_lab.explain.plan_by_hand import PlanAfterAction
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.text import bytes_text
from toast_lab.views.compare_table import seconds_text

NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count(1, "conflict"), count(5, "conflict"), count(40, "box", "boxes")
    ('one conflict', 'five conflicts', '40 boxes')
    """
    in_words = NUMBERS[number] if number < len(NUMBERS) else f"{number:,}"
    return f"{in_words} {noun if number == 1 else plural or noun + 's'}"


def listed(items: Iterable[str]) -> str:
    """Distinct items as code, with "and" before the last.

    >>> listed(["a", "b", "c"]), listed([])
    ('`a`, `b` and `c`', 'none')
    """
    quoted = [f"`{item}`" for item in dict.fromkeys(items)]
    return (
        " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted) or "none"
    )


def begin(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def value(analysis: Analysis, name: str) -> int:
    """Index of the value with a name."""
    return analysis.program.value_name.index(name)


def factors(session: Session, name: str) -> tuple[int, ...]:
    """Names of the op that computes a value."""
    program = session.loaded.analysis.program
    return tuple(program.factors(int(program.value_op[value(session.loaded.analysis, name)])))


def carriers(analysis: Analysis, colour: str, times: int = 1) -> list[str]:
    """Names of the values that have a colour on at least ``times`` dims."""
    program = analysis.program
    return [
        program.value_name[value]
        for value in range(program.n_values)
        if sum(analysis.dim_text(name) == colour for name in program.def_names(value)) >= times
    ]


def dims(session: Session, name: str, actions: Sequence[str] | None = None) -> str:
    """The dims of a value as the listing writes them.

    Under a plan made of ``actions``, ``[256{b}, 32]``; without one, their colours.
    """
    analysis = session.loaded.analysis
    value_index = value(analysis, name)
    if actions is None:
        return (
            "["
            + ", ".join(analysis.dim_text(name) for name in analysis.program.def_names(value_index))
            + "]"
        )
    sizes = analysis.program.dims(value_index)
    plan = plan_of(session, actions)
    spec = plan.spec(int(plan.kept_layouts()[value_index]), len(sizes))
    return (
        "["
        + ", ".join(
            f"{size}{{{','.join(axes)}}}" if axes else str(size)
            for size, axes in zip(sizes, spec, strict=True)
        )
        + "]"
    )


def plan_of(session: Session, actions: Sequence[str]) -> ShardingPlan:
    """The plan that results from actions."""
    return plan_of_actions(session.loaded.problem.space, list(actions))


def cost(session: Session, actions: Sequence[str]) -> Cost:
    """The cost of the plan that results from actions."""
    return priced(session.loaded.problem, plan_of(session, actions))


def taken(session: Session, actions: Sequence[str] | None = None) -> PlanAfterAction:
    """The program after a list of actions; without a list, after those of the plan by hand."""
    return session.hand.plans_after_actions(None if actions is None else tuple(actions))[-1]


def price(row: PlanAfterAction) -> str:
    """Step time and peak memory, in words."""
    return f"{seconds_text(row.time_s)} and {bytes_text(row.peak_bytes)} a device"


def sent(row: PlanAfterAction) -> str:
    """Number of collectives by kind and axes, in words.

    >>> from collections import Counter
    >>> sent(PlanAfterAction("", 0, 0, 0, 0, True, Counter({("all_reduce", ("m",), 3): 1})))
    'one all_reduce over m'
    """
    counts: Counter[tuple[str, str]] = Counter()
    for (kind, axes, _), number in row.sent.items():
        counts[kind, ",".join(axes)] += number
    return ", ".join(
        f"{count(number, kind)} over {axes}" for (kind, axes), number in sorted(counts.items())
    ) or ("nothing is sent")


def moved(session: Session, kind: str, actions: Sequence[str]) -> list[str]:
    """Names of the values that collectives of one kind move under a plan."""
    return [row.value for row in cost(session, actions).collectives if row.kind == kind]


def colour_names(session: Session, colour: str) -> Selected:
    """The selection of all names of a colour's group."""
    analysis = session.loaded.analysis
    return group_names(analysis, analysis.group_index(colour)), ()


def take(session: Session, *actions: str) -> None:
    """Add those of the actions to the plan by hand that it lacks."""
    with session.notices.guarded():
        session.hand.take(list(dict.fromkeys([*session.hand.actions, *actions])))
