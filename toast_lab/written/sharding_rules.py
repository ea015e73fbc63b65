r"""The fewest sharding rules that give all arguments their specs.

A path is read from its end, key by key: ``['wq']``, then ``[3]``, then ``['layers']``. Paths that
end alike form a tree, whose root stands for all paths. A rule at a node of the tree decides every
path below it which no rule further down decides. The fewest rules follow from the leaves up, for
each spec that a node may inherit; rules further down are exceptions and come first. Numbers of
layers are not told apart (``\d+``) unless that saves rules, so that rules that were made for two
layers hold for twelve. Neighbours with one spec share a rule: ``\['(wq|wk|wv)'\]$``.

Optimizer states end as their parameters do, so one rule has both. Where they are sharded in another
way, the rules of either begin with the root of its tree, if that takes fewer rules.

Start reading at ``rules_of``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from toast_lab.ir.program import Program
from toast_lab.sharding.plan import Spec
from toast_lab.written.written_plan import ShardingRule

_KEY = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\]|\[[^\[\]]*\]|\.?[^.\[]+")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_DEEPEST_ROOT = 3  #: most keys that lead to the parameters in a tree, as ``opt_state[0].mu``
#: More rules than that are no plan that a person would write; they are not worth the time.
_MOST_MERGED = 64
MOST_NAMES = 8  #: names that one rule lists at most
#: Of trees with equally many rules, one with fewer names, and fewer numbers, is better.
_NAME_COST, _NUMBER_COST = 1e-5, 1e-3
_WHOLE: Spec = ()


def rules_of(program: Program, specs: Sequence[Spec]) -> tuple[ShardingRule, ...]:
    """The fewest rules that give each argument its spec.

    The first rule whose pattern ``re.search`` finds in an argument's path decides, and arguments
    that no rule matches stay whole. Specs of rules end in their last dim that an axis cuts, as a
    ``PartitionSpec`` may.

    Args:
        program: the one whose arguments are sharded.
        specs: mesh axes per dim of each argument, in order.

    Returns:
        The rules, exceptions first. Those at the same depth are in the order of the arguments.
    """
    return rules_of_paths(program.value_name[: program.n_arguments], specs)


def rules_of_paths(paths: Sequence[str], specs: Sequence[Spec]) -> tuple[ShardingRule, ...]:
    """``rules_of`` arguments with these paths; the rules' arguments are positions among them."""
    spec_of = {path: trimmed(spec) for path, spec in zip(paths, specs, strict=True)}
    drafts = _merged(_Tree(spec_of).drafts(), spec_of)
    by_root = _drafts_by_root(spec_of)
    if by_root and _decides(by_root, spec_of):
        by_root = _merged(by_root, spec_of)
        drafts = min(drafts, by_root, key=len)
    arguments: list[list[int]] = [[] for _ in drafts]
    patterns = _compiled(drafts)
    for argument, path in enumerate(paths):
        rule = _first_match(patterns, path)
        if rule is not None:
            arguments[rule].append(argument)
    return tuple(
        ShardingRule(draft.pattern, draft.words, draft.spec, tuple(members))
        for draft, members in zip(drafts, arguments, strict=True)
    )


def trimmed(spec: Spec) -> Spec:
    """A spec without the dims at its end that no axis cuts."""
    cut = [dim for dim, axes in enumerate(spec) if axes]
    return tuple(spec[: cut[-1] + 1]) if cut else _WHOLE


class _Root(NamedTuple):
    """The first keys of the paths of one or several trees."""

    pattern: str = ""
    title: str = ""  #: the last of the keys, as a title of rules
    depth: int = 0  #: number of the keys


_NO_ROOT = _Root()


class _Key(NamedTuple):
    """A key of a rule's paths, or several of which each may stand there."""

    opening: str
    patterns: tuple[str, ...]
    words: tuple[str, ...]
    closing: str


class _RuleDraft(NamedTuple):
    """A rule before it is known which arguments it decides."""

    root: _Root
    ended: bool  #: nothing stands between the root, or the start of the path, and the keys
    keys: tuple[_Key, ...]  #: in which the paths end
    spec: Spec

    @property
    def pattern(self) -> str:
        """Regular expression that is searched for in paths."""
        begin = "^" if self.ended and not self.root.pattern else self.root.pattern
        between = ".*" if self.root.pattern and not self.ended else ""
        texts = [
            f"{re.escape(key.opening)}{_alternatives(key.patterns)}{re.escape(key.closing)}"
            for key in self.keys
        ]
        return f"{begin}{between}{''.join(texts)}$"

    @property
    def words(self) -> str:
        """The keys as people say them."""
        texts = []
        for key in self.keys:
            is_last = key is self.keys[-1]
            text = ", ".join(key.words) if is_last else _alternatives(key.words)
            texts.append(f"[{text}]" if key.opening == "[" else f".{text}")
        return self.root.title + ("".join(texts).removeprefix(".") or "all")

    def merged(self, other: _RuleDraft) -> _RuleDraft | None:
        """One rule instead of two that differ in the names at one place, if they do."""
        if (self.root, self.spec, len(self.keys)) != (other.root, other.spec, len(other.keys)):
            return None
        pairs = list(zip(self.keys, other.keys, strict=True))
        places = [place for place, (own, others) in enumerate(pairs) if own != others]
        if len(places) != 1:
            return None
        own, others = pairs[places[0]]
        patterns = tuple(dict.fromkeys((*own.patterns, *others.patterns)))
        if (own.opening, own.closing) != (others.opening, others.closing):
            return None
        if own.opening == "[" or len(patterns) > MOST_NAMES:
            return None
        words = tuple(dict.fromkeys((*own.words, *others.words)))
        keys = list(self.keys)
        keys[places[0]] = _Key(own.opening, patterns, words, own.closing)
        return self._replace(keys=tuple(keys), ended=self.ended and other.ended)


def _alternatives(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({'|'.join(texts)})"


def _merged(drafts: list[_RuleDraft], spec_of: Mapping[str, Spec]) -> list[_RuleDraft]:
    """Rules of which neighbours in different parts of the tree are merged."""
    later = 1 if len(drafts) <= _MOST_MERGED else len(drafts)
    while later < len(drafts):
        for earlier in range(later):
            draft = drafts[earlier].merged(drafts[later])
            if draft is None:
                continue
            fewer = [*drafts[:earlier], draft, *drafts[earlier + 1 : later], *drafts[later + 1 :]]
            if not _takes_others(draft, drafts[:earlier], spec_of):
                drafts = fewer
                break
        else:
            later += 1
    return drafts


def _takes_others(
    draft: _RuleDraft, earlier: Sequence[_RuleDraft], spec_of: Mapping[str, Spec]
) -> bool:
    """Does a rule decide a path of another spec which no earlier rule decides?"""
    pattern, patterns = re.compile(draft.pattern), _compiled(earlier)
    return any(
        spec != draft.spec
        and pattern.search(path) is not None
        and _first_match(patterns, path) is None
        for path, spec in spec_of.items()
    )


def _compiled(drafts: Sequence[_RuleDraft]) -> list[re.Pattern[str]]:
    return [re.compile(draft.pattern) for draft in drafts]


def _first_match(patterns: Sequence[re.Pattern[str]], path: str) -> int | None:
    matches = (index for index, pattern in enumerate(patterns) if pattern.search(path))
    return next(matches, None)


def _decides(drafts: Sequence[_RuleDraft], spec_of: Mapping[str, Spec]) -> bool:
    """Do these rules give each path its spec?"""
    patterns = _compiled(drafts)
    for path, spec in spec_of.items():
        rule = _first_match(patterns, path)
        if (_WHOLE if rule is None else drafts[rule].spec) != spec:
            return False
    return True


# -- paths -----------------------------------------------------------------------------------------
def keys_of(path: str) -> list[str]:
    """The keys of a path, brackets and dots included.

    >>> keys_of("opt_state[0].mu['layers'][3]['wq']")
    ['opt_state', '[0]', '.mu', "['layers']", '[3]', "['wq']"]
    """
    keys = _KEY.findall(path)
    return keys if "".join(keys) == path and path else [path]


@dataclasses.dataclass(eq=False)
class _PathNode:
    """Paths that end alike, and the ways to tell them apart further."""

    tree: _Tree
    paths: tuple[str, ...]
    depth: int
    kept: tuple[tuple[int, int], ...] = ()  #: (key from the end, number in it) told apart
    by_number: bool = False  #: by the last of them, from the neighbours
    ended: bool = False

    def __post_init__(self) -> None:
        lengths = {len(self.tree.keys[path]) for path in self.paths}
        self.ended = self.ended or (self.depth > 0 and lengths == {self.depth})
        self.specs = tuple(dict.fromkeys(self.tree.spec_of[path] for path in self.paths))

    @property
    def keys(self) -> list[str]:
        """The keys that they end in, of the first path, last one first."""
        return self.tree.keys[self.paths[0]][: self.depth]

    @functools.cached_property
    def splits(self) -> list[list[_PathNode]]:
        """Ways to tell the paths apart by one more property."""
        if len(self.specs) == 1 and self.depth:
            return []
        splits = [] if self.ended else [self._by_next_key()]
        at_keys = range(0 if self.ended else max(self.depth - 1, 0), self.depth)
        for at_key in at_keys:
            for number in range(len(_NUMBER.findall(self.keys[at_key]))):
                if (at_key, number) not in self.kept:
                    split = self._by_number(at_key, number)
                    splits += [split] if len(split) > 1 else []
        return splits

    def _by_next_key(self) -> list[_PathNode]:
        groups: dict[str | None, list[str]] = defaultdict(list)
        for path in self.paths:
            keys = self.tree.keys[path]
            folded = _NUMBER.sub("#", keys[self.depth]) if len(keys) > self.depth else None
            groups[folded].append(path)
        return [
            _PathNode(
                self.tree,
                tuple(paths),
                self.depth + (folded is not None),
                kept=self.kept,
                ended=folded is None,
            )
            for folded, paths in groups.items()
        ]

    def _by_number(self, at_key: int, number: int) -> list[_PathNode]:
        groups: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            groups[_NUMBER.findall(self.tree.keys[path][at_key])[number]].append(path)
        return [
            dataclasses.replace(
                self, paths=tuple(paths), kept=(*self.kept, (at_key, number)), by_number=True
            )
            for paths in groups.values()
        ]


class _Choice(NamedTuple):
    """The fewest rules for the paths of a node."""

    cost: float
    split: int  #: how its paths are told apart, -1: they are not
    #: for each child of the split the spec of the rule that it has; None: it inherits
    rules: tuple[Spec | None, ...] = ()


class _Tree:
    """Paths as a tree of endings, and the fewest rules for them."""

    def __init__(self, spec_of: Mapping[str, Spec], root: _Root = _NO_ROOT) -> None:
        self.spec_of, self.root = spec_of, root
        self.keys = {path: keys_of(path)[root.depth :][::-1] for path in spec_of}
        self._top = _PathNode(self, tuple(spec_of), 0)
        self._choices: dict[tuple[int, Spec], _Choice] = {}

    def drafts(self) -> list[_RuleDraft]:
        """The fewest rules, exceptions first."""
        costs = {_WHOLE: self._choice(self._top, _WHOLE).cost}
        if self.root.pattern:  # the root alone can be what a rule says
            costs |= {
                spec: self._choice(self._top, spec).cost + 1.01 for spec in self._top.specs if spec
            }
        spec = min(costs, key=lambda spec: costs[spec])
        of_all = [_RuleDraft(self.root, ended=False, keys=(), spec=spec)] if spec else []
        return self._rules_below(self._top, spec) + of_all

    def _choice(self, node: _PathNode, inherited: Spec) -> _Choice:
        key = (id(node), inherited)
        if key not in self._choices:
            self._choices[key] = self._chosen(node, inherited)
        return self._choices[key]

    def _chosen(self, node: _PathNode, inherited: Spec) -> _Choice:
        if node.specs in ((inherited,), ()):
            return _Choice(0.0, -1)
        choices = [
            self._of_split(split, index, inherited) for index, split in enumerate(node.splits)
        ]
        return min(choices, default=_Choice(float("inf"), -1), key=lambda choice: choice.cost)

    def _of_split(self, children: list[_PathNode], split: int, inherited: Spec) -> _Choice:
        """The fewest rules for children, of which those with one spec share a rule."""
        name_cost = _NUMBER_COST if children[0].by_number else _NAME_COST
        options: list[dict[Spec | None, float]] = []
        for child in children:
            costs: dict[Spec | None, float] = {None: self._choice(child, inherited).cost}
            for spec in child.specs:
                if spec != inherited:
                    costs[spec] = self._choice(child, spec).cost + name_cost
            options.append(costs)
        opened: set[Spec | None] = {None}
        rules: tuple[Spec | None, ...] = ()
        for _ in range(2):  # with the rules that the first round opens, the second one is cheaper
            rules = tuple(
                min(costs, key=lambda spec: costs[spec] + (0.0 if spec in opened else 1.0))
                for costs in options
            )
            opened = {None, *rules}
        cost = sum(costs[spec] for costs, spec in zip(options, rules, strict=True))
        cost += sum(len(_sharing(children, rules, spec)) for spec in opened if spec is not None)
        return _Choice(cost, split, rules)

    def _rules_below(self, node: _PathNode, inherited: Spec) -> list[_RuleDraft]:
        choice = self._choice(node, inherited)
        if choice.split < 0:
            return []
        children = node.splits[choice.split]
        drafts = []
        for child, spec in zip(children, choice.rules, strict=True):
            drafts += self._rules_below(child, inherited if spec is None else spec)
        for spec in dict.fromkeys(choice.rules):
            if spec is not None:
                sharing = _sharing(children, choice.rules, spec)
                drafts += [
                    _RuleDraft(self.root, nodes[0].ended, _ending(nodes), spec) for nodes in sharing
                ]
        return drafts


def _sharing(
    children: Sequence[_PathNode], rules: Sequence[Spec | None], spec: Spec
) -> list[list[_PathNode]]:
    """Children whose rule has this spec, in groups that share one."""
    groups: dict[object, list[_PathNode]] = defaultdict(list)
    for child, rule in zip(children, rules, strict=True):
        if rule == spec:
            group = groups["number" if child.by_number else (child.ended, _brackets(child))]
            group.append(child)
    limit = len(children) if children[0].by_number else MOST_NAMES
    return [
        group[begin : begin + limit]
        for group in groups.values()
        for begin in range(0, len(group), limit)
    ]


# -- patterns and words ----------------------------------------------------------------------------
def _brackets(node: _PathNode) -> tuple[str, str]:
    """What the last key stands in: quotes and brackets, or after a dot."""
    return _split_key(node.keys[-1])[::2]


def _split_key(key: str) -> tuple[str, str, str]:
    """A key as what opens it, its text, and what closes it."""
    for opening, closing in (("['", "']"), ('["', '"]'), ("[", "]"), (".", "")):
        if key.startswith(opening) and key.endswith(closing):
            return opening, key[len(opening) : len(key) - len(closing)], closing
    return "", key, ""


def _ending(nodes: Sequence[_PathNode]) -> tuple[_Key, ...]:
    """The keys that nodes end in, which differ in the first of these, or in one number."""
    first = nodes[0]
    at_key, at_number = first.kept[-1] if first.by_number else (first.depth - 1, -1)
    keys = []
    for position in reversed(range(first.depth)):
        kept = {number for at, number in first.kept if at == position}
        opening, text, closing = _split_key(first.keys[position])
        texts, values = [text], list[str]()
        if position == at_key and at_number < 0:
            texts = [_split_key(node.keys[position])[1] for node in nodes]
        elif position == at_key:
            values = [_NUMBER.findall(node.keys[position])[at_number] for node in nodes]
        listed = {at_number: _alternatives(values)} if values else {}
        in_words = {at_number: _ranges(values)} if values else {}
        patterns = [
            _numbered(text, kept, re.escape, any_number=r"\d+", replaced=listed)
            for text in dict.fromkeys(texts)
        ]
        words = [
            _numbered(text, kept, str, any_number="*", replaced=in_words)
            for text in dict.fromkeys(texts)
        ]
        keys.append(_Key(opening, tuple(patterns), tuple(words), closing))
    return tuple(keys)


def _ranges(values: Sequence[str]) -> str:
    """Numbers with those in a row as a range.

    >>> _ranges(["0", "1", "2", "5"])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for number in sorted(map(int, values)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(texts)


def _numbered(
    text: str,
    kept: Iterable[int],
    literal: Callable[[str], str],
    *,
    any_number: str,
    replaced: Mapping[int, str],
) -> str:
    """A key's text with its numbers open, those in ``kept`` as they are, others replaced."""
    pieces, begin = [], 0
    for index, number in enumerate(_NUMBER.finditer(text)):
        pieces.append(literal(text[begin : number.start()]))
        own = number[0] if index in kept else any_number
        pieces.append(replaced.get(index, own))
        begin = number.end()
    return "".join([*pieces, literal(text[begin:])])


# -- trees that are equal below their roots --------------------------------------------------------
def _drafts_by_root(spec_of: Mapping[str, Spec]) -> list[_RuleDraft]:
    """Rules that begin with the roots of trees which are equal below them; none: all are alike.

    These are the parameters and the states of an optimizer. Those that come first, the parameters,
    have the last rules, which hold for all others.
    """
    root_of = _roots(spec_of)
    families: dict[frozenset[tuple[str, Spec]], list[str]] = defaultdict(list)
    for root in dict.fromkeys(root_of.values()):
        below = ((path[len(root) :], spec_of[path]) for path in root_of if root_of[path] == root)
        families[frozenset(below)].append(root)
    if len(families) < 2:
        return []
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for family, roots in enumerate(families.values()):
        for root in roots:
            groups[family, len(keys_of(root))].append(root)
    drafts: list[_RuleDraft] = []
    for group in reversed(groups.values()):
        own = {path: spec for path, spec in spec_of.items() if root_of.get(path) in group}
        drafts += _Tree(own, _root_of(group)).drafts()
    rest = {path: spec for path, spec in spec_of.items() if path not in root_of}
    drafts += _Tree(rest).drafts()
    anywhere = [draft._replace(ended=False) if draft.root.pattern else draft for draft in drafts]
    drafts = anywhere if _decides(anywhere, spec_of) else drafts
    last_root = _root_of(next(iter(groups.values())))
    open_ones = [
        draft._replace(root=_NO_ROOT) if draft.root == last_root else draft for draft in drafts
    ]
    return open_ones if _decides(open_ones, spec_of) else drafts


def _root_of(roots: Sequence[str]) -> _Root:
    """What the paths of trees begin with."""
    keys = [keys_of(root) for root in roots]
    begin = "".join(
        column[0]
        for column in itertools.takewhile(
            lambda column: len(set(column)) == 1, zip(*(root[:-1] for root in keys), strict=True)
        )
    )
    rests = [root[len(begin) :] for root in roots]
    opening = "." if all(rest.startswith(".") for rest in rests) else ""
    escaped = [re.escape(rest.removeprefix(opening)) for rest in rests]
    end = r"\b" if all(rest[-1].isalnum() for rest in rests) else ""
    return _Root(
        pattern=f"^{re.escape(begin + opening)}{_alternatives(escaped)}{end}",
        title=", ".join(_split_key(root_keys[-1])[1] for root_keys in keys) + ": ",
        depth=len(keys[0]),
    )


def _roots(paths: Iterable[str]) -> dict[str, str]:
    """For paths in trees that are equal below their roots, the root of each."""
    keys = {path: keys_of(path) for path in paths}
    below: dict[str, set[str]] = defaultdict(set)
    for path, path_keys in keys.items():
        for depth in range(1, min(len(path_keys) - 1, _DEEPEST_ROOT) + 1):
            root = "".join(path_keys[:depth])
            if not re.fullmatch(r"\[\d+\]|\.\d+", path_keys[depth - 1]) or depth < 2:
                below[root].add(path[len(root) :])
    counts = Counter(frozenset(tree) for tree in below.values())
    roots = {root for root, tree in below.items() if counts[frozenset(tree)] > 1}
    root_of = {}
    for path, path_keys in keys.items():
        for depth in range(1, len(path_keys)):
            root = "".join(path_keys[:depth])
            if root in roots:
                root_of[path] = root
                break
    return root_of
