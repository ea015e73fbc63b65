"""A plan in the words of the model: what is cut, where, along which mesh axis.

    train_step on data=4,model=2: 8 argument rules and 18 places
    arguments
      heads on model          wk, wo, wq, wv (48 arguments)
      all others whole        69 arguments
    places
      model.py:157            logits [batch on data, vocab on model]
      model.py:115            wq [heads on model], 4 times
    exceptions
      model.py:142            h whole

Dims are named after their colours. Paths of repeated layers are folded into one, and the usual
shardings come before the exceptions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from toast_lab.ir.argument_paths import own_words
from toast_lab.ir.locations import user_frame
from toast_lab.ir.source_lines import function_of
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.sharding.plan_rules import (
    ArgumentRule,
    ConstraintPlace,
    argument_rules,
    constraint_places,
    plan_size,
)
from toast_lab.text import bounded, counted, first_items_text, line_text

_NAME = re.compile(r"[^\W\d]\w*")
#: in paths of leaves whose container gives no keys
_FLAT_INDEX = re.compile(r"\[<flat index (\d+)>\]")
_CLOSING = re.compile(r"^([^\[\]]*?)['\"]\]")  #: of the key that a path's rest begins in
_WIDEST = 48  #: most characters of the left column
_ROLES = 8  #: most roles that one line names


def describe(plan: ShardingPlan, limit: int | None = 60) -> str:
    """A plan as lines that a person can check, at most ``limit`` of them (None: all)."""
    program, sharding = plan.program, plan.sharding
    size = plan_size(program, sharding)
    head = f"{program.name} on {plan.mesh}: {size}"
    if not (sharding.value_dim >= 0).any() and not (sharding.op_factor >= 0).any():
        return f"{head}; every device holds and computes everything"
    rules = argument_rules(program, sharding)
    places = constraint_places(program, sharding)
    lines: list[str | tuple[str, str]] = ["arguments"] if program.n_arguments else []
    lines += argument_words(plan, rules)
    usual = [place for place in places if not place.exception]
    if usual:
        counts = places_by_function(places).most_common()
        by_function = ", ".join(f"{name} {count}" for name, count in counts)
        lines.append(f"places, by function: {by_function}" if len(counts) > 1 else "places")
        lines += _place_lines(plan, usual)
    odd_rules = [rule for rule in rules if rule.exception]
    odd_places = [place for place in places if place.exception]
    if odd_rules or odd_places:
        lines += [
            "exceptions",
            *(
                (_words(plan, rule.arguments[0], rule.layout), _exception(plan, rule))
                for rule in odd_rules
            ),
            *_place_lines(plan, odd_places),
        ]
    left_widths = [len(line[0]) for line in lines if not isinstance(line, str)]
    width = min(max(left_widths, default=0), _WIDEST)
    texts = [head]
    for line in lines:
        texts.append(line if isinstance(line, str) else f"  {line[0]:<{width}}  {line[1]}")
    if limit is None:
        return "\n".join(texts)
    return bounded(texts, limit, " lines: plan.describe(None) has all")


def layout_words(plan: ShardingPlan, value: int, spec: Spec) -> str:
    """A spec as ``batch on data, heads on model``, or ``whole`` if no axis cuts the value."""
    cut_dims = [
        f"{_dim_name(plan, value, dim)} on {'+'.join(axes)}"
        for dim, axes in enumerate(spec)
        if axes
    ]
    return ", ".join(cut_dims) or "whole"


def _words(plan: ShardingPlan, value: int, layout: int) -> str:
    spec = plan.spec(layout, len(plan.program.dims(value)))
    return layout_words(plan, value, spec)


def _dim_name(plan: ShardingPlan, value: int, dim: int) -> str:
    if plan.analysis is None:
        return f"dim {dim}"
    colour = plan.analysis.colour[plan.program.def_names(value)[dim]]
    return plan.analysis.group_name[plan.analysis.group[colour]]


def argument_words(
    plan: ShardingPlan, rules: Sequence[ArgumentRule] | None = None
) -> list[tuple[str, str]]:
    """The shardings of a plan's arguments, each with the roles that have it.

    Roles that have the same dims on the same axes share a row; exceptions are left out. ``rules``
    are those of the plan, if the caller has them.
    """
    rules = argument_rules(plan.program, plan.sharding) if rules is None else rules
    by_words: dict[str, list[ArgumentRule]] = {}
    for rule in rules:
        if not rule.exception:
            first_argument = rule.arguments[0]
            spec = plan.spec(rule.layout, len(plan.program.dims(first_argument)))
            by_words.setdefault(_sorted_words(plan, first_argument, spec), []).append(rule)
    rows = []
    for words, rules_alike in by_words.items():
        count = sum(len(rule.arguments) for rule in rules_alike)
        roles = first_items_text(dict.fromkeys(rule.role for rule in rules_alike), _ROLES)
        rows.append((words, f"{roles} ({counted(count, 'argument')})"))
    whole_count = plan.program.n_arguments - sum(len(rule.arguments) for rule in rules)
    if whole_count and by_words:
        rows.append(("all others whole", counted(whole_count, "argument")))
    elif whole_count:
        rows.append(("all whole", counted(whole_count, "argument")))
    return rows


def _sorted_words(plan: ShardingPlan, value: int, spec: Spec) -> str:
    """Like ``layout_words``, with dims in mesh axis order: transposed weights read alike."""
    cut_dims = [(axes, _dim_name(plan, value, dim)) for dim, axes in enumerate(spec) if axes]
    cut_dims.sort(key=lambda axes_and_name: plan.mesh.axes.index(axes_and_name[0][0]))
    return ", ".join(f"{name} on {'+'.join(axes)}" for axes, name in cut_dims)


def _exception(plan: ShardingPlan, rule: ArgumentRule) -> str:
    program = plan.program
    words = own_words(program.value_name[: program.n_arguments])
    return first_items_text(
        dict.fromkeys(".".join(words[argument]) for argument in rule.arguments), _ROLES
    )


def places_by_function(places: Iterable[ConstraintPlace]) -> Counter[str]:
    """The number of places in each function of the source, which stands for a kind of layer.

    Lines outside of functions, or in libraries, are counted line by line.
    """
    return Counter(map(_function, places))


def _function(place: ConstraintPlace) -> str:
    return function_of(user_frame(place.line))


def _place_lines(plan: ShardingPlan, places: Iterable[ConstraintPlace]) -> list[tuple[str, str]]:
    """A row for each place: its line and function, and the values that get the sharding there."""
    program, lines = plan.program, list[tuple[str, str]]()
    for place in places:
        names = Counter(_value_name(plan, value) for value in place.values)
        names_text = first_items_text(names)
        times = f", {len(place.values)} times" if len(place.values) > len(names) else ""
        words = _words(plan, place.values[0], place.layout)
        where, function = line_text(place.line), _function(place)
        where = where if function == where else f"{where} {function}"
        lines.append((where, f"{names_text} [{words}]{times}"))
    return lines if program.n_ops else []


def short_path(path: str) -> str:
    """A path from its last key that is a name on.

    >>> short_path("params['layers'][0]['w']"), short_path("opt[0].mu['w'][1]"), short_path("p[0]")
    ('w', 'w[1]', 'p[0]')
    """
    path = _FLAT_INDEX.sub(r"[\1]", path)
    names = [*_NAME.finditer(path)]
    return names[-1][0] + _CLOSING.sub(r"\1", path[names[-1].end() :]) if names else path


def _value_name(plan: ShardingPlan, value: int) -> str:
    """The user's name of a value; unnamed values are named after the op that makes them."""
    program = plan.program
    name = program.value_name[value]
    if value < program.n_arguments:
        return short_path(name)
    if not name.startswith("%"):
        return name
    op = int(program.value_op[value])
    return "gradient" if "transpose(" in program.name_stack[op] else program.kind[op]
