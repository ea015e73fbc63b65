"""What a person has to write to get a plan: rules for arguments, and places in the source.

The *size* of a plan counts both.  A *rule* shards all arguments of one role alike: those whose
paths end alike and that have one sharding, so that repeated layers, and the moments of an optimiser
beside their parameters, are one rule.  Arguments that stay whole need none.  A *place* is a source
line at which a tensor changes its sharding, with the sharding that it gets: what one
``with_sharding_constraint`` says, for every layer that runs through the line, and for its gradient,
which stands at the same line.

What several ops read in one sharding is written once, where it is read first.  Where several
operands of an op change, one constraint on its result does for them all, if no cut is left open.
An operand that is only cut further, along with another one of its op, needs no place.  Nor does a
value that takes over shape and sharding of an argument: gradients and new parameters follow the
parameter.  Propagation implies some of the other places too (``export.minimal`` finds out which,
with minutes of compiling), so the size is what has to be written at most.  It takes milliseconds,
which is why searches can ask for it.

Start reading at ``plan_size``.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.hashing import Classes, classes
from toast_lab.ir.locations import user_line
from toast_lab.ir.program import Program
from toast_lab.ragged import Ragged
from toast_lab.sharding import steps
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import counted

_INDEX = re.compile(r"\[\d+\]|(?<=[._])\d+(?=[._'\]]|$)|^\d+$")
_WORD = re.compile(r"\w+")
#: words at the end of a path that tell roles apart, tried in this order; 0: all
_LOOKS = (1, 2, 3, 0)
_LAYOUT_MASK = (1 << steps.LAYOUT_BITS) - 1
_DEEPEST_ROOT = 3  #: words before the parameters in the tree of an optimiser, ``opt_state[0].mu``


class PlanSize(NamedTuple):
    """How much a person has to write."""

    rules: int  #: of arguments
    places: int  #: in the source

    @property
    def total(self) -> int:
        """Rules and places."""
        return self.rules + self.places

    def __str__(self) -> str:
        return f"{counted(self.rules, 'argument rule')} and {counted(self.places, 'place')}"


class ArgumentRule(NamedTuple):
    """Arguments of one role with one sharding."""

    role: str  #: what their paths end with: ``wq``, or ``down[*].conv1``
    arguments: tuple[int, ...]
    layout: int  #: packed, see ``steps``
    exception: bool  #: most arguments of the role have another sharding


class ConstraintPlace(NamedTuple):
    """A source line at which tensors of one rank get a sharding."""

    line: str  #: "src/model.py:31", the innermost that is not a library's
    values: tuple[int, ...]  #: one for each layer that runs through it, and more
    layout: int  #: packed, see ``steps``
    exception: bool  #: most tensors of this shape get another sharding at the line


class _Sites(NamedTuple):
    """What of a program does not depend on plans."""

    #: of each argument the number of its role, at finer and finer looks
    roles: tuple[np.ndarray, ...]
    role_texts: tuple[tuple[str, ...], ...]  #: text of each role by its number
    shape: np.ndarray  #: [V] class of its shape
    rank: np.ndarray  #: [V]
    lines: tuple[str, ...]  #: text of each site by its number
    value_site: np.ndarray  #: [V] place of the op that makes it
    use_site: np.ndarray  #: [U] place of the op that reads it
    has_op: np.ndarray  #: [V] bool: an op makes it, and not of constants alone


def folded_path(path: str) -> str:
    """The path of a layer's value as one for every layer.

    >>> folded_path("params['layers'][3]['w1']"), folded_path("blocks.3.weight")
    ("params['layers'][*]['w1']", 'blocks.*.weight')
    """
    return _INDEX.sub(lambda index: "[*]" if index[0].startswith("[") else "*", path)


@functools.lru_cache(maxsize=8)
def _sites(program: Program) -> _Sites:
    paths = program.value_name[: program.n_arguments]
    words = [[folded_path(word) for word in parts] for parts in own_words(paths)]
    looks = [[".".join(parts[-count:]) for parts in words] for count in _LOOKS]
    numbers: list[np.ndarray] = []
    texts: list[tuple[str, ...]] = []
    for look in looks:
        number_of: dict[str, int] = {}
        numbers.append(np.asarray([number_of.setdefault(text, len(number_of)) for text in look]))
        texts.append(tuple(number_of))
    shape = classes(program.n_values, Ragged(program.shape_ptr, program.shape)).label
    line_of: dict[str, int] = {}
    own = np.asarray(
        [line_of.setdefault(user_line(where), len(line_of)) for where in program.locations]
    )
    # Without a source line ops are told apart by their kinds
    site = own[program.location].astype(np.int64)
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


def own_words(paths: Sequence[str]) -> list[list[str]]:
    """The words of arguments' paths, without the roots of trees that are alike.

    >>> own_words(["p['w1']", "p['w2'][3]", "opt[0].mu['w1']", "opt[0].mu['w2'][3]"])
    [['w1'], ['w2.3'], ['w1'], ['w2.3']]
    """
    words = [_named(_WORD.findall(path) or [path]) for path in paths]
    below: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for parts in words:
        for depth in range(1, min(len(parts) - 1, _DEEPEST_ROOT) + 1):
            if "*" not in folded_path(parts[depth - 1]):
                below[tuple(parts[:depth])].add(tuple(parts[depth:]))
    twins = Counter(frozenset(rest) for rest in below.values())
    roots = {root for root, rest in below.items() if twins[frozenset(rest)] > 1}
    return [
        next(
            (parts[depth:] for depth in range(1, len(parts)) if tuple(parts[:depth]) in roots),
            parts,
        )
        for parts in words
    ]


def _named(words: list[str]) -> list[str]:
    """Words of a path with those at its end that are places in lists joined to their name."""
    last = len(words)
    while last > 1 and not words[last - 1].isidentifier():
        last -= 1
    return [*words[: last - 1], ".".join(words[last - 1 :])]


class _Entries(NamedTuple):
    """Values that get a sharding at a place, one for each time that it happens."""

    value: np.ndarray
    site: np.ndarray
    op: np.ndarray  #: at whose source line
    layout: np.ndarray


class _Written(NamedTuple):
    """Layouts of all arguments, and what has to be pinned elsewhere."""

    arguments: np.ndarray  #: [n_arguments]
    entries: _Entries


def _written(program: Program, sharding: Sharding) -> _Written:
    tables, sites = steps.tables(program), _sites(program)
    kept = steps.kept_layouts(tables, *sharding)
    wanted = steps.wants_of(tables, sharding.op_factor)
    natural, _ = steps.natural_layouts_of(tables, sharding.op_factor)
    of_arguments = kept[: program.n_arguments]
    values = np.flatnonzero(sites.has_op & (kept != natural))
    follows = _pairs_in(
        (sites.shape[values], kept[values]),
        (sites.shape[: program.n_arguments][of_arguments != 0], of_arguments[of_arguments != 0]),
    )
    values = values[~follows]
    used, axis_count = program.use_value, sharding.op_factor.shape[1]
    changed = (wanted != kept[used]) & ~program.value_is_constant[used]
    changed &= ~_implied(program, wanted, kept[used], axis_count)
    by_uses = _read_entries(program, sites, np.flatnonzero(changed), wanted)
    kept_entries = _Entries(
        values, sites.value_site[values], program.value_op[values], kept[values]
    )
    candidates = _settled_by_results(
        program, changed, sharding.op_factor, wanted=wanted, kept=kept[used], natural=natural
    )
    ops = _saving(sites, candidates, kept_entries, by_uses)
    if not len(ops):
        return _Written(of_arguments, _joined(kept_entries, by_uses))
    changed &= ~np.isin(program.use_op, ops)
    results = program.result_ptr[ops]
    by_results = _Entries(results, sites.value_site[results], ops, natural[results])
    # Where a value is read first may have changed
    by_uses = _read_entries(program, sites, np.flatnonzero(changed), wanted)
    return _Written(of_arguments, _joined(kept_entries, by_results, by_uses))


def _read_entries(
    program: Program, sites: _Sites, uses: np.ndarray, wanted: np.ndarray
) -> _Entries:
    """Entries of uses that change the sharding of what they read.

    What several ops read in one sharding is written where the first of them reads it.
    """
    used = program.use_value[uses]
    alike = classes(len(uses), used, wanted[uses])
    first = uses[alike.first][alike.label]
    return _Entries(used, sites.use_site[first], program.use_op[uses], wanted[uses])


def _joined(*parts: _Entries) -> _Entries:
    return _Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _places_of(sites: _Sites, entries: _Entries) -> Classes:
    """The place of each entry: a site, the rank of what gets a sharding there, and the sharding."""
    return classes(len(entries.op), entries.site, sites.rank[entries.value], entries.layout)


def _saving(sites: _Sites, candidates: np.ndarray, kept: _Entries, by_uses: _Entries) -> np.ndarray:
    """Those ops whose operands need two places or more that nothing else needs anyway."""
    is_candidate = np.concatenate([np.zeros(len(kept.op), bool), np.isin(by_uses.op, candidates)])
    entries = _joined(kept, by_uses)
    place = _places_of(sites, entries).label
    own = is_candidate & ~np.isin(place, place[~is_candidate])
    pairs = classes(int(own.sum()), entries.op[own], place[own]).first
    ops, counts = np.unique(entries.op[own][pairs], return_counts=True)
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

    It does if each mesh axis cuts a dim of the result, or a dim that goes away and that an operand
    already has cut, or nothing that an operand has.

    Args:
        program: the program.
        changed: [U] bool, operands that change their sharding.
        op_factor: [O, A] factor that each axis cuts.
        wanted: [U] packed layouts that ops want.
        kept: [U] packed layouts in which the operands are kept.
        natural: [V] packed layouts in which ops leave their results.

    Returns:
        Numbers of the ops, ascending.
    """
    several = np.bincount(program.use_op[changed], minlength=program.n_ops) > 1
    several &= np.diff(program.result_ptr) > 0
    layout = natural[np.where(several, program.result_ptr[:-1], 0)]
    for axis in range(op_factor.shape[1]):
        before, after = _cut(kept, axis), _cut(wanted, axis)
        held = np.zeros(program.n_ops, bool)
        held[program.use_op[before != 0]] = True
        steady = np.zeros(program.n_ops, bool)
        steady[program.use_op[(before != 0) & (before == after)]] = True
        uncut = op_factor[program.owner, axis] < 0
        several &= np.where(uncut, ~held, (_cut(layout, axis) != 0) | steady)
    return np.flatnonzero(several)


def _implied(program: Program, wanted: np.ndarray, kept: np.ndarray, axis_count: int) -> np.ndarray:
    """[U] bool: is the value only cut further, as another operand of the op already is?"""
    implied = np.ones(len(wanted), bool)
    for axis in range(axis_count):
        cut, before = _cut(wanted, axis), _cut(kept, axis)
        # Ops that read an operand as it is kept, cut on this axis
        steady = np.zeros(program.n_ops, bool)
        steady[program.use_op[(wanted == kept) & (cut != 0)]] = True
        implied &= (cut == before) | ((before == 0) & steady[program.use_op])
    return implied


def _cut(layouts: np.ndarray, axis: int) -> np.ndarray:
    """The dim that an axis cuts in each packed layout, counted from 1; 0: none."""
    return (layouts >> steps.LAYOUT_BITS * axis) & _LAYOUT_MASK


def _pairs_in(
    pairs: tuple[np.ndarray, np.ndarray], among: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """[n] bool: is each pair of numbers one of the others?"""
    count = len(pairs[0])
    both = [np.concatenate(columns) for columns in zip(pairs, among, strict=True)]
    label = classes(len(both[0]), *both).label
    return np.isin(label[:count], label[count:])


def plan_size(program: Program, sharding: Sharding) -> PlanSize:
    """What a person has to write to get a plan, counted."""
    written, sites = _written(program, sharding), _sites(program)
    rules = 0
    left = np.arange(program.n_arguments)
    for role in sites.roles:
        own, layout = role[left], written.arguments[left]
        uniform = _uniform(own, layout)
        rules += len(np.unique(own[uniform & (layout != 0)]))
        left = left[~uniform]
    if len(left):
        own, layout = sites.roles[-1][left], written.arguments[left]
        pairs = classes(len(left), own, layout)
        usual = _usual(own, pairs.label)
        rules += int(((layout[pairs.first] != 0) | ~usual[pairs.first]).sum())
    return PlanSize(rules, len(_places_of(sites, written.entries).first))


def argument_rules(program: Program, sharding: Sharding) -> list[ArgumentRule]:
    """The rules, exceptions last; arguments that no rule names stay whole."""
    layouts, sites = _written(program, sharding).arguments, _sites(program)
    rules, left = [], np.arange(program.n_arguments)
    for role, texts in zip(sites.roles, sites.role_texts, strict=True):
        own, layout = role[left], layouts[left]
        uniform = _uniform(own, layout)
        for number in dict.fromkeys(own[uniform & (layout != 0)].tolist()):
            members = left[own == number]
            rules.append(_rule(texts[number], members, layouts, exception=False))
        left = left[~uniform]
    if len(left):
        own, layout = sites.roles[-1][left], layouts[left]
        pairs = classes(len(left), own, layout)
        usual = _usual(own, pairs.label)
        for number, first in enumerate(pairs.first.tolist()):
            if layout[first] != 0 or not usual[first]:
                members = left[pairs.label == number]
                text = sites.role_texts[-1][int(own[first])]
                rules.append(_rule(text, members, layouts, exception=not usual[first]))
    return sorted(rules, key=lambda rule: rule.exception)


def constraint_places(program: Program, sharding: Sharding) -> list[ConstraintPlace]:
    """The places in program order, exceptions last."""
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
    """[n] bool: have all with the same key the same layout?"""
    pairs = classes(len(key), key, layout).first
    several = np.bincount(key[pairs], minlength=int(key.max(initial=0)) + 1) > 1
    return ~several[key]


def _usual(key: np.ndarray, variant: np.ndarray) -> np.ndarray:
    """[n] bool: is it of the variant that most with the same key have, the first of equals?"""
    counts = np.bincount(variant, minlength=1)
    usual: dict[int, int] = {}
    for own, label in zip(key.tolist(), variant.tolist(), strict=True):
        best = usual.setdefault(own, label)
        if counts[label] > counts[best]:
            usual[own] = label
    return np.asarray(
        [usual[own] == label for own, label in zip(key.tolist(), variant.tolist(), strict=True)],
        dtype=bool,
    )
