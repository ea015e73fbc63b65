"""The words that the chapters of the tour may use, all about a session's program, problem and plan.

Texts of ``chapters/*.toml`` are Jinja templates, and what a step selects, does or counts as done is
a Jinja expression; ``text`` and ``value`` make functions of a session of them. Their names are the
attributes of ``TourWords``, the functions in ``_FUNCTIONS``, and the lists of their chapter.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import jinja2
from jinja2 import meta

from toast_lab.app.items import MANUAL
from toast_lab.app.loaded import group_names
from toast_lab.app.session import Session
from toast_lab.app.tour.names_text import fresh_lines, identified_lines
from toast_lab.app.tour.step import Selected
from toast_lab.cost.problem import Cost
from toast_lab.cost.problem import price as priced
from toast_lab.explain.plan_by_hand import PlanAfterAction
from toast_lab.ir.program import REDUCTION
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.text import bytes_text
from toast_lab.views.compare_table import seconds_text
from toast_lab.views.graph_layout import place_text
from toast_lab.views.selection_facts import boxed_with, chain

NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


def count(items: int | Sized, noun: str, plural: str = "") -> str:
    """A number, or that of items, with its noun.

    >>> count(1, "conflict"), count(5, "conflict"), count(40, "box", "boxes")
    ('one conflict', 'five conflicts', '40 boxes')
    """
    number = items if isinstance(items, int) else len(items)
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


class TourWords:
    """What the chapters say about a session; it has a program and a problem."""

    nothing: Selected = ((), ())  #: an empty selection

    def __init__(self, session: Session) -> None:
        self.session, self.hand, self.selection = session, session.hand, session.selection
        self.analysis, self.problem = session.loaded.analysis, session.loaded.problem
        self.program, self.mesh = self.analysis.program, self.problem.mesh

    # -- the program -------------------------------------------------------------------------------
    def group(self, colour: str) -> Any:
        """The group of a colour."""
        return self.analysis.groups[self.analysis.group_index(colour)]

    @property
    def shared_colours(self) -> list[Any]:
        """The groups of more than one name."""
        return [group for group in self.analysis.groups if group.n_names > 1]

    def carriers(self, colour: str, times: int = 1) -> list[str]:
        """Names of the values that have a colour on at least ``times`` dims."""
        return [
            self.program.value_name[value]
            for value in range(self.program.n_values)
            if sum(self.analysis.dim_text(name) == colour for name in self.program.def_names(value))
            >= times
        ]

    def value_with(self, colours: Sequence[str]) -> str:
        """Name of the first value whose dims belong to the groups of these colours."""
        analysis = self.analysis
        return next(
            self.program.value_name[value]
            for value in range(self.program.n_values)
            if [
                analysis.group_name[analysis.group[analysis.colour[name]]]
                for name in self.program.def_names(value)
            ]
            == colours
        )

    def factors(self, value: str) -> tuple[int, ...]:
        """Names of the op that computes a value."""
        return tuple(self.program.factors(int(self.program.value_op[self._index(value)])))

    def summed(self, value: str) -> list[int]:
        """Those of ``factors`` that the op sums over."""
        classes = self.program.factor_class
        return [name for name in self.factors(value) if classes[name] == REDUCTION]

    def texts(self, names: Iterable[int]) -> list[str]:
        """Dimension names as the graph writes them."""
        return [self.analysis.name_text[name] for name in names]

    @property
    def conflict_places(self) -> list[str]:
        """Where each conflict is."""
        return [place_text(self.analysis, i) for i in range(len(self.analysis.conflicts))]

    def _index(self, value: str) -> int:
        return self.program.value_name.index(value)

    # -- selections --------------------------------------------------------------------------------
    def colour(self, colour: str) -> Selected:
        """The selection of all names of a colour's group."""
        return group_names(self.analysis, self.analysis.group_index(colour)), ()

    @property
    def first_set(self) -> Selected:
        """The selection of the conflicts of the first compatibility set."""
        return (), self.analysis.compatibility_sets[0].conflicts

    # -- plans -------------------------------------------------------------------------------------
    @property
    def manual(self) -> Any:
        """The plan by hand among the plans of the page; None before its first action."""
        return self.session.plans.named(MANUAL)

    def has(self, actions: Iterable[str]) -> bool:
        """Does the plan by hand have all of these actions?"""
        return set(actions) <= set(self.hand.actions)

    def take(self, *actions: str) -> None:
        """Add those of the actions to the plan by hand that it lacks."""
        with self.session.notices.guarded():
            self.hand.take(list(dict.fromkeys([*self.hand.actions, *actions])))

    def settle(self, sides: Sequence[str], side: int) -> None:
        """Take a side of the conflicts, given the action of each, in place of the other one."""
        if any(action in self.hand.actions for action in sides):
            resolution = self.analysis.compatibility_sets[0].resolution
            self.hand.choose_side(resolution, sides[side].partition("->")[2], side)
        else:
            self.take(sides[side])

    def taken(self, actions: Sequence[str] | None = None) -> PlanAfterAction:
        """The program after a list of actions; without a list, after those of the plan by hand."""
        return self.hand.plans_after_actions(None if actions is None else tuple(actions))[-1]

    def sending(self, kind: str, sides: Sequence[str]) -> int:
        """The first side of the conflicts, given the action of each, that sends such collectives.

        In the chapter on attention, it is the side of the paper's figure 5b.
        """
        kinds = [{kind for kind, *_ in self.taken([action]).sent} for action in sides]
        return next(side for side, its_kinds in enumerate(kinds) if kind in its_kinds)

    def number_sent(self, actions: Sequence[str], kind: str, axis: str) -> int:
        """Number of collectives of one kind over one axis under a plan."""
        rows = self.taken(actions).sent.items()
        return sum(times for key, times in rows if key[:2] == (kind, (axis,)))

    def plan(self, actions: Sequence[str]) -> ShardingPlan:
        """The plan that results from actions."""
        return plan_of_actions(self.problem.space, list(actions))

    def cost(self, actions: Sequence[str]) -> Cost:
        """The cost of the plan that results from actions."""
        return priced(self.problem, self.plan(actions))

    def moved(self, kind: str, actions: Sequence[str]) -> list[str]:
        """Names of the values that collectives of one kind move under a plan."""
        return [row.value for row in self.cost(actions).collectives if row.kind == kind]

    def whole_arguments(self, actions: Sequence[str]) -> list[str]:
        """Names of the arguments that a plan does not cut."""
        specs = self.plan(actions).value_specs()[: self.program.n_arguments]
        return [self.program.value_name[i] for i, spec in enumerate(specs) if not any(spec)]

    def dims(self, value: str, actions: Sequence[str] | None = None) -> str:
        """The dims of a value as the listing writes them.

        Under a plan made of ``actions``, ``[256{b}, 32]``; without one, their colours.
        """
        index = self._index(value)
        if actions is None:
            texts = map(self.analysis.dim_text, self.program.def_names(index))
            return f"[{', '.join(texts)}]"
        sizes, plan = self.program.dims(index), self.plan(actions)
        spec = plan.spec(int(plan.kept_layouts()[index]), len(sizes))
        cut = [
            f"{size}{{{','.join(axes)}}}" if axes else str(size)
            for size, axes in zip(sizes, spec, strict=True)
        ]
        return f"[{', '.join(cut)}]"


_FUNCTIONS = {
    "begin": begin,
    "boxed_with": boxed_with,
    "bytes": bytes_text,
    "chain": chain,
    "count": count,
    "fresh_lines": fresh_lines,
    "identified_lines": identified_lines,
    "listed": listed,
    "price": price,
    "seconds": seconds_text,
    "sent": sent,
}
# The strip escapes what it shows
_JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined)
_JINJA.globals.update(_FUNCTIONS)


def text(source: str, lists: Mapping[str, Any]) -> Callable[[Session], str]:
    """A template as a function of a session, whose lines are joined; compiled when first needed."""
    template = functools.cache(lambda: _JINJA.from_string(source))
    return lambda session: " ".join(template().render(_known(source, session, lists)).split())


def value(source: str, lists: Mapping[str, Any]) -> Callable[[Session], Any]:
    """An expression as a function of a session; compiled when first needed."""
    compiled = functools.cache(
        lambda: _JINJA.compile_expression(source.strip(), undefined_to_none=False)
    )
    template = f"{{{{ {source} }}}}"
    return lambda session: compiled()(_known(template, session, lists))


def of_lists(source: str, lists: Mapping[str, Any]) -> tuple[str, ...]:
    """An expression of a chapter's lists alone."""
    actions: Any = _JINJA.compile_expression(source)(lists)
    return tuple(actions)


def _known(template: str, session: Session, lists: Mapping[str, Any]) -> dict[str, Any]:
    """What the names in a template stand for."""
    words = TourWords(session)
    return {
        name: lists[name] if name in lists else getattr(words, name) for name in _names(template)
    }


@functools.cache
def _names(template: str) -> frozenset[str]:
    names = meta.find_undeclared_variables(_JINJA.parse(template))
    return frozenset(names - _JINJA.globals.keys())
