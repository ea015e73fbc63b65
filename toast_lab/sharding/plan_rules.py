"""What a person has to write to get a plan: rules for arguments, and places in the source.

The *size* of a plan counts both. A *rule* shards all arguments of one role alike: their paths end
alike and they have the same sharding, so that repeated layers, and the moments of an optimiser
along with their parameters, need one rule. Arguments that stay whole need none. A *place* is a
source line at which a tensor changes its sharding, with the new sharding: one
``with_sharding_constraint``, which covers every layer that runs through the line, and the gradient,
which has the same line.

A value that several ops read in one sharding needs one place, at the op that reads it first. Where
several operands of an op change, one constraint on its result stands for all of them if it leaves
no cut open. An operand that is only cut further, along with another operand of its op, needs no
place. Nor does a value with the shape and sharding of an argument: gradients and new parameters
follow the parameter. Propagation implies some of the other places too (``export.minimal`` finds
them, with minutes of compiling), so the size is an upper bound on what has to be written. It takes
milliseconds, so that searches can ask for it.

Start reading at ``plan_size``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from toast_lab.hashing import Classes, classes
from toast_lab.ir.argument_paths import folded_path, own_words
from toast_lab.ir.locations import user_line
from toast_lab.ir.program import Program
from toast_lab.ragged import Ragged
from toast_lab.sharding import steps
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import counted

#: numbers of words at the end of a path that identify a role, tried in this order; 0: all words
_LOOKS = (1, 2, 3, 0)
_LAYOUT_MASK = (1 << steps.LAYOUT_BITS) - 1


class PlanSize(NamedTuple):
    """The amount of text that a person has to write, as numbers of rules and places."""

    rules: int  #: number of argument rules
    places: int  #: number of places in the source

    @property
    def total(self) -> int:
        """Rules and places together."""
        return self.rules + self.places

    def __str__(self) -> str:
        return f"{counted(self.rules, 'argument rule')} and {counted(self.places, 'place')}"


class ArgumentRule(NamedTuple):
    """Arguments of one role with one sharding."""

    role: str  #: common end of their paths: ``wq``, or ``down[*].conv1``
    arguments: tuple[int, ...]
    layout: int  #: packed, see ``steps``
    exception: bool  #: most arguments of the role have another sharding


class ConstraintPlace(NamedTuple):
    """A source line at which tensors of one rank get a sharding."""

    line: str  #: "src/model.py:31", the innermost line that is not in a library
    values: tuple[int, ...]  #: at least one for each layer that runs through the line
    layout: int  #: packed, see ``steps``
    exception: bool  #: most tensors of this shape get another sharding at this line


class _Sites(NamedTuple):
    """The roles, shapes and source lines of a program, which do not depend on plans."""

    #: for each of ``_LOOKS``: [n_arguments] number of each argument's role
    roles: tuple[np.ndarray, ...]
    role_texts: tuple[tuple[str, ...], ...]  #: for each of ``_LOOKS``: text of each role by number
    shape: np.ndarray  #: [V] class of each value's shape
    rank: np.ndarray  #: [V]
    lines: tuple[str, ...]  #: text of each site by number
    value_site: np.ndarray  #: [V] site of the op that makes the value
    use_site: np.ndarray  #: [U] site of the op that reads the value
    has_op: np.ndarray  #: [V] bool: an op makes the value, and not from constants alone


@functools.lru_cache(maxsize=8)
def _sites(program: Program) -> _Sites:
    paths = program.value_name[: program.n_arguments]
    words = [[folded_path(word) for word in parts] for parts in own_words(paths)]
    role_lists = [[".".join(parts[-count:]) for parts in words] for count in _LOOKS]
    numbers: list[np.ndarray] = []
    texts: list[tuple[str, ...]] = []
    for role_list in role_lists:
        number_of: dict[str, int] = {}
        numbers.append(
            np.asarray([number_of.setdefault(text, len(number_of)) for text in role_list])
        )
        texts.append(tuple(number_of))
    shape = classes(program.n_values, Ragged(program.shape_ptr, program.shape)).label
    line_of: dict[str, int] = {}
    line_number = np.asarray(
        [line_of.setdefault(user_line(where), len(line_of)) for where in program.locations]
    )
    # Ops without a source line have one site for each kind
    site = line_number[program.location].astype(np.int64)
    for op in np.flatnonzero(
        np.asarray([not where for where in program.locations])[program.location]
    ):
        site[op] = line_of.setdefault(f"{program.kind[op]} ops", len(line_of))
    return _Sites(
        roles=tuple(numbers),
        role_texts=tuple(texts),
        shape=shape,
        rank=np.diff(program.shape_ptr),
        lines=tuple(line_of),
        value_site=site[program.value_op],
        use_site=site[program.use_op],
        has_op=(program.value_op >= program.n_arguments) & ~program.value_is_constant,
    )


class _Entries(NamedTuple):
    """Occasions on which a value gets a sharding at a place, as columns."""

    value: np.ndarray
    site: np.ndarray
    op: np.ndarray  #: the op whose source line it is
    layout: np.ndarray


class _Written(NamedTuple):
    """Layouts of all arguments, and the entries that need a constraint in the source."""

    arguments: np.ndarray  #: [n_arguments]
    entries: _Entries


def _written(program: Program, sharding: Sharding) -> _Written:
    tables, sites = steps.tables(program), _sites(program)
    kept = steps.kept_layouts(tables, *sharding)
    wanted = steps.wants_of(tables, sharding.op_factor)
    natural, _ = steps.natural_layouts_of(tables, sharding.op_factor)
    argument_layouts = kept[: program.n_arguments]
    values = np.flatnonzero(sites.has_op & (kept != natural))
    follows = _pairs_in(
        (sites.shape[values], kept[values]),
        (
            sites.shape[: program.n_arguments][argument_layouts != 0],
            argument_layouts[argument_layouts != 0],
        ),
    )
    values = values[~follows]
    used, axis_count = program.use_value, sharding.op_factor.shape[1]
    changed = (wanted != kept[used]) & ~program.value_is_constant[used]
    changed &= ~_implied(program, wanted, kept[used], axis_count)
    changed &= tables.use_given == steps.OPEN  # a shard_map says itself how it reads
    by_uses = _read_entries(program, sites, np.flatnonzero(changed), wanted)
    kept_entries = _Entries(
        values, sites.value_site[values], program.value_op[values], kept[values]
    )
    candidates = _settled_by_results(
        program, changed, sharding.op_factor, wanted=wanted, kept=kept[used], natural=natural
    )
    ops = _saving(sites, candidates, kept_entries, by_uses)
    if not len(ops):
        return _Written(argument_layouts, _joined(kept_entries, by_uses))
    changed &= ~np.isin(program.use_op, ops)
    results = program.result_ptr[ops]
    by_results = _Entries(results, sites.value_site[results], ops, natural[results])
    # The first op that reads a value may have changed
    by_uses = _read_entries(program, sites, np.flatnonzero(changed), wanted)
    return _Written(argument_layouts, _joined(kept_entries, by_results, by_uses))


def _read_entries(
    program: Program, sites: _Sites, uses: np.ndarray, wanted: np.ndarray
) -> _Entries:
    """Entries of uses that change the sharding of the value that they read.

    If several ops read a value in one sharding, its site is that of the first of them.
    """
    used = program.use_value[uses]
    alike = classes(len(uses), used, wanted[uses])
    first = uses[alike.first][alike.label]
    return _Entries(used, sites.use_site[first], program.use_op[uses], wanted[uses])


def _joined(*parts: _Entries) -> _Entries:
    return _Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _places_of(sites: _Sites, entries: _Entries) -> Classes:
    """The place of each entry: its site, the rank of its value, and the sharding."""
    return classes(len(entries.op), entries.site, sites.rank[entries.value], entries.layout)


def _saving(sites: _Sites, candidates: np.ndarray, kept: _Entries, by_uses: _Entries) -> np.ndarray:
    """Candidates whose operands need two or more places that no other entry needs."""
    is_candidate = np.concatenate([np.zeros(len(kept.op), bool), np.isin(by_uses.op, candidates)])
    entries = _joined(kept, by_uses)
    place = _places_of(sites, entries).label
    is_own_place = is_candidate & ~np.isin(place, place[~is_candidate])
    pairs = classes(int(is_own_place.sum()), entries.op[is_own_place], place[is_own_place]).first
    ops, counts = np.unique(entries.op[is_own_place][pairs], return_counts=True)
    return ops[counts > 1]


def _settled_by_results(
    program: Program,
    changed: np.ndarray,
    op_factor: np.ndarray,
    *,
    wanted: np.ndarray,
    kept: np.ndarray,
    natural: np.ndarray,
) -> np.ndarray:
    """Ops with several operands that change, all of which a constraint on the result implies.

    It implies them if each mesh axis cuts a dim of the result, or a reduced dim that an operand
    already has cut, or neither the op nor any of its operands.

    Args:
        program: the program.
        changed: [U] bool, operands that change their sharding.
        op_factor: [O, A] factor along which each axis splits each op.
        wanted: [U] packed layouts in which ops want their operands.
        kept: [U] packed layouts in which the operands are kept.
        natural: [V] packed layouts in which ops leave their results.

    Returns:
        Numbers of the ops, ascending.
    """
    settled = np.bincount(program.use_op[changed], minlength=program.n_ops) > 1
    settled &= np.diff(program.result_ptr) > 0
    layout = natural[np.where(settled, program.result_ptr[:-1], 0)]
    for axis in range(op_factor.shape[1]):
        before, after = _cut(kept, axis), _cut(wanted, axis)
        is_cut_before = np.zeros(program.n_ops, bool)
        is_cut_before[program.use_op[before != 0]] = True
        stays_cut = np.zeros(program.n_ops, bool)
        stays_cut[program.use_op[(before != 0) & (before == after)]] = True
        uncut = op_factor[program.owner, axis] < 0
        settled &= np.where(uncut, ~is_cut_before, (_cut(layout, axis) != 0) | stays_cut)
    return np.flatnonzero(settled)


def _implied(program: Program, wanted: np.ndarray, kept: np.ndarray, axis_count: int) -> np.ndarray:
    """[U] bool: is the operand only cut further, on axes that already cut another one?"""
    implied = np.ones(len(wanted), bool)
    for axis in range(axis_count):
        cut, before = _cut(wanted, axis), _cut(kept, axis)
        # Ops with an operand that this axis cuts and that is read in the layout in which it is kept
        has_steady_operand = np.zeros(program.n_ops, bool)
        has_steady_operand[program.use_op[(wanted == kept) & (cut != 0)]] = True
        implied &= (cut == before) | ((before == 0) & has_steady_operand[program.use_op])
    return implied


def _cut(layouts: np.ndarray, axis: int) -> np.ndarray:
    """The dim that an axis cuts in each packed layout, numbered from 1; 0: none."""
    return (layouts >> steps.LAYOUT_BITS * axis) & _LAYOUT_MASK


def _pairs_in(
    pairs: tuple[np.ndarray, np.ndarray], among: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """[n] bool: is each pair of numbers among the pairs of ``among``?"""
    count = len(pairs[0])
    all_pairs = [np.concatenate(columns) for columns in zip(pairs, among, strict=True)]
    label = classes(len(all_pairs[0]), *all_pairs).label
    return np.isin(label[:count], label[count:])


def plan_size(program: Program, sharding: Sharding) -> PlanSize:
    """The number of rules and places that a person has to write to get a plan."""
    written, sites = _written(program, sharding), _sites(program)
    rules = 0
    remaining = np.arange(program.n_arguments)
    for role_numbers in sites.roles:
        roles, layouts = role_numbers[remaining], written.arguments[remaining]
        uniform = _uniform(roles, layouts)
        rules += len(np.unique(roles[uniform & (layouts != 0)]))
        remaining = remaining[~uniform]
    if len(remaining):
        roles, layouts = sites.roles[-1][remaining], written.arguments[remaining]
        pairs = classes(len(remaining), roles, layouts)
        usual = _usual(roles, pairs.label)
        rules += int(((layouts[pairs.first] != 0) | ~usual[pairs.first]).sum())
    return PlanSize(rules, len(_places_of(sites, written.entries).first))


def argument_rules(program: Program, sharding: Sharding) -> list[ArgumentRule]:
    """The argument rules of a plan, exceptions last; arguments without a rule stay whole."""
    layouts, sites = _written(program, sharding).arguments, _sites(program)
    rules, remaining = [], np.arange(program.n_arguments)
    for role_numbers, texts in zip(sites.roles, sites.role_texts, strict=True):
        roles, remaining_layouts = role_numbers[remaining], layouts[remaining]
        uniform = _uniform(roles, remaining_layouts)
        for number in dict.fromkeys(roles[uniform & (remaining_layouts != 0)].tolist()):
            members = remaining[roles == number]
            rules.append(_rule(texts[number], members, layouts, exception=False))
        remaining = remaining[~uniform]
    if len(remaining):
        roles, remaining_layouts = sites.roles[-1][remaining], layouts[remaining]
        pairs = classes(len(remaining), roles, remaining_layouts)
        usual = _usual(roles, pairs.label)
        for number, first in enumerate(pairs.first.tolist()):
            if remaining_layouts[first] != 0 or not usual[first]:
                members = remaining[pairs.label == number]
                text = sites.role_texts[-1][int(roles[first])]
                rules.append(_rule(text, members, layouts, exception=not usual[first]))
    return sorted(rules, key=lambda rule: rule.exception)


def constraint_places(program: Program, sharding: Sharding) -> list[ConstraintPlace]:
    """The places of a plan in program order, exceptions last."""
    entries, sites = _written(program, sharding).entries, _sites(program)
    at_place = _places_of(sites, entries)
    at_line = classes(len(entries.value), entries.site, sites.shape[entries.value]).label
    usual = _usual(at_line, at_place.label)
    members = Ragged.by_key(at_place.label, len(at_place.first))
    places = []
    for number, first in enumerate(at_place.first.tolist()):
        rows = members.row(number)
        place = ConstraintPlace(
            line=sites.lines[int(entries.site[first])],
            values=tuple(dict.fromkeys(entries.value[rows].tolist())),
            layout=int(entries.layout[first]),
            exception=not usual[first],
        )
        places.append((place.exception, int(entries.op[first]), place))
    return [place for *_, place in sorted(places, key=lambda row: row[:2])]


def _rule(role: str, members: np.ndarray, layouts: np.ndarray, *, exception: bool) -> ArgumentRule:
    return ArgumentRule(role, tuple(members.tolist()), int(layouts[members[0]]), exception)


def _uniform(key: np.ndarray, layout: np.ndarray) -> np.ndarray:
    """[n] bool: do all items with the same key have the same layout?"""
    pairs = classes(len(key), key, layout).first
    several = np.bincount(key[pairs], minlength=int(key.max(initial=0)) + 1) > 1
    return ~several[key]


def _usual(key: np.ndarray, variant: np.ndarray) -> np.ndarray:
    """[n] bool: is the item's variant the most frequent of its key (of equals the first)?"""
    counts = np.bincount(variant, minlength=1)
    usual: dict[int, int] = {}
    for item_key, label in zip(key.tolist(), variant.tolist(), strict=True):
        usual_label = usual.setdefault(item_key, label)
        if counts[label] > counts[usual_label]:
            usual[item_key] = label
    return np.asarray(
        [
            usual[item_key] == label
            for item_key, label in zip(key.tolist(), variant.tolist(), strict=True)
        ],
        dtype=bool,
    )
